"""``--diff``: what two plans decide otherwise."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from test_golden_plans import TARGETS
from toy_plans import PROFILE, toy_plan

from engine.cli import main
from engine.errors import UserError
from engine.explain.differences import Difference, compare, read_side, render_difference
from engine.plan import Tables
from engine.plan_values import Plan

NAMES = ("-O1", "-O2")
FIRST, LAST = (":".join(TARGETS[index]) for index in (0, -1))


def levels(one: int, other: int) -> Difference:
    return compare((f"-O{one}", f"-O{other}"), toy_plan(f"-O{one}"), toy_plan(f"-O{other}"))


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["explain", *words]) == 0
    return capsys.readouterr().out


def test_settings_with_value_origin_and_reason_of_both_sides() -> None:
    found = levels(0, 1)
    one, other = found.settings["compilation.mode"]
    assert one and other and (one.value, other.value) == ("NONE", "PIECEWISE")
    assert "optimization_level" not in found.settings, "it is what was asked"
    assert not found.equal
    text = " ".join(render_difference(found, 200, False).split())
    assert "-cc.mode NONE PIECEWISE (level: -O0) (level: -O1)" in text
    for key, pair in found.settings.items():
        assert toy_plan("-O0").decisions[key] == pair[0] and toy_plan("-O1").decisions[key] == pair[1]


def test_every_setting_that_differs_is_there_and_no_other() -> None:
    plans = [toy_plan("-O0"), toy_plan("-O2")]
    values = [{key: row.value for key, row in plan.decisions.items()} for plan in plans]
    differ = {key for key in values[0] if values[0][key] != values[1][key]} - {"optimization_level"}
    assert set(compare(NAMES, *plans).settings) == differ != set()


def test_kernels_per_op_with_calls_and_reasons() -> None:
    found = compare(("a", "b"), toy_plan("--kernel", "rms_norm=reference"), toy_plan())
    assert set(found.kernels) == {"rms_norm"}
    one, other = found.kernels["rms_norm"]
    assert (one[0].chosen, other[0].chosen) == ("reference", "quick")
    assert "reference ×5 (asked for with --kernel) quick ×5" in " ".join(render_difference(found, 200, False).split())


def test_fusions_by_what_was_requested_eligible_and_matched() -> None:
    found = levels(1, 2)
    one, other = found.fusions["fuse_rope_kvcache"]
    assert one and other and (one.requested, one.matched, other.requested, other.matched) == (False, 0, True, 2)
    text = render_difference(found, 200, False)
    assert "not requested" in text and "×2 (rows fit one tile)" in text
    off = compare(NAMES, toy_plan("-O1", tables=Tables()), toy_plan("-O2", tables=Tables()))
    assert "unavailable" in render_difference(off, 200, False)


def test_warnings_of_one_side() -> None:
    warned = replace(toy_plan(), warnings=("beware",))
    found = compare(("a", "b"), warned, toy_plan())
    assert found.warnings == (("beware",), ()) and "beware" in render_difference(found, 100, False)


def test_equal_plans_say_so() -> None:
    text = render_difference(levels(2, 3), 100, False)
    equal = "-O2 and -O3 give the same plan: settings, kernels, fusions, program and pieces are equal"
    assert text == f"{equal}, until kernels are measured on the device.\n"
    assert levels(2, 3).equal


def test_plans_that_differ_in_words_alone_run_the_same() -> None:
    words = ["--enforce-eager", "--kernel-config.autotune=true", "-cc.pass_config.fuse_rope_kvcache=false"]
    found = compare(NAMES, toy_plan("-O1", *words), toy_plan("-O2", *words))
    assert found.equal and found.fusions and not found.settings
    assert render_difference(found, 100, False).startswith("-O1 and -O2 run the same")


def test_a_program_that_alone_differs_is_told() -> None:
    plan = toy_plan("--enforce-eager")
    other: Plan = replace(plan, ranges=toy_plan("-O1", "--enforce-eager").ranges)
    found = compare(("a", "b"), plan, other)
    assert not found.equal and render_difference(found, 100, False) == "a and b differ in the program alone.\n"


def test_pieces_that_differ_are_told() -> None:
    found = compare(("a", "b"), toy_plan(), toy_plan("-cc.backend=inductor"))
    assert set(found.pieces) == {"first", "middle", "last"} and not found.equal
    one, other = found.pieces["middle"]
    assert one and other and (one.generator, other.generator) == ("native", "inductor")
    text = " ".join(render_difference(found, 200, False).split())
    assert f"{one.generator} ×{one.count} of {one.calls} calls ({one.reason})" in text
    assert not compare(("a", "b"), toy_plan(), toy_plan()).pieces


@pytest.mark.parametrize("width", [60, 80, 120])
def test_columns_fit(width: int) -> None:
    for found in (levels(0, 2), compare(("x", "y"), toy_plan(), toy_plan(tables=Tables()))):
        plain = render_difference(found, width, False)
        assert max(map(len, plain.splitlines())) <= width
        assert "\x1b[" in render_difference(found, width, True)


def test_two_levels_two_devices_and_one_of_each(capsys: pytest.CaptureFixture[str]) -> None:
    body = json.loads(answer(capsys, "--diff", "-O0", "-O2", "--json", "--platform", LAST))
    assert [side["level"] for side in body["sides"]] == [0, 2]
    assert {f"{side['platform']}:{side['arch']}" for side in body["sides"]} == {LAST}
    body = json.loads(answer(capsys, "--json", "-O1", "--diff", FIRST, LAST))
    assert [side["asked"] for side in body["sides"]] == [FIRST, LAST]
    assert [side["level"] for side in body["sides"]] == [1, 1]
    assert [f"{side['platform']}:{side['arch']}" for side in body["sides"]] == [FIRST, LAST]
    body = json.loads(answer(capsys, "--diff", "-O0", LAST, "--json"))
    assert [side["level"] for side in body["sides"]] == [0, 2]
    assert set(body) == {"sides", "equal", "settings", "pieces", "kernels", "fusions", "warnings"}
    for pair in body["settings"].values():
        assert all(side is None or set(side) == {"value", "origin", "reason"} for side in pair)


def test_a_saved_profile_against_a_described_device(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    saved = tmp_path / "machine.json"
    saved.write_text(json.dumps(PROFILE.to_json() | {"platform": TARGETS[0][0]}))
    body = json.loads(answer(capsys, "--profile", str(saved), "--diff", "-O1", LAST, "--json"))
    assert [side["arch"] for side in body["sides"]] == [PROFILE.arch, LAST.partition(":")[2]]
    assert main(["explain", "--profile", str(saved), "--diff", FIRST, LAST]) == 2


def test_other_flags_go_to_both_sides(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--diff", FIRST, LAST, "--json"]
    plain = json.loads(answer(capsys, *words))
    fixed = json.loads(answer(capsys, *words, "--gpu-memory-utilization", "0.7"))
    assert "cache.gpu_memory_utilization" in plain["settings"]
    assert set(fixed["settings"]) == set(plain["settings"]) - {"cache.gpu_memory_utilization"}


@pytest.mark.parametrize("word", ["-O9", "-O", "--json", "-x", "-O1.5"])
def test_a_bad_word_is_named(word: str) -> None:
    with pytest.raises(UserError, match=f"--diff {word}: "):
        read_side(word)
