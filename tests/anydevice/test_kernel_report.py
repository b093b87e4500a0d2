"""``engine kernels report`` with rows of a stranger: whom it asks, what it makes once, what it says of what breaks."""

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from engine.bundle import write_bundle
from engine.cli import kernel_report, main
from engine.errors import UserError
from engine.explain.matrix import Device
from engine.fusion import RULES, all_ops
from engine.kernels.report import asked_for, clean, make, render, report, targets_of
from engine.kernels.units import make_all
from engine.plan import plan_for
from engine.plan_values import Given
from platforms.contract import Kernel, Verdict
from platforms.cpu.plugin import CpuPlugin
from platforms.cuda.plugin import CudaPlugin
from tests.model_configs import LLAMA
from tests.strange_platform import SELECTION, Stranger

ROOT = Path(__file__).parents[2]
HERE = "tests.anydevice.test_kernel_report"


@dataclass(frozen=True, slots=True)
class Unit:
    name: str
    arch: str
    breaks: bool = False

    def make(self):
        if self.breaks:
            raise RuntimeError("no such instruction\nmore of it")
        return {"figures": {"registers": len(self.name), "matrix": ("fma",)}, "problems": ()}


@dataclass(frozen=True, slots=True)
class Figures(Unit):
    def make(self):
        words = ("registers", "spills", "scalar_spills", "shared_memory", "product_rows", "load", "store", "seconds")
        return {"figures": dict.fromkeys(words, 12), "problems": ()}


@dataclass(frozen=True, slots=True)
class Slow:
    name: str

    def make(self):
        import torch  # noqa: F401

        with tempfile.TemporaryDirectory():
            time.sleep(0.5)
        return {"figures": {}, "problems": ()}


def build(profile, target, tensors, attributes):
    assert all(x.device.type == "meta" for x in tensors)
    tokens = tensors[0].shape[0]
    return (Unit(f"{target.partition(':')[2]} rows={16 if tokens <= 16 else 64}", "toy"),)


def build_broken(profile, target, tensors, attributes):
    return (Unit("broken", profile.arch, True),)


def build_nothing(profile, target, tensors, attributes):
    raise ValueError("a tile of no size")


LONG_NAME = "kernels_of_a_stranger.norms:a_kernel_with_a_name_to_remember"


def build_long(profile, target, tensors, attributes):
    return (Figures(f"{LONG_NAME} bf16~,i32 ROWS=1", profile.arch),)


def build_limited(profile, target, tensors, attributes):
    return (Unit("x", profile.limits["shared_memory"]),)


def build_sampling(profile, target, tensors, attributes):
    assert all(x.device.type == "meta" for x in tensors) and tensors[0].shape[-1] == LLAMA.vocab_size
    return (Unit(target.partition(":")[2], "toy"),)


def packed(tensors, attributes):
    return tuple(x.t() for x in tensors)


def build_packed(profile, target, tensors, attributes):
    assert tensors[1].stride(0) == 1, "weights come as pack lays them out"
    return build(profile, target, tensors, attributes)


def row(op, name, builder="build", **more):
    return Kernel(op, name, f"{HERE}:{op}_{name}", build=f"{HERE}:{builder}" if builder else "", **more)


class Plugin(CudaPlugin):
    rows = ()

    def kernels(self):
        return self.rows


def on(*rows, targets=("sm_80", "sm_90"), **more):
    plugin = Plugin()
    plugin.rows = rows
    devices = [Device(f"toy:{name}", plugin, plugin.targets()[name], False) for name in targets]
    return report(devices, LLAMA, {}, {}, **more)


def names(target):
    return {unit.name: sorted(rows) for unit, rows in target.units.rows.items()}


def test_every_row_that_says_yes_is_asked_and_equal_units_are_made_once():
    told = []
    found = on(
        row("linear", "first", priority=9),
        row("linear", "second"),
        row("linear", "never", accepts=lambda profile, facts: Verdict(False, "no")),
        row("linear", "plain", "", priority=-1),
        told=lambda done, count, name: told.append((done, count)),
    )
    assert [target.device.label for target in found] == ["toy:sm_80", "toy:sm_90"]
    for target in found:
        assert names(target) == {
            f"linear_{which} rows={rows}": [f"linear/{which}"] for which in ("first", "second") for rows in (16, 64)
        }
        assert not target.problems and len(target.made) == 4
    assert told == [(done, 4) for done in (1, 2, 3, 4)] and clean(found)


