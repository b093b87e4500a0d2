"""The row of scaled products that calls FlashInfer, over a stand-in of it."""

from __future__ import annotations

import pytest
import torch

import kernels_cuda.library
from engine.ops import OPS, Case
from engine.ops.compare import specs_of
from engine.plan.kernels import call_facts
from kernels_cuda.manifest import KERNELS
from kernels_cuda.scaled_linear import scaled_linear
from platforms.cuda.targets import TARGETS
from tests.library_stand_ins import install_flashinfer

ROW = next(row for row in KERNELS if row.op == "scaled_linear" and row.name == "flashinfer")


@pytest.fixture(autouse=True)
def library(monkeypatch):
    install_flashinfer(monkeypatch)
    yield
    kernels_cuda.library.function.cache_clear()


@pytest.mark.parametrize("tokens", [0, 1, 3, 4, 9])
@pytest.mark.parametrize("bias", [0, 1])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rows_are_padded_to_four_and_the_rest_is_left_out(tokens, bias, dtype):
    """At the widest count that is no multiple, and without rows."""
    sizes = {"tokens": max(tokens, 1), "hidden": 384, "out": 256, "storage": 0, "scaling": 2, "bias": bias}
    attributes = {"result": dtype, "block": (128, 128)}
    given = OPS["scaled_linear"].inputs(Case(sizes, attributes), dtype, torch.Generator().manual_seed(tokens))
    given = tuple(x[:tokens] if at < 2 else x for at, x in enumerate(given))
    facts = {**attributes, **call_facts(specs_of(given))}
    assert ROW.accepts(TARGETS["sm_100"], facts), ROW.accepts(TARGETS["sm_100"], facts).reason
    found = scaled_linear(*given, **attributes)
    expected = OPS["scaled_linear"].reference(*given, **attributes)
    relative, absolute = OPS["scaled_linear"].bound(dtype, dtype)
    assert found.shape == expected.shape and found.dtype == expected.dtype
    torch.testing.assert_close(found.double(), expected.double(), rtol=relative, atol=absolute)
