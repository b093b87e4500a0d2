"""Products on the interpreter: sizes that fill no tile, every kind of scale, views, and sums that stay the same."""

import itertools

import pytest
import torch

from engine.ops.compare import same_bits
from kernels_triton import matmul_tuning
from kernels_triton.linear import linear
from kernels_triton.matmul import BLOCKS, ROWS, tile_for
from kernels_triton.scaled_linear import scaled_linear, steady_scaled_linear
from tests.interpreter.rows import BY_OP, DEVICE, OPS

STORAGES = ("float8_e4m3fn", "float8_e4m3fnuz", "int8")
SCALED, DENSE = OPS["scaled_linear"], OPS["linear"]


def stored(shape, storage):
    x = torch.randn(shape) * 2
    return (x * 20).round().clamp(-128, 127).to(torch.int8) if storage == "int8" else x.to(getattr(torch, storage))


def given(m, k, n, storage, way, block, *, bias=None):
    """Products of about one."""
    groups = -(-k // block[1]) if block else 1
    size = k**0.5 * (40.0 if storage == "int8" else 2.0) ** 2
    x_scale = torch.rand({"tensor": (1,), "token": (m, 1), "group": (m, groups)}[way]) + 0.5
    side = torch.rand((-(-n // block[0]), groups) if block else (n,)) + 0.5
    side /= size
    return stored((m, k), storage), x_scale, stored((n, k), storage), side, bias


def close(found, tensors, how, dtype):
    exact = SCALED.reference(*tensors, **{**how, "result": "float64"})
    relative, absolute = SCALED.tolerance[dtype]
    torch.testing.assert_close(found.double(), exact, rtol=relative, atol=absolute)


SIZES = [(1, 1, 1), (7, 7, 5), (33, 127, 64), (7, 768, 5), (1, 769, 64), (33, 768, 64), (70, 256, 48), (17, 128, 160)]


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize(("m", "k", "n"), SIZES)
def test_any_size_with_a_scale_for_all_or_for_each_token(m, k, n, storage):
    for at, way in enumerate(("tensor", "token")):
        bias = torch.randn(n).bfloat16() if at else None
        tensors = given(m, k, n, storage, way, None, bias=bias)
        how = dict(result=("float32", "float16")[at], block=None)
        close(scaled_linear(*tensors, **how), tensors, how, how["result"])
        close(steady_scaled_linear(*tensors, **how), tensors, how, how["result"])


@pytest.mark.parametrize("block", [(128, 128), (64, 32), (5, 96), (1, 64), (16, 256)])
@pytest.mark.parametrize(("m", "k", "n"), [(1, 769, 64), (33, 768, 130), (70, 256, 48), (7, 31, 5)])
def test_blocks_of_any_height(m, k, n, block):
    for storage, way in zip(("float8_e4m3fn", "int8", "float8_e4m3fn"), ("group", "group", "token"), strict=True):
        tensors = given(m, k, n, storage, way, block)
        how = dict(result="float32", block=block)
        close(scaled_linear(*tensors, **how), tensors, how, "float32")


def test_sums_of_integers_are_exact_and_scaled_once():
    x, weight = torch.full((3, 1024), 127, dtype=torch.int8), torch.full((20, 1024), 127, dtype=torch.int8)
    x[1] = -128
    found = scaled_linear(x, torch.ones(1), weight, torch.ones(20), result="float32", block=None)
    wanted = x.double() @ weight.double().T
    assert torch.equal(found.double(), wanted.float().double())


def test_sums_of_integers_are_the_same_in_every_tile():
    x, x_scale, weight, side, _ = given(80, 256, 40, "int8", "token", None)
    whole = scaled_linear(x, x_scale, weight, side, result="float32", block=None)
    for m in (1, 16, 17, 33, 64, 65):
        part = scaled_linear(x[:m], x_scale[:m], weight, side, result="float32", block=None)
        assert same_bits(part, whole[:m])


@pytest.mark.parametrize("block", [None, (32, 64)])
def test_a_steady_product_is_the_same_for_a_token_in_any_batch(block):
    x, x_scale, weight, side, _ = given(70, 256, 40, "float8_e4m3fn", "token", block)
    how = dict(result="bfloat16", block=block)
    whole = steady_scaled_linear(x, x_scale, weight, side, **how)
    for m in (1, 17, 65):
        assert same_bits(steady_scaled_linear(x[-m:], x_scale[-m:], weight, side, **how), whole[-m:])
    assert same_bits(steady_scaled_linear(x, x_scale, weight, side, **how), whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("m", "k", "n"), SIZES)
def test_dense_products_of_any_size(m, k, n, dtype):
    x, weight, bias = ((torch.randn(shape) / k**0.25).to(dtype) for shape in ((m, k), (n, k), (n,)))
    relative, absolute = DENSE.tolerance[str(dtype).removeprefix("torch.")]
    for more in ((), (bias,)):
        exact = DENSE.reference(*(t.double() for t in (x, weight, *more)))
        found = linear(x, weight, *more)
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), exact, rtol=relative, atol=absolute)
        assert same_bits(linear(x[-1:], weight, *more), found[-1:])


def test_H_FUS_08_operands_sliced_out_of_packed_tensors():
    x, weight, sides = stored((9, 3 * 64), "int8"), stored((40, 2 * 64), "int8"), torch.rand(9, 4)
    how = dict(result="float32", block=None)
    for first in (64, 5):
        views = x[:, first : first + 64], sides[:, 1:2], weight[:, first : first + 64], torch.ones(40)
        copies = [view.contiguous() for view in views]
        assert same_bits(scaled_linear(*views, **how), scaled_linear(*copies, **how))
    transposed = x.t().contiguous().t()
    assert same_bits(
        scaled_linear(transposed, sides[:, :1], weight.repeat(1, 2)[:, :192], torch.ones(40), **how),
        scaled_linear(x, sides[:, :1], weight.repeat(1, 2)[:, :192], torch.ones(40), **how),
    )


def test_no_token_gives_no_row():
    tensors = given(0, 64, 8, "int8", "token", None)
    assert scaled_linear(*tensors, result="float16", block=None).shape == (0, 8)
    assert linear(torch.ones(0, 8), torch.ones(4, 8)).shape == (0, 4)


def test_tiles_of_every_arch_cover_any_number_of_tokens():
    archs = ("", "sm_80", "sm_90", "sm_100", "sm_103", "sm_120", "gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")
    for table, arch, tokens in itertools.product((ROWS, BLOCKS), archs, (1, 16, 17, 64, 65, 9999)):
        assert tile_for(table, arch, tokens).rows >= min(tokens, 64)
    assert tile_for(ROWS, "sm_90", 65).rows == 128 and tile_for(ROWS, "gfx1100", 65).columns == 64


@pytest.mark.parametrize("block", [None, (128, 128)])
def test_a_measured_tile_serves_the_calls_it_was_measured_for(block, monkeypatch):
    monkeypatch.setattr(matmul_tuning, "_CHOSEN", {})
    x, x_scale, weight, side, _ = given(40, 256, 24, "int8", "token", block)
    how, times = dict(result="float32", block=block), iter((3.0, 1.0, 2.0))

    def measure(function):
        torch.testing.assert_close(function(), scaled_linear(x, x_scale, weight, side, **how))
        return next(times)

    chosen = matmul_tuning.tune((x, x_scale, weight, side), how, None, measure)
    assert chosen == [64, 64, 128, 4, 4]
    matmul_tuning._CHOSEN.clear()
    assert matmul_tuning.tune((x, x_scale, weight, side), how, [32, 64, 128, 4, 4], None) == [32, 64, 128, 4, 4]
    table = matmul_tuning.scaled_table(x, weight, block)
    assert tile_for(table, "", 40).rows == 32
    for m in (33, 65):
        other = matmul_tuning.scaled_table(torch.empty(m, 256, dtype=torch.int8), weight, block)
        assert other is (BLOCKS if block else ROWS)
    assert matmul_tuning.scaled_table(x, weight[:8], block) is (BLOCKS if block else ROWS)
    with pytest.raises(ValueError, match="none of the tiles"):
        matmul_tuning.tune((x, x_scale, weight, side), how, [256, 64, 128, 4, 4], None)


REFUSED = [
    ({"call_dtypes": ("int8", "float32", "float8_e4m3fn", "float32")}, "operands are int8 and float8_e4m3fn"),
    ({"call_dtypes": ("bfloat16", "float32", "bfloat16", "float32")}, "operands are bfloat16"),
    ({"call_dtypes": ("int8", "float16", "int8", "float32")}, "scales are float16"),
    ({"result": "float64"}, "result or bias is float64"),
    ({"block": (128, 48)}, "groups of 48 columns, needs a multiple of 32"),
    ({"call_shapes": ((4, 131072), (1,), (8, 131072), (8,))}, "sums of 131072 products of int8"),
    ({"call_dtypes": ()}, "types of the call unknown"),
]


@pytest.mark.parametrize(("change", "reason"), REFUSED)
def test_limits_have_reasons(change, reason):
    facts = {
        "call_dtypes": ("int8", "float32", "int8", "float32"),
        "call_shapes": ((4, 64), (1,), (8, 64), (8,)),
        "result": "bfloat16",
        "block": None,
    }
    row = BY_OP["scaled_linear"]
    assert row.accepts(DEVICE, facts)
    verdict = row.accepts(DEVICE, {**facts, **change})
    assert not verdict and reason in verdict.reason