def test_two_devices_of_one_arch_are_one_only_where_their_units_are_the_same():
    assert [target.device.label for target in on(row("linear", "first"), targets=("sm_80", "sm_80"))] == ["toy:sm_80"]
    plugin = CpuPlugin()
    devices = [Device(f"cpu:{name}", plugin, plugin.targets()[name], False) for name in ("x86-64-v4", "amx", "amx")]
    found = targets_of(devices, LLAMA, {}, {})
    assert [target.device.label for target in found] == ["cpu:x86-64-v4", "cpu:amx"]


def test_weights_are_those_that_a_row_has_packed():
    (found,) = on(row("linear", "turned", "build_packed", pack=f"{HERE}:packed"), targets=("sm_90",))
    assert not found.problems and len(found.units.rows) == 2


def test_what_breaks_is_a_problem_of_its_device_and_the_rest_goes_on():
    rows = row("linear", "fine"), row("rms_norm", "broken", "build_broken"), row("embedding", "none", "build_nothing")
    (found,) = on(*rows, targets=("sm_90",))
    assert found.problems == [
        f"embedding/none names no units of work for cuda:sm_90 (build {HERE}:build_nothing): "
        "ValueError: a tile of no size",
        "broken: cannot be made: RuntimeError: no such instruction",
    ]
    assert not clean([found]) and "linear_fine rows=16" in names(found)
    text = render([found], ["platform x is left out"], 80, False)
    assert "2 problems" in text and "problem  broken: cannot be made" in text and "left out" in text
    assert all(len(line) <= 80 for line in text.splitlines() if HERE not in line)
    assert json.loads(json.dumps(found.to_json()))["problems"] == found.problems


def test_a_device_without_rows_that_are_built_is_left_out():
    assert on(row("linear", "plain", "")) == []


def test_processes_share_the_work_and_one_does_it_all():
    units = [Unit(f"u{at}", "toy", at == 3) for at in range(7)]
    one, two = (dict(make_all(units, processes)) for processes in (1, 2))
    assert one == two and set(one) == set(units)
    assert one[units[3]]["problems"] == ("cannot be made: RuntimeError: no such instruction",)


def test_all_devices_are_asked_for_by_that_word_and_by_none():
    given = {}, {"platform": Given("all", "command line")}
    one, other = ([device.profile for device in asked_for(words)[0]] for words in given)
    assert one == other and {profile.arch for profile in one} >= {"sm_90", "gfx942"}
    (one,), _ = asked_for({"platform": Given("cpu", "command line")})
    assert one.present and one.label == "cpu"
    several, _ = asked_for({"platform": Given("cuda", "command line")})
    assert len(several) > 1 or several[0].present
    one, _ = asked_for({"platform": Given("cuda:sm_90", "command line")})
    assert [device.profile.arch for device in one] == ["sm_90"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["kernels"], "engine kernels takes report"),
        (["kernels", "sort"], "found sort"),
        (
            ["kernels", "report", "--platform", f"{HERE}:Bare"],
            "none of its rows has a build: Kernel(..., build=",
        ),
        (["kernels", "report", "--nonsense"], "--nonsense"),
        (["kernels", "report", "--out", "x"], "--out: only `engine kernels build` takes it"),
    ],
)
def test_what_cannot_be_answered_says_so_with_code_2(words, said, capsys):
    assert main(words) == 2
    assert said in capsys.readouterr().err


class Bare(Stranger):
    """The active platform without rows."""

    name, api, kind = SELECTION.plugin.name, SELECTION.plugin.api, SELECTION.plugin.kind


class Stream:
    def __init__(self, terminal):
        self.text, self.terminal = "", terminal

    def isatty(self):
        return self.terminal

    def write(self, text):
        self.text += text

    def flush(self):
        pass


def test_progress_is_one_line_where_a_person_sees_it_and_a_line_for_each_tenth_elsewhere():
    seen, piped = Stream(True), Stream(False)
    for stream in (seen, piped):
        kernel_report.phases(stream)("planning for toy:one")
        told = kernel_report.progress(stream)
        for done in range(1, 101):
            told(done, 100, "linear")
    assert "1/100 linear" in seen.text and "\n" not in seen.text and seen.text.endswith("\x1b[2K")
    first, *tenths = piped.text.splitlines()
    assert first == "planning for toy:one" and "\x1b" not in piped.text
    assert [line.split()[0] for line in tenths] == [f"{done}/100" for done in range(10, 101, 10)]


