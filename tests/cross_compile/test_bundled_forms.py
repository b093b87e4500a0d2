"""Bundles of real kernels: a launch on the device they were made for finds every form, and compiles nothing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from engine.bundle import Bundle, open_bundle, write_bundle
from engine.errors import UserError
from engine.fusion import RULES, all_ops
from engine.kernels.bundle_folder import MANIFEST
from engine.kernels.units import Step, willing
from engine.ops import Spec
from engine.plan import Observations, Plan, Tables, make_plan, model_facts
from kernels_triton import bundle as made_by
from kernels_triton.forms import without_data
from kernels_triton.launch import assume, recording
from kernels_triton.manifest import ROWS
from kernels_triton.target import target_of
from platforms.contract import DeviceProfile
from tests.described_plans import described
from tests.profiles import MODEL, given

OPS = all_ops(RULES)
STEPS = (Step(1, 1), Step(16, 16))
TARGETS = [("cuda", "sm_90"), ("rocm", "gfx942")]
ROWS_HERE = tuple(row for row in ROWS if row.op in ("rms_norm", "silu_and_mul"))
ROOT = str(Path(__file__).parents[2])
OWN = frozenset({"kernels_triton"})


class Driver:
    """A device that is not there: enough for Triton to look a kernel up."""

    def __init__(self, arch: str) -> None:
        self._target = target_of(arch)

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def planned(profile: DeviceProfile) -> Plan:
    values = given(compilation__mode="NONE", model__dtype="bfloat16")
    return make_plan(profile, model_facts(MODEL), values, Tables(ROWS_HERE), Observations())


def launches(plan: Plan) -> list[tuple[Any, ...]]:
    """What the plan's rows launch in ``STEPS``."""
    found: list[tuple[Any, ...]] = []
    for _, row, call, specs in willing(plan, ROWS_HERE, chosen=True):
        module, name = row.target.split(":")
        function = getattr(__import__(module, fromlist=[name]), name)
        for step in STEPS:
            sized = [Spec(spec.dtype, tuple(map(step.size, spec.shape))) for spec in specs]
            with assume(plan.profile.arch), recording(lambda *launch: found.append(launch)), torch.inference_mode():
                function(*map(without_data, sized), **call.attributes)
    return found


def look_up(launch: tuple[Any, ...]) -> Any:
    """As a launch does, up to the point where the device would get the kernel."""
    kernel, grid, values, warps, stages, constants = launch
    return kernel.run(*values, grid=grid, warmup=True, num_warps=warps, num_stages=stages, **constants)


@pytest.fixture(scope="module", params=TARGETS, ids=lambda target: target[1])
def made(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Plan]:
    plan = planned(described(*request.param))
    folder = tmp_path_factory.mktemp("made") / "bundle"
    written = write_bundle(folder, plan, ROWS_HERE, OPS, steps=STEPS)
    assert written.forms >= 2 and not written.problems
    return folder, plan


