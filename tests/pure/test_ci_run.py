"""Running a row: the device is checked first, tiers are counted, what did not run is never a pass."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ci import tiers
from ci.device import ABSENT, DIFFERENT, MATCHES, compare
from ci.matrix import ROOT, Row, find_row, read_matrix
from ci.run import run_row
from ci.tiers import Tier, run_tier
from engine.errors import UserError
from platforms.contract import PlatformPlugin, Probe
from platforms.cpu.plugin import CpuPlugin
from platforms.cuda.plugin import CudaPlugin
from platforms.discovery import Candidate
from platforms.rocm.plugin import RocmPlugin

PLUGINS = {"cpu": CpuPlugin(), "cuda": CudaPlugin(), "rocm": RocmPlugin()}
ROWS = {row.name: row for row in read_matrix()}
ROW = Row("box", "cuda", "sm_90", ("x",), "x:1", ("pure", "anydevice", "device", "bench"), products=("H100",))
FAKES = (
    Tier("pure", "pure", device=False),
    Tier("anydevice", "any"),
    Tier("device", "dev/{platform}"),
    Tier("bench", "bench.py", words=("--x",)),
)


def machine(**targets: str) -> tuple[Candidate, ...]:
    """What discovery says where these devices are: ``cuda="sm_90"``, or ``"sm_90 PRODUCT"``, or an error ``"!..."``."""
    rows = []
    for name, plugin in PLUGINS.items():
        text, source, kind = targets.get(name, ""), f"platforms.{name}", plugin.kind
        if text.startswith("!"):
            rows.append(Candidate(name, source, kind, error=text[1:]))
            continue
        target, _, product = text.partition(" ")
        profiles = []
        if target:
            profile = plugin.targets()[target]
            profiles = [dataclasses.replace(profile, product=product or profile.product)]
        probe = Probe(tuple(profiles), (f"{name} was asked",))
        rows.append(Candidate(name, source, kind, probe, plugin=plugin))
    return tuple(rows)


HERE = machine(cpu="x86-64-v4", cuda="sm_90")
NONE = machine(cpu="x86-64-v4")


def tree(root: Path, **texts: str) -> Path:
    """Tiers that pass, except where a text is given."""
    passing = "def test_a(): pass\ndef test_b(): pass\n"
    files = {"pure": "pure/test_p.py", "any": "any/test_a.py", "device": "dev/cuda/test_d.py", "bench": "bench.py"}
    for name, file in files.items():
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        default = "import sys; assert sys.argv[1:] == ['--x']" if name == "bench" else passing
        path.write_text(texts.get(name, default))
    return root


@pytest.fixture(autouse=True)
def without_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of this machine double the time that a pytest takes to start."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


Go = Callable[..., tuple[int, dict[str, dict[str, object]], str]]


@pytest.fixture
def go(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Go:
    """Run ``ROW`` in a tree; gives the exit code, the outcome of each tier, and what was printed."""

    def run(candidates: tuple[Candidate, ...], row: Row = ROW, *, texts: dict[str, str] | None = None, **options):
        report = tmp_path / "report.json"
        root = tree(tmp_path / "tree", **(texts or {}))
        code = run_row(row, candidates, tiers=FAKES, root=root, report=report, **options)
        body = json.loads(report.read_text())
        assert body["exit"] == code and body["row"]["name"] == row.name
        return code, {outcome["tier"]: outcome for outcome in body["tiers"]}, capfd.readouterr().out

    return run


def states(outcomes: dict[str, dict[str, object]]) -> list[object]:
    return [outcome["state"] for outcome in outcomes.values()]


def test_a_row_that_passes(go: Go) -> None:
    code, outcomes, said = go(HERE)
    assert code == 0 and list(outcomes) == list(ROW.tiers) and set(states(outcomes)) == {"passed"}
    assert [outcome["tests"] for outcome in outcomes.values()] == [2, 2, 2, None]
    assert "names cuda:sm_90 (H100); found here: cpu:x86-64-v4" in said and "NVIDIA H100" in said
    assert "row box: passed" in said and "not run" not in said


def test_the_platform_reaches_the_tiers_that_need_it_and_no_other(go: Go, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENGINE_PLATFORM", raising=False)
    wants = "import os\ndef test_a(): assert os.environ.get('ENGINE_PLATFORM') == {}\n"
    texts = {"pure": wants.format(None), "any": wants.format("'cuda'"), "device": wants.format("'cuda'")}
    code, _, _ = go(HERE, texts=texts | {"bench": "import os; assert os.environ['ENGINE_PLATFORM'] == 'cuda'"})
    assert code == 0


@pytest.mark.parametrize(
    ("candidates", "state", "why"),
    [
        (NONE, ABSENT, "cuda has no device here: cuda was asked"),
        (machine(cpu="x86-64-v4", cuda="!NVML hangs"), ABSENT, "the platform cuda broke: NVML hangs"),
        (NONE[:1], ABSENT, "no platform cuda is installed"),
        (machine(cpu="x86-64-v4", cuda="sm_100"), DIFFERENT, "the arch is sm_100, not sm_90"),
        (machine(cpu="x86-64-v4", cuda="sm_90 NVIDIA H200"), DIFFERENT, "the product is 'NVIDIA H200', not H100"),
        (machine(cpu="x86-64-v4", cuda="sm_90 NVIDIA GH1000"), DIFFERENT, "the product is 'NVIDIA GH1000'"),
        (machine(cpu="x86-64-v4", rocm="gfx942"), DIFFERENT, "cuda has no device here"),
    ],
)
def test_nothing_runs_without_the_named_device(go: Go, candidates: tuple[Candidate, ...], state: str, why: str) -> None:
    assert compare(ROW, candidates).state == state
    code, outcomes, said = go(candidates)
    assert code == 3 and set(states(outcomes)) == {"not run"} and "== pure" not in said
    assert f"device {state}: {why}" in said and "cuda:sm_90 (H100)" in said and "cpu:x86-64-v4" in said
    assert "--without-device runs this tier" in str(outcomes["pure"]["reason"])


@pytest.mark.parametrize("candidates", [NONE, machine(cpu="x86-64-v4", cuda="sm_100")])
def test_without_device_the_rest_runs_and_the_others_are_said_last(go: Go, candidates: tuple[Candidate, ...]) -> None:
    code, outcomes, said = go(candidates, without_device=True)
    assert code == 0 and states(outcomes) == ["passed", "not run", "not run", "not run"]
    assert [line.split(":")[:2] for line in said.splitlines()[-3:]] == [
        ["not run", " anydevice"],
        ["not run", " device"],
        ["not run", " bench"],
    ]
    assert ("device different: the arch is sm_100" in said) == (candidates is not NONE)


def test_without_device_a_failure_is_still_one_and_nothing_run_is_no_pass(go: Go) -> None:
    code, outcomes, _ = go(NONE, without_device=True, texts={"pure": "def test_a(): assert 0"})
    assert code == 1 and outcomes["pure"]["state"] == "failed"
    code, outcomes, said = go(NONE, without_device=True, only=["device"])
    assert code == 3 and list(outcomes) == ["device"] and "row box: failed" in said


def test_without_device_changes_nothing_where_the_device_is(go: Go) -> None:
    code, outcomes, _ = go(HERE, without_device=True, only=["device"])
    assert code == 0 and states(outcomes) == ["passed"]


@pytest.mark.parametrize(
    ("text", "tests", "said"),
    [
        ("import pytest\n@pytest.mark.skip\ndef test_a(): pass\n", 0, "no test ran, 1 skipped"),
        ("import pytest\npytest.skip('no', allow_module_level=True)\n", 0, "no test ran, 1 skipped"),
        ("x = 1\n", 0, "no test ran"),
        ("def test_a(): assert 0\ndef test_b(): pass\n", 2, "pytest exited with 1"),
        ("import absent_module\n", 0, "pytest exited with 2"),
        ("import pytest\ndef test_a(): pytest.exit('no device', returncode=3)\n", 0, "pytest exited with 3"),
        ("import pytest\ndef test_a(): pytest.exit('done', returncode=0)\n", 0, "no test ran"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n", 0, "pytest was ended by SIGKILL"),
        ("import os\nos._exit(0)\n", 0, "no report"),
        ("def test_a(): pass\ndef test_b(): import os; os._exit(0)\n", 0, "no report"),
        ("import os, pytest\n@pytest.fixture\ndef x(): 1/0\ndef test_a(x): pass\n", 0, "pytest exited with 1"),
    ],
)
def test_a_tier_that_ran_no_test_or_ended_badly_has_failed(tmp_path: Path, text: str, tests: int, said: str) -> None:
    outcome = run_tier(FAKES[2], "cuda", tree(tmp_path, device=text))
    assert (outcome.state, outcome.tests) == ("failed", tests) and said in outcome.reason


def test_one_failure_fails_the_row_and_the_other_tiers_run(go: Go) -> None:
    text = "import pytest\n@pytest.mark.skip\ndef test_a(): pass\n"
    code, outcomes, said = go(HERE, texts={"device": text, "bench": "raise SystemExit(7)"})
    assert code == 1 and states(outcomes) == ["passed", "passed", "failed", "failed"]
    assert "failed: device: no test ran, 1 skipped\nfailed: bench: bench.py exited with 7\n" in said
    assert "row box: failed, exit code 1" in said


def test_skipped_tests_are_counted_apart(tmp_path: Path) -> None:
    text = "import pytest\n@pytest.mark.skip\ndef test_a(): pass\ndef test_b(): pass\n"
    outcome = run_tier(FAKES[2], "cuda", tree(tmp_path, device=text))
    assert (outcome.state, outcome.tests, outcome.skipped) == ("passed", 1, 1)


def test_a_listed_tier_with_nothing_to_run_has_failed(tmp_path: Path) -> None:
    for tier in FAKES:
        outcome = run_tier(tier, "cuda", tmp_path)
        assert outcome.state == "failed" and "nothing to run" in outcome.reason


def test_only_some_tiers_in_the_order_of_the_table(go: Go) -> None:
    code, outcomes, _ = go(HERE, only=["device", "pure"])
    assert code == 0 and list(outcomes) == ["pure", "device"]
    with pytest.raises(UserError, match="row box has no tier cross-compile; it has pure, anydevice"):
        run_row(ROW, HERE, only=["cross-compile"], tiers=FAKES)


def test_a_report_that_cannot_be_written_is_said_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        run_row(ROW, HERE, report=tmp_path / "absent" / "r.json", tiers=FAKES, root=tmp_path)


def test_a_target_that_nobody_describes_is_refused() -> None:
    with pytest.raises(UserError, match="cuda describes no target sm_91; there are sm_100"):
        run_row(dataclasses.replace(ROW, target="sm_91"), HERE)


@pytest.mark.parametrize(
    ("name", "candidates", "state"),
    [
        ("h200", machine(cuda="sm_90 NVIDIA H200 NVL"), MATCHES),
        ("h100", machine(cuda="sm_90 NVIDIA H200 NVL"), DIFFERENT),
        ("h100", machine(cuda="sm_90 NVIDIA H100 80GB HBM3 MIG 1g.10gb"), MATCHES),
        ("h100", machine(cuda="sm_90 unknown"), DIFFERENT),
        ("rtx-blackwell", machine(cuda="sm_120 NVIDIA GeForce RTX 5090"), MATCHES),
        ("rtx-blackwell", machine(cuda="sm_120"), MATCHES),
        ("mi300x", machine(rocm="gfx942"), MATCHES),
        ("mi300x", machine(rocm="gfx942 AMD Instinct MI325X"), DIFFERENT),
        ("mi355x", machine(rocm="gfx950"), MATCHES),
        ("cpu-x86-64-v3", machine(cpu="x86-64-v3", cuda="sm_90"), MATCHES),
        ("cpu-x86-64-v3", machine(cpu="x86-64-v4"), DIFFERENT),
        ("cpu-x86-64-v4", machine(cpu="amx"), MATCHES),
        ("cpu-arm64", machine(cpu="armv8.2"), MATCHES),
        ("cpu-arm64", machine(cpu="x86-64-v4"), DIFFERENT),
    ],
)
def test_the_rows_of_the_matrix_know_their_device(name: str, candidates: tuple[Candidate, ...], state: str) -> None:
    assert compare(ROWS[name], candidates).state == state


@pytest.mark.parametrize("name", ROWS)
def test_every_row_matches_its_own_described_device(name: str) -> None:
    row = find_row(tuple(ROWS.values()), name)
    product = f" NVIDIA {row.products[0]}" if row.products else ""
    assert compare(row, machine(**{row.platform: row.target + product})).state == MATCHES


def test_newer_arm_processors_are_arm64_too() -> None:
    plugin: PlatformPlugin = PLUGINS["cpu"]
    profile = dataclasses.replace(plugin.targets()["armv8.2"], arch="armv9")
    found = compare(ROWS["cpu-arm64"], [Candidate("cpu", "x", "host", Probe((profile,)), plugin=plugin)])
    assert found.state == MATCHES


def test_more_devices_of_a_platform_are_said() -> None:
    profile = CudaPlugin().targets()["sm_90"]
    found = compare(ROW, [Candidate("cuda", "x", "accelerator", Probe((profile, profile)), plugin=PLUGINS["cuda"])])
    assert found.state == MATCHES and "and 1 more, of which the first counts" in found.found


SLOW = """
import os, subprocess, sys, time
def test_a():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    open("pids.tmp", "w").write(f"{os.getpid()} {child.pid}")
    os.rename("pids.tmp", "pids")
    time.sleep(600)