def test_every_device_and_the_work_are_said():
    said = []
    plugin = Plugin()
    plugin.rows = (row("linear", "fine"),)
    devices = [Device(f"toy:{name}", plugin, plugin.targets()[name], False) for name in ("sm_80", "sm_90")]
    make(targets_of(devices, LLAMA, {}, {}, said=said.append), said=said.append)
    assert said == ["planning for toy:sm_80", "planning for toy:sm_90", "compiling 2 kernels for 2 devices"]


def test_rows_of_the_sampler_are_made_too():
    (found,) = on(row("penalize", "p", "build_sampling"), row("draw", "d", "build_sampling"), targets=("sm_90",))
    assert not found.problems
    assert names(found) == {"penalize_p": ["penalize/p"], "draw_d": ["draw/d"]}


@pytest.mark.parametrize("width", [80, 100, 200])
def test_names_of_kernels_are_whole_and_figures_are_explained(width):
    rows = row("linear", "fine"), row("rms_norm", "long", "build_long"), row("embedding", "none", "build_nothing")
    (found,) = on(*rows, targets=("sm_90",))
    lines = render([found], [], width, False).splitlines()
    assert any(LONG_NAME in line.split() for line in lines)
    assert all(len(line) <= width or HERE in line for line in lines)
    text = " ".join(" ".join(lines).split())
    for words in ("scalar spills: kept in vector registers (no problem)", "load: bits of", "~ after a type: a tensor"):
        assert words in text
    assert (f"{LONG_NAME} " in text.partition("problem")[0]) and "1 device, 1 problem" in text


def test_one_kernel_is_one_kernel():
    (found,) = on(row("rms_norm", "long", "build_long"), targets=("sm_90",))
    assert render([found], [], 80, False).splitlines()[-1] == "1 kernel on 1 device, no problems"


INTERRUPTED = """
import os, signal, sys, threading, time
from engine.cli import main, pull
from engine.kernels.units import make_all
from tests.anydevice.test_kernel_report import Slow
def work(words):
    def press():
        time.sleep({seconds})
        os.killpg(0, signal.SIGINT)
    threading.Thread(target=press, daemon=True).start()
    for _ in make_all([Slow(f"u{{at}}") for at in range(40)], 2):
        pass
pull.run = work
sys.exit(main(["pull", "x"]))
"""


def running(group):
    """Processes of a group that have not ended."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, number, *_ = file.read_text().rpartition(")")[2].split()
            if int(number) == group and state != "Z":
                found.append(file.parent.name)
    return found


@pytest.mark.parametrize("seconds", [0.05, 0.4, 2.5])
def test_ctrl_c_ends_all_processes_without_a_word(seconds, tmp_path):
    """As a terminal presses it: for the whole group, whatever the workers are doing."""
    command = [sys.executable, "-c", INTERRUPTED.format(seconds=seconds)]
    variables = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    child = subprocess.Popen(command, cwd=ROOT, env=variables, text=True, start_new_session=True, **pipes)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out, err) == (130, "", "")
    assert not list(tmp_path.iterdir())
    end = time.monotonic() + 20
    while group := running(child.pid):
        assert time.monotonic() < end, group
        time.sleep(0.05)


def test_a_profile_without_shared_memory_is_said_by_name_of_row_device_and_limit():
    pytest.importorskip("triton")
    from kernels_triton.build import build as triton_build

    profile = replace(CudaPlugin().targets()["sm_90"], limits={})
    with pytest.raises(LookupError, match="profile cuda:sm_90 has no limit shared_memory"):
        triton_build(profile, "kernels_triton.rows:rms_norm", [], {})
    plugin = Plugin()
    plugin.rows = tuple(row(op, "first", "build_limited") for op in ("rms_norm", "linear", "draw"))
    (found,) = report([Device("toy:sm_90", plugin, profile, False)], LLAMA, {}, {})
    why = f"no units of work for cuda:sm_90 (build {HERE}:build_limited): KeyError: 'shared_memory'"
    assert found.problems == [f"rms_norm/first, linear/first and draw/first name {why}"]
    plan = plan_for(plugin, profile, LLAMA, {}, environment={})
    with pytest.raises(UserError, match=f"linear/first and draw/first name {re.escape(why)}"):
        write_bundle(Path("never-made"), plan, plugin.rows, all_ops(RULES))
