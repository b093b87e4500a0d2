"""Every form of every row is clean on every described device. What is compiled: all that is not as the budget has it,
and a tenth of the rest, another one each day; all of it with
``ENGINE_EVERY_KERNEL=1``, as ``make test-all`` has it."""

import datetime
import itertools
import json
import os
import zlib
from dataclasses import replace

import pytest
import triton

from engine.kernels.units import Units, make_all
from kernels_triton import budget
from kernels_triton.manifest import ROWS
from platforms.contract import Verdict
from tests.cross_compile.grid import HEADS, add_grid
from tests.cross_compile.subjects import OPS, devices, row_names, units_on

PROCESSES, PARTS = 2, 10
ADVICE = "run `make budget` and read what changes in kernels_triton/budget.json"
EVERYTHING = os.environ.get("ENGINE_EVERY_KERNEL") == "1"


@pytest.fixture(scope="module")
def found():
    return [(profile, units_on(profile)) for profile in devices()]


@pytest.fixture(scope="module")
def units(found):
    return [unit for _, one in found for unit in one.rows]


@pytest.fixture(scope="module")
def kept():
    return budget.read()


def part_of(unit):
    return zlib.crc32(f"{unit.arch} {unit.name}".encode()) % PARTS


def chosen(units, kept, today):
    """Units to compile, each with the reason."""
    whys = [(unit, kept.changed(unit)) for unit in units]
    return {unit: why or "its turn" for unit, why in whys if why or EVERYTHING or part_of(unit) == today % PARTS}


def test_every_row_names_its_forms(found):
    assert {profile.platform for profile, _ in found} == {"cuda", "rocm"} and len(found) == 12
    assert not [problem for _, one in found for problem in one.problems]
    reached = {name for _, one in found for names in one.rows.values() for name in names}
    assert row_names() <= reached


def test_every_head_and_type_has_its_form_on_every_device(found):
    for profile, one in found:
        names = [unit.name for unit in one.rows if "attention_kernel" in unit.name]
        kinds = {"bf16,bf16", "fp16,fp16", "fp32,fp32", *(f"bf16,{kept}" for kept in eight(profile))}
        for head, kind in itertools.product(HEADS, kinds):
            shown = [name for name in names if f" HEAD={head} " in name and kind in name.replace("~", "")]
            assert shown, (profile.arch, head, kind)


def eight(profile):
    """Triton's words for the 8-bit floats that a cache may hold there."""
    words = {"dtype.fp8_e4m3fn": "fp8e4nv", "dtype.fp8_e4m3fnuz": "fp8e4b8"}
    return [word for feature, word in words.items() if feature in profile.features]


def test_a_call_of_the_grid_that_a_row_refuses_is_said():
    units = Units({}, {})
    row = next(row for row in ROWS if row.op == "mla_attention")
    refusing = replace(row, accepts=lambda profile, facts: Verdict(False, "not today"))
    add_grid(units, refusing, OPS["mla_attention"], devices()[0])
    (said,) = units.problems
    assert "mla_attention/triton refuses a call of the grid" in said and "not today" in said and not units.rows


@pytest.mark.timeout(3000 if EVERYTHING else 900)
def test_what_changed_and_a_tenth_of_the_rest_is_clean(units, kept):
    today = datetime.datetime.now(datetime.UTC).date().toordinal()
    wanted = chosen(units, kept, today)
    print(f"\npart {today % PARTS} of {PARTS}: {len(wanted)} of {len(units)} forms")
    wrong = []
    for unit, made in make_all(list(wanted), PROCESSES):
        wrong += [f"{unit.arch}: {unit.name}: {problem} ({wanted[unit]})" for problem in made["problems"]]
        before = kept.forms.get(unit.name, {}).get(unit.arch)
        if wanted[unit] == "its turn" and before and _fixed(before) != _fixed(made["figures"]):
            wrong.append(
                f"{unit.arch}: {unit.name}: {_fixed(made['figures'])}, the budget has {_fixed(before)}; {ADVICE}"
            )
    assert not wrong, "\n".join(wrong)


def _fixed(figures):
    """What the same code and compiler give again."""
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in figures.items() if name != "seconds"
    }


def test_the_budget_is_of_these_kernels(units, kept):
    if kept.triton != triton.__version__:
        assert kept.changed(units[0]).startswith(f"the budget is of Triton {kept.triton}")
        return
    stale = {kept.changed(unit) for unit in units} - {""}
    left = {(name, arch) for name, archs in kept.forms.items() for arch in archs} - {(u.name, u.arch) for u in units}
    assert not stale and not left, "\n".join([*sorted(stale), *map(str, sorted(left)), ADVICE])


def test_what_the_budget_holds_is_clean(units, kept):
    held = [unit for unit in units if not kept.changed(unit)]
    wrong = [f"{unit.arch}: {unit.name}: {problem}" for unit in held for problem in kept.problems(unit)]
    assert held and not wrong, "\n".join(wrong)


def test_in_ten_days_every_form_has_its_turn(units, kept):
    if EVERYTHING:
        assert len(chosen(units, kept, 0)) == len(units)
        return
    turns = [set(chosen(units, kept, day)) for day in range(PARTS)]
    assert set.union(*turns) == set(units)
    assert max(map(len, turns)) < len(units) / PARTS * 1.5 + sum(bool(kept.changed(unit)) for unit in units)


def test_a_change_of_code_of_a_form_or_of_the_compiler_is_noticed(units, kept):
    unit = next(unit for unit in units if not kept.changed(unit))
    kernel = unit.form.kernel
    assert "is not that of the budget" in replace(kept, sources={**kept.sources, kernel: "another"}).changed(unit)
    assert "is of Triton 1.0" in replace(kept, triton="1.0").changed(unit)
    other = replace(unit, form=replace(unit.form, warps=unit.form.warps * 2))
    assert "has no form" in replace(kept, forms={}).changed(unit) and kept.changed(other) != ""


def test_a_budget_is_written_as_it_is_read_a_line_per_form_and_arch(kept, tmp_path):
    file = tmp_path / "budget.json"
    budget.write(kept, file)
    assert file.read_text() == budget.FILE.read_text()
    assert budget.read(file) == kept
    lines = [line for line in file.read_text().splitlines() if '"registers"' in line]
    assert len(lines) == sum(map(len, kept.forms.values())) and json.loads(file.read_text())["triton"] == kept.triton