"""


def alive(pid: int) -> bool:
    """A process that has ended and that nobody asked about is not."""
    try:
        os.kill(pid, 0)
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return False


def wait_gone(pids: list[int]) -> None:
    end = time.monotonic() + 20
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < end, pids
        time.sleep(0.05)


def test_a_tier_whose_time_is_over_has_failed_and_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree(tmp_path, bench=f"import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n{SLOW}\ntest_a()\n")
    monkeypatch.setattr(tiers, "PATIENCE", 0.2)
    outcome = run_tier(FAKES[3], "cuda", root, time.monotonic() + 4)
    assert (outcome.state, outcome.reason) == ("failed", "the row's time was over")
    wait_gone([int(pid) for pid in (root / "pids").read_text().split()])
    late = run_tier(FAKES[1], "cuda", root, time.monotonic() - 1)
    assert (late.state, late.seconds, late.reason) == ("failed", 0, "the row's time was over")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_ends_what_runs_and_says_how_far_it_came(tmp_path: Path, number: int, code: int) -> None:
    root = tree(tmp_path, any=SLOW)
    program = (
        "import sys; from pathlib import Path; from tests.pure.test_ci_run import FAKES, HERE, ROW; "
        "from ci.run import run_row; root = Path(sys.argv[1]); "
        "sys.exit(run_row(ROW, HERE, tiers=FAKES, root=root, report=root / 'r.json'))"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(root)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    end = time.monotonic() + 60
    while not (root / "pids").exists():
        assert child.poll() is None and time.monotonic() < end
        time.sleep(0.05)
    child.send_signal(number)
    said, _ = child.communicate(timeout=30)
    assert child.returncode == code, said
    body = json.loads((root / "r.json").read_text())
    assert [tier["state"] for tier in body["tiers"]] == ["passed", "not run", "not run", "not run"]
    assert body["exit"] == code and "not run: anydevice: interrupted" in said
    wait_gone([int(pid) for pid in (root / "pids").read_text().split()])
