"""A bundle of kernels: what is written, and what a start makes of one that fits, does not fit, or is damaged."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from engine.bundle import open_bundle, steps_for, write_bundle
from engine.errors import UserError
from engine.fusion import RULES, all_ops
from engine.graphs.space import table_width
from engine.kernels.bundle_folder import MANIFEST
from engine.plan import Plan
from platforms.contract import Kernel
from tests.profiles import DEVICE, TABLES, Tables, plan

ROOT = str(Path(__file__).parents[2])
VERSION = ["Toy compiler 1.0"]
MISSED: list[str] = []
ROW = Kernel("silu_and_mul", "toy", f"{__name__}:run", priority=1, build=f"{__name__}:build")
OPS = all_ops(RULES)


@dataclass(frozen=True)
class Unit:
    name: str

    def make(self) -> dict[str, Any]:
        return {"figures": {}, "problems": ()}

    def save(self, folder: Path) -> dict[str, Any]:
        if self.name == "bad":
            raise RuntimeError("no registers left\nand more")
        (folder / self.name).write_text(self.name)
        return {"kernel": self.name, "files": {self.name: hashlib.sha256(self.name.encode()).hexdigest()}}


def run(x: Any) -> Any:
    return x


def build(profile: Any, target: str, tensors: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[Unit, ...]:
    return (Unit(f"rows{min(tensors[0].shape[0], 16)}"), Unit("bad"))


def compiler() -> str:
    return VERSION[0]


class Found:
    def __init__(self, folder: Path, entries: Sequence[Mapping[str, Any]]) -> None:
        self.misses = MISSED
        self.problems = [
            f"{name} is damaged"
            for entry in entries
            for name, wanted in entry["files"].items()
            if hashlib.sha256((folder / name).read_bytes()).hexdigest() != wanted
        ]


def install(
    folder: Path, arch: str, entries: Sequence[Mapping[str, Any]], required: bool, packages: frozenset[str]
) -> Found:
    assert arch == DEVICE.arch and packages == {__name__.split(".")[0]}
    return Found(folder, entries)


@pytest.fixture(autouse=True)
def fresh() -> None:
    VERSION[0] = "Toy compiler 1.0"
    MISSED.clear()


def planned(**values: Any) -> Plan:
    return plan(Tables((ROW,), TABLES.fusions), **values)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    folder = tmp_path / "bundle"
    written = write_bundle(folder, planned(), (ROW,), OPS)
    assert written.forms > 1 and written.problems == ["bad: RuntimeError: no registers left"]
    return folder


def test_the_manifest_carries_compiler_arch_plan_and_files_and_no_place(made: Path) -> None:
    body = json.loads((made / MANIFEST).read_text())
    assert (body["arch"], body["plan"]) == (DEVICE.arch, planned().hash)
    assert body["compilers"] == {ROW.build: "Toy compiler 1.0"}
    names = {entry["kernel"] for entry in body["forms"]}
    assert {"rows1", "rows2", "rows8", "rows16"} <= names == {file.name for file in made.iterdir()} - {MANIFEST}
    assert str(made.parent) not in (made / MANIFEST).read_text()


def test_one_that_fits_is_used_and_counted(made: Path) -> None:
    bundle = open_bundle(str(made), DEVICE, (ROW,), True)
    assert bundle is not None and bundle.forms and bundle.rows()[0].value == f"{bundle.forms} forms"
    bundle.check()


def test_none_was_asked_for() -> None:
    assert open_bundle(None, DEVICE, (ROW,), True) is None


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("arch", "arch-9", "made for {here}:arch-9, the device is {here}:arch-1"),
        ("platform", "another", "made for another:arch-1, the device is {here}:arch-1"),
        ("forms", [], "it holds no forms"),
        ("compilers", {}, "it holds no forms"),
        ("format", 99, "its format is 99"),
        ("compilers", {"os:system": "x"}, "no kernel of this platform is made by os:system"),
    ],
)
def test_one_for_something_else_is_one_line_or_under_force_an_error(
    made: Path, field: str, value: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    said = said.format(here=DEVICE.platform)
    body = json.loads((made / MANIFEST).read_text())
    (made / MANIFEST).write_text(json.dumps(body | {field: value}))
    assert open_bundle(str(made), DEVICE, (ROW,), False) is None
    assert said in caplog.text and len(caplog.records) == 1
    with pytest.raises(UserError, match=f"ENGINE_FORCE_AOT_LOAD.*{said}"):
        open_bundle(str(made), DEVICE, (ROW,), True)


def test_a_platform_that_compiles_nothing_is_not_said_to_compile_anew(
    made: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nothing, elsewhere = replace(ROW, build=""), replace(DEVICE, arch="arch-9")
    assert open_bundle(str(made), elsewhere, (nothing,), False) is None
    (record,) = caplog.records
    assert "compiled" not in record.getMessage()
    assert "no kernel of this platform comes from a bundle" in record.getMessage()
    with pytest.raises(UserError, match="drop --kernel-bundle"):
        open_bundle(str(made), elsewhere, (nothing,), True)
    assert open_bundle(str(made), elsewhere, (ROW,), False) is None
    assert "kernels are compiled anew" in caplog.text


def test_another_version_compiles_anew_with_a_line_that_names_both(
    made: Path, caplog: pytest.LogCaptureFixture
) -> None:
    VERSION[0] = "Toy compiler 2.0"
    with caplog.at_level(logging.WARNING, "engine"):
        assert open_bundle(str(made), DEVICE, (ROW,), False) is None
    (record,) = caplog.records
    assert "made by Toy compiler 1.0, here is Toy compiler 2.0" in record.getMessage()
    with pytest.raises(UserError, match=r"Toy compiler 1\.0, here is Toy compiler 2\.0"):
        open_bundle(str(made), DEVICE, (ROW,), True)


def test_damaged_files_are_a_miss_with_one_warning(made: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = open_bundle(str(made), DEVICE, (ROW,), False)
    (made / "rows1").write_text("something else")
    (made / "rows2").write_text("something else")
    bundle = open_bundle(str(made), DEVICE, (ROW,), False)
    assert bundle is not None and whole is not None and bundle.forms == whole.forms - 2
    (record,) = caplog.records
    assert "2 of" in record.getMessage() and "damaged" in record.getMessage()


def test_a_miss_under_force_names_the_kernel(made: Path) -> None:
    loose, forced = (open_bundle(str(made), DEVICE, (ROW,), required) for required in (False, True))
    MISSED.append("row_kernel(x: *bf16) warps=4")
    assert loose is not None and forced is not None
    loose.check()
    assert "1 more compiled here" in loose.rows()[0].value
    with pytest.raises(UserError, match=r"row_kernel\(x: \*bf16\) warps=4 is not in the bundle"):
        forced.check()


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"format": 1}', b'{"forms": [1]}'])
def test_a_manifest_that_is_none_is_refused(made: Path, content: bytes) -> None:
    (made / MANIFEST).write_bytes(content)
    with pytest.raises(UserError, match="--kernel-bundle"):
        open_bundle(str(made), DEVICE, (ROW,), False)


def test_a_folder_without_one_is_refused_and_one_of_something_else_is_not_emptied(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="engine kernels build"):
        open_bundle(str(tmp_path), DEVICE, (ROW,), False)
    (tmp_path / "thesis").write_text("years of work")
    with pytest.raises(UserError, match="something else"):
        write_bundle(tmp_path, planned(), (ROW,), OPS)
    assert (tmp_path / "thesis").read_text() == "years of work"


@pytest.mark.parametrize("content", ['{"name": "my web app"}', '{"format": 1, "forms": [{"build": "x"}]}', "["])
def test_a_manifest_of_something_else_does_not_make_it_a_bundle(content: str, tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text(content)
    (tmp_path / "thesis").write_text("years of work")
    with pytest.raises(UserError, match="something else"):
        write_bundle(tmp_path, planned(), (ROW,), OPS)
    assert {file.name for file in tmp_path.iterdir()} == {MANIFEST, "thesis"}


def test_what_a_bundle_does_not_list_stays_beside_it(made: Path) -> None:
    (made / "notes").write_text("mine")
    body = json.loads((made / MANIFEST).read_text())
    (made / "old").write_text("of the bundle")
    form = {**body["forms"][0], "files": {"old": ""}}
    (made / MANIFEST).write_text(json.dumps(body | {"forms": [*body["forms"], form]}))
    write_bundle(made, planned(), (ROW,), OPS)
    names = {file.name for file in made.iterdir()}
    assert "notes" in names and "old" not in names and json.loads((made / MANIFEST).read_text()) == body


KILLED = """
import os, pathlib, sys
from engine.bundle import write_bundle
import tests.anydevice.test_bundle as own

