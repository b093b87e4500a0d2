"""Rows of scaled products that call FlashInfer, over stand-ins of it."""

from __future__ import annotations

import pytest
import torch

import kernels_cuda.library
from engine.ops import OPS, Case
from engine.ops.compare import specs_of
from engine.plan.kernels import call_facts
from kernels_cuda.manifest import KERNELS
from kernels_cuda.scaled_linear import scaled_linear, scaled_linear_prims
from platforms.cuda.targets import TARGETS
from tests.library_stand_ins import install_flashinfer

ROWS = {row.name: row for row in KERNELS if row.op == "scaled_linear"}
OP = OPS["scaled_linear"]


@pytest.fixture(autouse=True)
def library(monkeypatch):
    install_flashinfer(monkeypatch)
    yield
    kernels_cuda.library.function.cache_clear()


def check(name, function, sizes, attributes, dtype):
    """``sizes``: of the op's cases; ``tokens`` may be 0."""
    tokens = sizes["tokens"]
    case = Case({**sizes, "tokens": max(tokens, 1)}, attributes)
    given = OP.inputs(case, dtype, torch.Generator().manual_seed(tokens))
    given = (given[0][:tokens], given[1] if len(given[1].shape) == 1 else given[1][:tokens], *given[2:])
    verdict = ROWS[name].accepts(TARGETS["sm_100"], {**attributes, **call_facts(specs_of(given))})
    assert verdict, verdict.reason
    found, expected = function(*given, **attributes), OP.reference(*given, **attributes)
    relative, absolute = OP.bound(dtype, dtype)
    assert found.shape == expected.shape and found.dtype == expected.dtype
    torch.testing.assert_close(found.double(), expected.double(), rtol=relative, atol=absolute)


@pytest.mark.parametrize("tokens", [0, 1, 3, 4, 9])
@pytest.mark.parametrize("bias", [0, 1])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rows_are_padded_to_four_and_the_rest_is_left_out(tokens, bias, dtype):
    """At the widest count that is no multiple, and without rows."""
    sizes = {"tokens": tokens, "hidden": 384, "out": 256, "storage": 0, "scaling": 2, "bias": bias}
    check("flashinfer", scaled_linear, sizes, {"result": dtype, "block": (128, 128)}, dtype)


@pytest.mark.parametrize("tokens", [0, 1, 9])
@pytest.mark.parametrize("bias", [0, 1])
@pytest.mark.parametrize("scaling", [0, 1], ids=["one scale of x", "one per token"])
def test_one_scale_per_row(tokens, bias, scaling):
    sizes = {"tokens": tokens, "hidden": 256, "out": 33, "storage": 0, "scaling": scaling, "bias": bias}
    check("flashinfer_prims", scaled_linear_prims, sizes, {"result": "bfloat16", "block": None}, "bfloat16")
