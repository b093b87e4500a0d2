"""Asking for what a machine, a platform or a stranger's plugin cannot give: exit 2, and one message that says what was
asked, what was found and what to do. Where nobody asked for the plugin it is a row of the table."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.cli import main
from platforms.contract import API_VERSION
from tests.fake_machines import machine
from tests.throwaway import ROOT

PLUGIN = """
from platforms.contract import DeviceProfile, Kernel, PlatformPlugin, Probe
import time
class Plugin(PlatformPlugin):
    name, api = {name!r}, {api}
    def profile(self, origin):
        return DeviceProfile(self.name, "one", "ones", "The {name}", 1 << 30, origin, {{"dtype.float32"}})
    def probe(self):
        {probe}
        return Probe((self.profile("probed"),), ("{name} was looked for",))
    def targets(self):
        {targets}
        return {{"one": self.profile("described")}}
    def kernels(self): return ()
    def open(self, index): raise AssertionError("nothing is opened to plan")
{rest}
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Make a platform look installed: a module and the metadata of its distribution, in a folder on the path. No
    other accelerator is here, whatever this machine has."""
    here = tmp_path / "site"
    monkeypatch.syspath_prepend(here)
    monkeypatch.delenv("ENGINE_PLATFORM", raising=False)
    empty = machine(tmp_path / "machine", cuda="13.0", hip="7.2")
    for module in ("platforms.cuda.plugin", "platforms.rocm.plugin"):
        monkeypatch.setattr(f"{module}.Machine", lambda: empty)

    def make(name: str, api: int = API_VERSION, probe: str = "", targets: str = "", rest: str = "") -> None:
        module = f"stranger_{name}_{tmp_path.name}"
        metadata = here / f"{module}-1.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1\n")
        (metadata / "entry_points.txt").write_text(f"[engine.platforms]\n{name} = {module}:Plugin\n")
        text = PLUGIN.format(name=name, api=api, probe=probe or "pass", targets=targets or "pass", rest=rest)
        (here / f"{module}.py").write_text(text)

    return make


def ends(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one message of a command that ends with exit code 2."""
    code = main(words)
    out, err = capsys.readouterr()
    assert (code, out) == (2, ""), out + err
    assert err.count("engine: error: ") == 1 and "Traceback" not in err
    return err[err.index("engine: error: ") :]


def table(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, object]]:
    """The rows of ``engine platforms`` by name."""
    assert main(["platforms", "--json"]) == 0
    out, _ = capsys.readouterr()
    return {row["name"]: row for row in json.loads(out)["rows"]}


@pytest.mark.parametrize("command", ["explain", "serve"])
@pytest.mark.parametrize(("name", "looked"), [("cuda", "/dev/nvidiactl absent"), ("rocm", "/dev/kfd absent")])
def test_a_platform_whose_device_is_not_here(
    capsys: pytest.CaptureFixture[str], install: Install, command: str, name: str, looked: str
) -> None:
    message = ends(capsys, command, "--platform", name)
    assert f"--platform {name}: no usable device here" in message and looked in message
    assert "--platform auto" in message and f"--platform {name}:TARGET" in message


def test_a_platform_that_nobody_installed(capsys: pytest.CaptureFixture[str], install: Install) -> None:
    install("thirteen")
    message = ends(capsys, "explain", "--platform", "thirten")
    assert "no platform 'thirten' is installed" in message and "nearest: thirteen" in message


@pytest.mark.parametrize("platform", ["cpu", "cpu:x86-64-v4", "cuda:sm_90"])
def test_a_kernel_of_another_platform(capsys: pytest.CaptureFixture[str], platform: str) -> None:
    message = ends(capsys, "explain", "--platform", platform, "--kernel", "rms_norm=aiter")
    assert "--kernel rms_norm=aiter" in message and "has no row 'aiter'" in message
    assert "it has " in message and "reference" in message


@pytest.mark.parametrize(
    ("platform", "found"),
    [
        ("cpu", "not offered by the platform"),
        ("cuda:sm_90", "tensor_parallel_size = 1, needs > 1"),
        ("rocm:gfx942", "tensor_parallel_size = 1, needs > 1"),
    ],
)
def test_a_fusion_over_ranks_on_one_rank(capsys: pytest.CaptureFixture[str], platform: str, found: str) -> None:
    message = ends(capsys, "explain", "--platform", platform, "-cc.pass_config.fuse_allreduce_rms=true")
    assert "fuse_allreduce_rms" in message and "cannot be served" in message and found in message
    assert "Drop the flag" in message


