"""Products with weights of four bits."""

import itertools

import pytest
import torch

from engine.ops import Case
from engine.ops.compare import same_bits
from engine.ops.packed import pack
from kernels_triton import packed
from tests.interpreter.rows import BY_OP, OPS, call, check, inputs_of

OP, ROW = OPS["packed_linear"], BY_OP["packed_linear"]
FORMATS = ("int4", "mxfp4")


def case(tokens, columns, out, group, form, zeros=0, bias=0):
    sizes = {"tokens": tokens, "hidden": columns, "out": out, "group": group, "zeros": zeros, "bias": bias}
    return Case(sizes, {"group": group, "format": form})


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(("tokens", "columns", "out", "group"), [(7, 32, 1, 32), (33, 96, 65, 96), (65, 768, 5, 128)])
def test_odd_sizes(tokens, columns, out, group, form):
    for zeros, bias in itertools.product((0, 1), (0, 1)):
        one = case(tokens, columns, out, group, form, zeros, bias)
        inputs = inputs_of(OP, one, "float16")
        check(ROW, OP, one, "float16", inputs, call(ROW, OP, one, inputs))


@pytest.mark.parametrize("form", FORMATS)
def test_every_stored_value_has_its_meaning(form):
    """One column of ones at a time picks each of the sixteen values out of a row that holds them all."""
    values = torch.arange(16).repeat(4).view(1, 64)
    scales = torch.full((1, 2), 128, dtype=torch.uint8) if form == "mxfp4" else torch.full((1, 2), 2.0)
    found = packed.packed_linear(torch.eye(64), pack(values), scales, group=32, format=form).flatten()
    floats = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
    wanted = [2 * v for v in ((*floats, *(-f for f in floats)) if form == "mxfp4" else range(-8, 8))]
    assert found.tolist() == wanted * 4


def test_the_same_bits_at_any_number_of_rows():
    one = case(70, 256, 33, 64, "int4", 1, 1)
    inputs = inputs_of(OP, one, "bfloat16")
    whole = packed.packed_linear(*inputs, **one.attributes)
    for rows in (1, 17, 40):
        assert same_bits(packed.packed_linear(inputs[0][:rows], *inputs[1:], **one.attributes), whole[:rows])
