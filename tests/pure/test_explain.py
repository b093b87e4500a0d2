"""A plan as text: complete, in columns that fit, at any width."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import termios
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_plans import ABLE, PROFILE, toy_model, toy_plan

from engine.config import BY_KEY, collect
from engine.explain import Row, render, render_rows, summary
from engine.explain.same import twins_of
from engine.plan import Observations, Tables, make_plan, model_facts
from engine.plan_values import Given, Plan
from engine.table import TIED, counted, lay_out, terminal, written
from tests.described_plans import described
from tests.described_plans import plan as described_plan
from tests.model_configs import LLAMA

PLANS = {
    "able": toy_plan("-O2", "--max-num-seqs", "200", "--kernel", "linear=reference"),
    "bare": toy_plan("-O2", tables=Tables()),
    "warned": replace(toy_plan("-O0"), warnings=("a flag of yours matched nothing, for a reason that goes on and on",)),
}
WIDTHS = [60, 80, 100, 140, 240]


def flat(text: str) -> str:
    return " ".join(re.sub(r"\x1b\[\d*m", "", text).split())


def words(text: str) -> list[str]:
    return re.findall(r"[^\s,]+", text)


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_overflows(name: str, width: int) -> None:
    assert max(map(len, render(PLANS[name], width, False, "why " * 40).splitlines())) <= width
    assert max(map(len, render_rows(summary(PLANS[name], "why " * 40), width, False).splitlines())) <= width


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("width", [width for width in WIDTHS if width >= 100])
def test_nothing_is_lost(name: str, width: int) -> None:
    plan = PLANS[name]
    text = render(plan, width, False, "the only one", [Row("model", "toy", "a file")])
    pieces = [row for one in plan.ranges for row in one.pieces]
    reasons = [row.reason for row in (*plan.decisions.values(), *plan.kernels, *plan.fusions, *pieces)]
    said = [verdict.reason for row in plan.kernels for _, verdict in row.considered if not verdict]
    whole = words(text)
    for reason in (*reasons, *said, *plan.warnings, "the only one", "a file"):
        if reason not in ("default", "asked for"):
            assert set(words(reason)) <= set(whole), reason
    for key in plan.decisions:
        assert key.startswith("compilation.pass_config.") or (BY_KEY[key].flag if key in BY_KEY else key) in whole
    assert all(row.op in whole for row in plan.kernels)
    assert all(row.rule in whole for row in plan.fusions)
    assert all({row.name, f"×{row.count}", str(row.calls), row.generator} <= set(whole) for row in pieces)


def test_wide_text_states_each_decision_in_one_line() -> None:
    text = render(PLANS["able"], 300, False)
    lines = [flat(line) for line in text.splitlines()]
    assert "--max-num-seqs 200 command line" in lines
    assert "-cc.graph_mode FULL_AND_PIECEWISE level -O2" in lines
    assert "rms_norm ×5 quick any call" in lines
    assert "magic: isa.magic absent" in lines and "old: says yes, lower priority" in lines
    assert "requested eligible matched why" in lines
    assert "fuse_rope_kvcache level yes ×2 rows fit one tile" in lines
    assert any(line.startswith("fuse_norm_quant level no – ") for line in lines)
    assert any(line.startswith("enable_sp no no – ") for line in lines)


def test_H_OPT_08_equal_levels_are_told() -> None:
    text = flat(render(PLANS["able"], 200, False, twins=[3]))
    measured = "until kernels are measured on the device"
    assert f"-O3 gives the same plan as -O2 here, {measured}" in text
    both = flat(render(PLANS["able"], 200, False, twins=[1, 3]))
    assert f"-O1, -O3 give the same plan as -O2 here, {measured}" in both
    alone = replace(PLANS["able"], kernels=tuple(replace(row, rivals=()) for row in PLANS["able"].kernels))
    others = render(PLANS["able"], 200, False, twins=[1]), render(alone, 200, False, twins=[3])
    assert all("the same plan as -O2 here" in one and measured not in one for one in map(flat, others))
    assert "same plan" not in render(PLANS["able"], 200, False)


def test_H_OPT_08_levels_are_equal_iff_they_run_the_same() -> None:
    def found(level: int, *words: str) -> list[int]:
        given = collect([f"-O{level}", *words], {}).given
        return twins_of(toy_of(given), given, toy_of)

    def toy_of(given: Mapping[str, Given]) -> Plan:
        return make_plan(PROFILE, model_facts(toy_model()), given, ABLE, Observations())

    assert [found(level) for level in range(4)] == [[], [], [3], [2]]
    by_hand = ["--enforce-eager", "--kernel-config.autotune=true", "-cc.pass_config.fuse_rope_kvcache=false"]
    assert found(0, *by_hand) == [1, 2, 3]


@pytest.mark.parametrize("width", WIDTHS)
def test_colour_changes_no_letter(width: int) -> None:
    plan = PLANS["able"]
    assert re.sub(r"\x1b\[\d*m", "", render(plan, width, True)) == render(plan, width, False)
    assert "\x1b[" in render(plan, width, True)


@pytest.mark.parametrize("name", PLANS)
def test_the_summary_says_what_runs_and_names_what_is_off(name: str) -> None:
    plan = PLANS[name]
    rows = summary(plan, "asked for by name")
    labels = [row.label for row in rows if row.label]
    pieces = ["pieces"] * (plan["compilation.mode"] == "PIECEWISE")
    threads = ["threads"] * ("threads" in plan.profile.limits)
    order = ["platform", "level", "compile mode", "graph mode", "dtype", "KV dtype", "weights", "limits", *threads]
    order += ["kernels", *pieces, "fusions"]
    assert labels[: len(order)] == order
    text = flat(render_rows(rows, 200, False))
    for report in plan.fusions:
        assert report.rule in text and (not report.matched or flat(report.reason) in text)
    off = [row for row in rows if row.value.endswith(" off")]
    assert len(off) == 1 and off[0].value == f"{sum(not row.matched for row in plan.fusions)} off"
    step = f"{plan['scheduler.max_num_seqs']} requests and {plan['scheduler.max_num_batched_tokens']} tokens a step"
    assert f"{plan['scheduler.max_model_len']} tokens a request, {step}" in text
    for choice in plan.kernels:
        assert choice.op in text and flat(choice.reason) in text
    for piece in plan.ranges[0].pieces:
        assert piece.name in text and flat(piece.reason) in text and piece.generator in text
    assert ("warning" in labels) == bool(plan.warnings)
    assert f"{sum(c.count for c in plan.kernels if c.target)} of {sum(c.count for c in plan.kernels)} calls" in text


def test_the_summary_speaks_of_other_calls_only_where_there_are_some() -> None:
    host = described_plan(described("cpu", "x86-64-v3"), LLAMA)
    (kernels,) = (row for row in summary(host) if row.label == "kernels")
    counts = sum(choice.count for choice in host.kernels)
    assert (kernels.value, kernels.reason) == (f"{counts} of {counts} calls", "")
    (threads,) = (row for row in summary(host) if row.label == "threads")
    assert threads.value == str(host.profile.limits["threads"]) and threads.reason
    assert counted(1, "thread") == "1 thread" and counted(0, "form") == "0 forms"


def test_rows_of_others_fit_in() -> None:
    rows = [*summary(PLANS["bare"]), Row("KV blocks", "1024", "16 tokens each"), Row("load", "1.2 s")]
    lines = [flat(line) for line in render_rows(rows, 120, False).splitlines()]
    assert lines[-2:] == ["KV blocks 1024 16 tokens each", "load 1.2 s"]


def test_reasons_of_fusions_have_room_in_a_narrow_terminal() -> None:
    lines = render(PLANS["able"], 80, False).splitlines()
    body = lines[lines.index("Fusions") + 1 :]
    assert body[0].split() == ["requested", "eligible", "matched"]
    below = [line.strip() for line in body if line.startswith(" " * 6) and line != body[0]]
    assert below and max(map(len, below)) > 50


def test_what_is_piped_on_is_as_wide_as_the_terminal_of_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, 83))
    with os.fdopen(theirs, "w") as errors, io.StringIO() as piped:
        monkeypatch.setattr(sys, "__stderr__", errors)
        assert terminal(piped) == (83, False)
        monkeypatch.setenv("COLUMNS", "120")
        assert terminal(piped) == (120, False)
        monkeypatch.delenv("COLUMNS")
        monkeypatch.setattr(sys, "__stderr__", None)
        assert terminal(piped) == (100, False)
    os.close(ours)


def test_machines_get_the_plan_itself() -> None:
    plan = PLANS["able"]
    body = json.loads(json.dumps(plan.to_json()))
    assert set(body["decisions"]) == set(plan.decisions)
    row = body["decisions"]["scheduler.max_num_seqs"]
    assert (row["value"], row["origin"]) == (200, "command line")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (True, "on"),
        ((), "none"),
        ([1, 2, 4], "1, 2, 4"),
        ([1, 2, 3, 4], "1..4 by 1"),
        ([1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)], "1, 2, 4, 8..256 by 8, 272..512 by 16"),
        (["none", "+rms_norm"], "none, +rms_norm"),
        ({"a": "b"}, "a=b"),
        (0.9, "0.9"),
    ],
)
def test_values_in_words(value: object, text: str) -> None:
    assert written(value) == text


@given(st.lists(st.integers(0, 40), unique=True, max_size=30).map(sorted))
def test_short_forms_of_lists_keep_every_number(numbers: list[int]) -> None:
    found: list[int] = []
    for part in written(numbers).split(", ") if numbers else []:
        run = re.fullmatch(r"(\d+)\.\.(\d+) by (\d+)", part)
        found += range(int(run[1]), int(run[2]) + 1, int(run[3])) if run else [int(part)]
    assert found == numbers


CELLS = st.text(st.sampled_from("ab ,-=\n"), max_size=60)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=6), st.integers(60, 150))
def test_layout_keeps_width_and_every_letter(rows: list[tuple[str, ...]], width: int) -> None:
    lines = lay_out(rows, width)
    assert len(lines) == len(rows)
    assert all(len(line) <= width for text in lines for line in text.split("\n"))
    letters = sorted(letter for row in rows for cell in row for letter in cell if not letter.isspace())
    assert sorted(letter for text in lines for letter in text if not letter.isspace()) == letters


def test_tied_words_stay_together() -> None:
    (text,) = lay_out([("name", " ".join([f"rotary{TIED}×30"] * 9))], 60)
    assert text.count("rotary ×30") == 9 and TIED not in text