@pytest.fixture
def device(made: tuple[Path, Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The absent device as the active one, with an empty cache, and kernels that were never launched."""
    arch = made[1].profile.arch
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(triton.runtime.driver, "_active", Driver(arch))
    for launch in launches(made[1]):
        launch[0].device_caches.clear()
    yield arch
    made_by.uninstall()
    for launch in launches(made[1]):
        launch[0].device_caches.clear()


def opened(folder: Path, plan: Plan, required: bool = True) -> Bundle:
    found = open_bundle(str(folder), plan.profile, ROWS_HERE, required)
    assert found is not None
    return found


def test_every_launch_of_the_plan_finds_its_form_and_nothing_is_compiled(
    made: tuple[Path, Plan], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, plan = made
    bundle = opened(folder, plan)

    def forbidden(*_: Any, **__: Any) -> Any:
        raise AssertionError("a kernel was compiled")

    monkeypatch.setattr(triton.compiler.ASTSource, "make_ir", forbidden)
    wanted = launches(plan)
    kernels = [look_up(launch) for launch in wanted]
    assert wanted and all(kernel.kernel for kernel in kernels)
    (found,) = bundle.installed
    assert found.hits and not found.misses and not found.problems
    bundle.check()


def test_a_form_that_is_missing_is_named_with_its_types(made: tuple[Path, Plan], device: str) -> None:
    bundle = opened(*made)
    kernel, grid, values, warps, stages, constants = launches(made[1])[0]
    with pytest.raises(RuntimeError, match=rf"{kernel.__name__}\(.*\*bf16.*warps={warps * 2}.*not in the bundle"):
        look_up((kernel, grid, values, warps * 2, stages, constants))
    with pytest.raises(UserError, match=r"\*bf16"):
        bundle.check()


def test_damaged_code_is_a_miss(made: tuple[Path, Plan], device: str, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    folder.mkdir()
    for file in made[0].iterdir():
        damaged = file.suffix in (".cubin", ".hsaco")
        (folder / file.name).write_bytes(b"no code" if damaged else file.read_bytes())
    found = opened(folder, made[1])
    assert found.forms == 0 and all("damaged" in problem for problem in found.installed[0].problems)


def test_another_source_of_a_kernel_is_another_form(made: tuple[Path, Plan], device: str, tmp_path: Path) -> None:
    body = json.loads((made[0] / MANIFEST).read_text())
    entries = [{**entry, "source": "0" * 64} for entry in body["forms"]]
    found = made_by.install(made[0], device, entries, False, OWN)
    assert not found.places and all("another one now" in problem for problem in found.problems)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"warps": 3}, "3 warps"),
        ({"warps": 0}, "0 warps"),
        ({"warps": 10**30}, "warps"),
        ({"warps": [4]}, "TypeError"),
        ({"files": {}}, "0 files"),
        ({"kernel": "this:x"}, "this has no kernels of this platform"),
        ({"constants": [["KIND", {"type": "bf17"}]]}, "form|bf17|KIND"),
        ({"signature": 4}, "TypeError"),
    ],
)
def test_a_damaged_entry_is_a_problem_and_imports_nothing(
    made: tuple[Path, Plan], device: str, change: dict[str, Any], said: str
) -> None:
    body = json.loads((made[0] / MANIFEST).read_text())
    found = made_by.install(made[0], device, [{**body["forms"][0], **change}], False, OWN)
    assert not found.places and re.search(said, found.problems[0])
    assert "this" not in sys.modules


def test_constants_that_are_types_come_back_as_such() -> None:
    entry = {"kernel": "a:b", "signature": [], "near": [], "warps": 4, "stages": 1}
    constants = [["KIND", made_by._plain(tl.bfloat16)], ["SIZE", 4], ["NAME", "silu"], ["NONE", None]]
    form = made_by.form_from({**entry, "constants": json.loads(json.dumps(constants))})
    assert form.constants == (("KIND", tl.bfloat16), ("SIZE", 4), ("NAME", "silu"), ("NONE", None))


def test_nothing_in_it_names_the_machine_that_made_it(made: tuple[Path, Plan]) -> None:
    places = [ROOT.encode(), str(made[0].parent).encode(), sys.prefix.encode(), str(Path.home()).encode()]
    for file in made[0].iterdir():
        content = file.read_bytes()
        assert not [place for place in places if len(place) > 5 and place in content], file
    body = json.loads((made[0] / MANIFEST).read_text())
    assert body["plan"] == made[1].hash and body["compilers"] == {"kernels_triton.build:build": made_by.compiler()}
    fields = {"signature", "constants", "options", "resources", "files", "kernel"}
    assert all(fields <= set(entry) for entry in body["forms"])


@pytest.mark.parametrize("target", ["cuda:sm_90", "rocm:gfx90a"])
def test_the_command_makes_one(target: str, tmp_path: Path) -> None:
    """With attention of a library, and with our own."""
    words = ["kernels", "build", "--platform", target, "--dtype=bfloat16", "--max-num-batched-tokens=1"]
    words += ["--max-num-seqs=1", "--max-model-len=64", "--json", "--out", str(tmp_path / "bundle")]
    made = subprocess.run([sys.executable, "-m", "engine", *words], capture_output=True, text=True, cwd=ROOT)
    assert made.returncode == 0, made.stderr
    answer = json.loads(made.stdout)
    assert answer["forms"] == len(json.loads((tmp_path / "bundle" / MANIFEST).read_text())["forms"]) > 0
    assert answer["arch"] == target.partition(":")[2] and not answer["problems"]