def told(done, count, name):
    if done == 2:
        os.kill(os.getpid(), 9)

write_bundle(pathlib.Path(sys.argv[1]), own.planned(), (own.ROW,), own.OPS, told)
"""


@pytest.mark.parametrize("earlier", [False, True])
def test_a_build_that_is_killed_leaves_what_was_there_and_can_be_started_again(earlier: bool, tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    if earlier:
        write_bundle(folder, planned(), (ROW,), OPS)
    before = {file.name: file.read_bytes() for file in folder.iterdir()} if earlier else {}
    done = subprocess.run([sys.executable, "-c", KILLED, str(folder)], cwd=ROOT, env={**os.environ, "PYTHONPATH": ROOT})
    assert done.returncode == -9
    assert {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()} == before
    assert write_bundle(folder, planned(), (ROW,), OPS).forms and all(file.is_file() for file in folder.iterdir())
    bundle = open_bundle(str(folder), DEVICE, (ROW,), True)
    assert bundle is not None and bundle.forms


KILLED_WHILE_MOVING = """
import os, pathlib, sys
from engine.kernels.bundle_folder import MANIFEST, publish, working_folder

folder, names, after, real, moves = pathlib.Path(sys.argv[1]), sys.argv[2].split(), int(sys.argv[3]), os.replace, []

