"""Products with descriptors on the interpreter: tiles that hang over, fewer programs than tiles, views."""

import pytest
import torch

from engine.ops.compare import same_bits
from kernels_cuda.matmul import SMALL, linear, scaled_linear, units
from kernels_triton.scaled_linear import scaled_linear as portable
from tests.interpreter.rows import OPS

SIZES = [(1, 64, 8), (7, 776, 200), (70, 768, 40), (130, 64, 136)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("m", "k", "n"), SIZES)
def test_dense_products(m, k, n, dtype):
    x, weight, bias = ((torch.randn(shape) / k**0.25).to(dtype) for shape in ((m, k), (n, k), (n,)))
    relative, absolute = OPS["linear"].tolerance[str(dtype).removeprefix("torch.")]
    for more in ((), (bias,)):
        exact = OPS["linear"].reference(*(t.double() for t in (x, weight, *more)))
        found = linear(x, weight, *more)
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), exact, rtol=relative, atol=absolute)
        assert same_bits(linear(x[-1:], weight, *more), found[-1:])


@pytest.mark.parametrize("block", [None, (128, 128), (96, 256)])
@pytest.mark.parametrize("result", ["float32", "bfloat16"])
@pytest.mark.parametrize(("m", "k", "n"), [(SMALL + 6, 768, 40), (130, 784, 136), (SMALL, 784, 8)])
def test_stored_values_with_their_scales(m, k, n, result, block):
    x, weight = (torch.randn(shape).to(torch.float8_e4m3fn) for shape in ((m, k), (n, k)))
    groups = -(-k // block[1]) if block else 1
    side = (torch.rand((-(-n // block[0]), groups) if block else (n,)) + 0.5) / k**0.5
    bias = torch.randn(n).bfloat16() if result == "bfloat16" else None
    relative, absolute = OPS["scaled_linear"].tolerance[result]
    for x_scale in (torch.rand(1) + 0.5, torch.rand(m, groups) + 0.5):
        given = x, x_scale, weight, side, bias
        exact = OPS["scaled_linear"].reference(*given, result="float64", block=block)
        found = scaled_linear(*given, result=result, block=block)
        torch.testing.assert_close(found.double(), exact, rtol=relative, atol=absolute)
        assert same_bits(scaled_linear(*given, result=result, block=block), found)
        if m <= SMALL:
            assert same_bits(portable(*given, result=result, block=block), found)


def test_programs_are_fewer_than_tiles():
    x, weight = torch.randn(200, 64).half(), torch.randn(200, 64).half()
    assert units(x.device) * 32 * 32 < 200 * 200
    torch.testing.assert_close(linear(x, weight).float(), x.float() @ weight.float().T, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("first", [64, 5, 8])
def test_H_FUS_08_operands_sliced_out_of_packed_tensors(first):
    packed, weight = torch.randn(16, 3 * 64).half(), torch.randn(40, 64).half()
    view = packed[:, first : first + 64]
    assert same_bits(linear(view, weight), linear(view.contiguous(), weight))
    assert same_bits(linear(weight, view), linear(weight, view.contiguous()))
    transposed = view.t().contiguous().t()
    assert same_bits(linear(transposed, weight), linear(view.contiguous(), weight))
