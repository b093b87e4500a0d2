"""The table of levels against the plans it leads to."""

from __future__ import annotations

from itertools import pairwise

import pytest
from toy_plans import ABLE, toy_plan

from engine.config import BY_KEY, FIELDS
from engine.config.fields import FUSE
from engine.config.help import render_help
from engine.errors import UserError
from engine.fusion.catalog import RULES, UNAVAILABLE
from engine.levels import DEFAULT_LEVEL, FUSIONS, LEVELS, NOT_BUILT, USER_ONLY, describe
from engine.plan import Tables
from engine.plan_values import Plan

RULE_LEVELS = {rule.name: rule.level for rule in RULES} | {name: level for name, (level, _) in UNAVAILABLE.items()}
NUMBERS = [level.number for level in LEVELS]
GRAPH_PARTS = {
    "NONE": set(),
    "PIECEWISE": {"piecewise"},
    "FULL": {"full", "full decode"},
    "FULL_DECODE_ONLY": {"full decode"},
    "FULL_AND_PIECEWISE": {"full decode", "piecewise"},
}


def values(plan: Plan) -> dict[str, object]:
    return {key: row.value for key, row in plan.decisions.items()}


def test_the_table_is_plain_data() -> None:
    assert NUMBERS == [0, 1, 2, 3] and DEFAULT_LEVEL == 2
    assert all(not callable(getattr(level, name)) for level in LEVELS for name in level.__slots__)
    assert set(FUSIONS) == set(RULE_LEVELS), "the catalog and the names users know"
    assert {name for name, lowest in RULE_LEVELS.items() if lowest is None} == {*USER_ONLY, *NOT_BUILT}
    assert set(NOT_BUILT) == set(UNAVAILABLE) and not set(NOT_BUILT) & set(USER_ONLY)
    assert [field.key for field in FIELDS if field.group == FUSE] == [f"compilation.pass_config.{n}" for n in FUSIONS]


def test_the_default_level_is_two_by_default() -> None:
    decision = toy_plan().decisions["optimization_level"]
    assert (decision.value, decision.origin) == (2, "default")


def test_a_level_never_takes_away_what_a_lower_one_gave() -> None:
    for low, high in pairwise(LEVELS):
        assert low.rules <= high.rules
        assert GRAPH_PARTS[low.graph_mode] <= GRAPH_PARTS[high.graph_mode]
        assert low.defaults["kernel_config.autotune"] <= high.defaults["kernel_config.autotune"]
        assert low.defaults["kernel_config.rounding"] <= high.defaults["kernel_config.rounding"]
    plans = [toy_plan(f"-O{number}") for number in NUMBERS]
    for low, high in pairwise(plans):
        assert {row.rule for row in low.fusions if row.matched} <= {row.rule for row in high.fusions if row.matched}


@pytest.mark.parametrize("number", NUMBERS)
def test_a_level_is_reachable_by_hand_from_level_0(number: int) -> None:
    wanted = values(toy_plan(f"-O{number}"))
    flags = [f"{BY_KEY[key].flag}={wanted[key]}" for key in LEVELS[number].defaults]
    flags += [f"-cc.pass_config.{name}=true" for name in FUSIONS if wanted[f"compilation.pass_config.{name}"]]
    assert values(toy_plan("-O0", *flags)) == {**wanted, "optimization_level": 0}


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("graphs", ["PIECEWISE", "FULL_AND_PIECEWISE"])
@pytest.mark.parametrize("tables", [ABLE, Tables()], ids=["able", "bare"])
def test_H_OPT_01_piecewise_graphs_without_compilation_are_refused(number: int, graphs: str, tables: Tables) -> None:
    with pytest.raises(UserError) as error:
        toy_plan(f"-O{number}", "-cc.mode=NONE", f"-cc.cudagraph_mode={graphs}", tables=tables)
    assert "-cc.mode=NONE" in str(error.value) and f"-cc.graph_mode={graphs}" in str(error.value)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("key", sorted({*LEVELS[0].defaults, "compilation.pass_config.fuse_rope_kvcache"}))