def replace(*places):
    real(*places)
    moves.append(places)
    if len(moves) == after:
        os.kill(os.getpid(), 9)

os.replace = replace
with working_folder(folder) as made:
    for name in names:
        (made / name).write_text(name)
    forms = ", ".join('{"files": {"%s": ""}}' % name for name in names)
    (made / MANIFEST).write_text('{"format": 1, "forms": [%s]}' % forms)
    publish(made, folder)
print(len(moves))
"""


@pytest.mark.parametrize("earlier", [False, True])
def test_a_build_that_is_killed_while_it_moves_files_leaves_none_that_nobody_knows(
    earlier: bool, tmp_path: Path
) -> None:
    def build(folder: Path, names: str, after: int = 0) -> int:
        command = [sys.executable, "-c", KILLED_WHILE_MOVING, str(folder), names, str(after)]
        return subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": ROOT}).returncode

    for after in range(1, 7):
        folder = tmp_path / str(after)
        if earlier:
            assert build(folder, "a b c") == 0
        assert build(folder, "c d e", after) == -9
        assert build(folder, "d e f") == 0
        assert {file.name for file in folder.iterdir()} == {"d", "e", "f", MANIFEST}
        assert "beside" not in (folder / MANIFEST).read_text()


def test_a_build_that_fails_leaves_the_bundle_that_was_there(made: Path) -> None:
    before = {file.name: file.read_bytes() for file in made.iterdir()}

    def full(done: int, count: int, name: str) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(UserError, match="No space left"):
        write_bundle(made, planned(), (ROW,), OPS, full)
    assert {file.name: file.read_bytes() for file in made.iterdir()} == before


def test_a_plan_without_such_rows_has_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="compiled ahead of time"):
        write_bundle(tmp_path / "none", plan(), TABLES.kernels, OPS)


def test_steps_cover_every_size_of_graph_and_the_most_that_a_step_holds() -> None:
    found = planned(scheduler__max_num_batched_tokens=200)
    sizes = {step.tokens for step in steps_for(found)}
    assert {1, 2, 64, 128, 200, *found["compilation.capture_sizes"]} <= sizes
    widths = {step.blocks for step in steps_for(found)}
    assert {1, 2, 4, table_width(found)} <= widths and max(widths) == table_width(found)
