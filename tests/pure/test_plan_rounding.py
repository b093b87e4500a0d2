"""Kernels that round their operands are for the level, a setting or a pin that asks for them, and the plan says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.errors import UserError
from engine.models.blocks import Blocks
from engine.plan import Plan
from platforms.contract import Verdict
from tests.described_plans import chosen, described, plan
from tests.model_configs import LLAMA

TILES, VECTORS = described("cpu", "amx"), described("cpu", "x86-64-v4")
STORED = replace(LLAMA, weight_format="gguf", blocks=Blocks("Q4_1"))
OPS = {"attention": ("native", "alike"), "scaled_block_linear": ("amx", "amx")}
"""What is taken instead, also where nothing may depend on the batch."""
KEY = "kernel_config.rounding"


def said(found: Plan, op: str, row: str = "amx_bf16") -> set[Verdict]:
    return {dict(choice.considered)[row] for choice in found.kernels if choice.op == op}


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    ("words", "taken"),
    [
        ("-O0", False),
        ("-O1", False),
        ("-O2", False),
        ("-O3", True),
        ("-O0 --kernel-config.rounding=true", True),
        ("-O2 --kernel-config.rounding=true", True),
        ("-O3 --kernel-config.rounding=false", False),
    ],
)
def test_they_are_taken_as_level_and_setting_say(op, words, taken):
    found = plan(TILES, STORED, *words.split())
    assert chosen(found, op) == {"amx_bf16" if taken else OPS[op][0]}
    assert found[KEY] is taken
    (verdict,) = said(found, op)
    assert bool(verdict) is taken and "rounds to bfloat16" in verdict.reason
    if not taken:
        assert f"with -O3, --kernel-config.rounding=true or --kernel {op}=amx_bf16" in verdict.reason
    assert ("amx_bf16" in found.decisions["model.quantization"].reason) is taken


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("level", ["-O0", "-O1", "-O2"])
def test_a_pin_takes_one_at_every_level_and_no_other_beside_it(op, level):
    found = plan(TILES, STORED, level, f"--kernel={op}=amx_bf16")
    assert chosen(found, op) == {"amx_bf16"} and not found.warnings
    others = OPS.keys() - {op}
    assert all(chosen(found, other) == {OPS[other][0]} for other in others) and found[KEY] is False


@pytest.mark.parametrize("op", OPS)
def test_what_a_request_gets_never_depends_on_the_batch_where_that_is_asked_for(op):
    found = plan(TILES, STORED, "-O3", "--batch-invariant")
    assert chosen(found, op) == {OPS[op][1]} and said(found, op) == {Verdict(False, "not batch-invariant")}
    assert found[KEY] is False
    with pytest.raises(UserError, match="not batch-invariant"):
        plan(TILES, STORED, "--batch-invariant", f"--kernel={op}=amx_bf16")


def test_a_level_takes_none_where_there_is_none():
    found = plan(VECTORS, STORED, "-O3")
    assert found[KEY] is False
    assert found.decisions[KEY].reason == "-O3 reached: no kernel here that does"
    for op in OPS:
        (verdict,) = said(found, op)
        assert not verdict and verdict.reason == "isa.amx_int8 absent"
        with pytest.raises(UserError, match=r"isa\.amx_int8 absent"):
            plan(VECTORS, STORED, f"--kernel={op}=amx_bf16")


def test_which_kernels_round_is_told():
    taken = plan(TILES, STORED, "-O3").decisions[KEY]
    assert taken.reason == "-O3 reached: attention by amx_bf16, scaled_block_linear by amx_bf16"
    assert plan(TILES, STORED, "-O2").decisions[KEY].reason == "-O3 and above take kernels that round"