def test_H_OPT_02_an_explicit_value_is_in_the_plan(number: int, key: str) -> None:
    preset = toy_plan(f"-O{number}")[key]
    value: object = "NONE" if preset != "NONE" else "FULL" if key.endswith("graph_mode") else "PIECEWISE"
    if isinstance(preset, bool):
        value = not preset
    extra = ["-cc.graph_mode=NONE"] if key == "compilation.mode" else []
    plan = toy_plan(f"-O{number}", f"{BY_KEY[key].flag}={value}", *extra)
    assert (plan[key], plan.decisions[key].origin) == (value, "command line")


@pytest.mark.parametrize("number", NUMBERS)
def test_H_OPT_05_eager_changes_two_fields_and_what_follows_from_them(number: int) -> None:
    plain, eager = values(toy_plan(f"-O{number}")), values(toy_plan(f"-O{number}", "--enforce-eager"))
    changed = {key for key in plain if plain[key] != eager[key]} - {"enforce_eager"}
    names = ("custom_ops", "capture_sizes", "max_capture_size", "splitting_ops", "compile_ranges_endpoints")
    assert changed - {f"compilation.{name}" for name in names} <= {"compilation.mode", "compilation.graph_mode"}
    assert (eager["compilation.mode"], eager["compilation.graph_mode"]) == ("NONE", "NONE")
    assert bool(changed) == (number > 0)


@pytest.mark.parametrize("maximum", [1, 3, 42, 257, 300])
def test_H_OPT_07_the_largest_capture_size_is_the_one_asked_for(maximum: int) -> None:
    plan = toy_plan(f"--max-capture-size={maximum}")
    sizes = plan["compilation.capture_sizes"]
    assert max(sizes) == maximum == plan["compilation.max_capture_size"]
    assert list(sizes) == sorted(set(sizes))


@pytest.mark.parametrize("number", NUMBERS)
def test_H_OPT_08_the_printed_table_is_what_a_level_resolves_to(number: int) -> None:
    row = describe(RULE_LEVELS)[number]
    plan = toy_plan(f"-O{number}")
    assert row["level"].split()[0] == f"-O{number}"
    assert (row["mode"], row["graph_mode"]) == (plan["compilation.mode"], plan["compilation.graph_mode"])
    assert (row["tuning"] != "none") == plan["kernel_config.autotune"]
    printed = [name for one in describe(RULE_LEVELS)[: number + 1] for name in one["fusions"].split(", ")]
    requested = {report.rule for report in plan.fusions if report.requested}
    assert {name.removeprefix("and ") for name in printed} - {"as above", "none"} == requested
    by_hand, not_built = (set(one["fusions"].split(", ")) for one in describe(RULE_LEVELS)[-2:])
    assert (by_hand, not_built) == (set(USER_ONLY), set(NOT_BUILT)) and not requested & (by_hand | not_built)


@pytest.mark.parametrize("name", NOT_BUILT)
def test_what_is_not_built_is_refused_with_the_words_of_the_documents(name: str) -> None:
    with pytest.raises(UserError, match=NOT_BUILT[name]):
        toy_plan(f"-cc.pass_config.{name}=true")
    (report,) = [row for row in toy_plan().fusions if row.rule == name]
    assert not report.requested and NOT_BUILT[name] in report.reason
    (field,) = [row for row in FIELDS if row.key.endswith(f".{name}")]
    assert field.help == NOT_BUILT[name] and "user" not in field.unset


@pytest.mark.parametrize("number", NUMBERS)
def test_H_OPT_08_help_prints_the_same_table(number: int) -> None:
    text = " ".join(render_help("serve", "levels", 200, color=False).split())
    row = describe(RULE_LEVELS)[number]
    for name in ("mode", "graph_mode", "fusions", "tuning"):
        assert row[name].split(",")[0] in text
    assert all(name in text for name in FUSIONS)


def test_H_OPT_08_a_device_that_cannot_says_what_the_level_asked_for() -> None:
    for number in NUMBERS:
        plan = toy_plan(f"-O{number}", tables=Tables())
        for key in ("compilation.mode", "compilation.graph_mode"):
            wanted = LEVELS[number].defaults[key]
            decision = plan.decisions[key]
            assert decision.value == "NONE"
            assert wanted == "NONE" or (f"-O{number} asks for {wanted}" in decision.reason)


def test_level_three_equals_two_until_something_is_reserved_for_it() -> None:
    two, three = values(toy_plan("-O2")), values(toy_plan("-O3"))
    assert {key for key in two if two[key] != three[key]} == {"optimization_level"}