def test_a_plugin_written_for_another_contract(capsys: pytest.CaptureFixture[str], install: Install) -> None:
    install("elderly", api=API_VERSION - 1)
    for request in ("elderly", "elderly:one"):
        message = ends(capsys, "explain", "--platform", request)
        assert "--platform elderly" in message and "install a matching one" in message
        assert f"written for contract version {API_VERSION - 1}, this is {API_VERSION}" in message
    row = table(capsys)["elderly"]
    assert "written for contract version" in str(row["error"]) and row["devices"] == []
    assert main(["explain", "--json"]) == 0


def test_a_plugin_that_raises_on_import(capsys: pytest.CaptureFixture[str], install: Install) -> None:
    install("fragile", rest="import libfragile_of_nobody")
    message = ends(capsys, "explain", "--platform", "fragile")
    assert "--platform fragile: the plugin stranger_fragile_" in message and "libfragile_of_nobody" in message
    assert "libfragile_of_nobody" in str(table(capsys)["fragile"]["error"])
    assert main(["explain", "--json"]) == 0


def test_a_plugin_that_raises_in_its_probe(capsys: pytest.CaptureFixture[str], install: Install) -> None:
    install("nervous", probe='raise OSError("no bus")')
    message = ends(capsys, "explain", "--platform", "nervous")
    assert "its probe raised OSError: no bus; fix or remove the plugin" in message
    assert table(capsys)["nervous"]["error"] == "its probe raised OSError: no bus"
    assert main(["explain", "--json"]) == 0
    assert main(["explain", "--json", "--platform", "nervous:one"]) == 0, "nothing is probed for a described device"


def test_a_plugin_whose_probe_hangs(capsys: pytest.CaptureFixture[str], install: Install) -> None:
    install("sleepy", probe="time.sleep(60)")
    message = ends(capsys, "explain", "--platform", "sleepy")
    assert "its probe did not answer in 2 s" in message


def test_a_plugin_whose_targets_raise(capsys: pytest.CaptureFixture[str], install: Install) -> None:
    install("vague", targets="return 1 / 0")
    message = ends(capsys, "explain", "--platform", "vague:one")
    assert "--platform vague:one: targets() raised ZeroDivisionError" in message
    assert table(capsys)["vague"]["error"] == ""
    code = main(["platforms"])
    out, _ = capsys.readouterr()
    assert code == 0 and "targets() raised ZeroDivisionError" in out


@pytest.mark.parametrize(
    ("member", "said"),
    [
        ("kernels(self): return 1 / 0", "kernels() raised ZeroDivisionError"),
        ("kernels(self): return (7,)", "kernels() holds a int"),
        ("kernels(self): return 7", "kernels() raised TypeError"),
        ("fusions(self): return 1 / 0", "fusions() raised ZeroDivisionError"),
        ("settings(self, *asked): return 1 / 0", "settings() raised ZeroDivisionError"),
        ("settings(self, *asked): return ('x',)", "settings() holds a str"),
        ("aliases(self): return 1 / 0", "aliases() raised ZeroDivisionError"),
    ],
)
def test_a_plugin_that_breaks_while_it_is_planned_for(
    capsys: pytest.CaptureFixture[str], install: Install, member: str, said: str
) -> None:
    install("vague", rest=f"    def {member}")
    assert f"platform vague: {said}" in ends(capsys, "explain", "--platform", "vague:one")


@pytest.mark.parametrize("command", ["explain", "serve"])
def test_two_accelerators(capsys: pytest.CaptureFixture[str], install: Install, command: str) -> None:
    install("left")
    install("right")
    message = ends(capsys, command, "--platform", "auto")
    assert "--platform auto: 2 platforms have a device; pick" in message
    for name in ("left", "right"):
        assert f"--platform {name:<5}  The {name} (one), 1 GiB" in message
    assert main(["platforms"]) == 0
    assert "2 platforms have a device" in capsys.readouterr().out
    assert main(["explain", "--json", "--platform", "left"]) == 0


def test_one_accelerator_is_taken(capsys: pytest.CaptureFixture[str], install: Install) -> None:
    install("left")
    assert main(["explain", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["platform"] == "left"


@pytest.mark.parametrize(
    "words",
    [
        ("--platform", "nobody"),
        ("--platform", "cpu:x86-64-v4", "--kernel", "rms_norm=aiter"),
        ("--platform", "cpu:x86-64-v4", "-cc.pass_config.fuse_allreduce_rms=true"),
    ],
)
def test_the_program_itself_ends_so_too(words: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "engine", "explain", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "") and "Traceback" not in done.stderr
    assert done.stderr.count("engine: error: ") == 1
