"""Kernels that are wrong on purpose."""

import triton.language as tl

from kernels_triton.launch import jit


@jit
def product_kernel(a, b, out, count: tl.int32, SIZE: tl.constexpr):
    """Sums of products, each held by as many threads as there are warps."""
    at = tl.arange(0, SIZE)
    places = at[:, None] * SIZE + at[None, :]
    sums = tl.zeros([SIZE, SIZE], tl.float32)
    for step in range(count):
        left = tl.load(a + step * SIZE * SIZE + places)
        sums += tl.dot(left, tl.load(b + step * SIZE * SIZE + places))
    tl.store(out + places, sums.to(out.dtype.element_ty))


@jit
def untyped_kernel(x, count):
    """A number without a type: 1 and 16 would be forms of their own."""
    tl.store(x + count, 0.0)
