"""A norm in Triton. Imported when a row is bound or built, with torch and triton."""

from __future__ import annotations

import torch
import triton.language as tl

from kernels_triton.launch import block, jit, launch, rows, warps_for


@jit
def norm_kernel(x, weight, out, stride: tl.int32, columns: tl.int32, eps: tl.float32, BLOCK: tl.constexpr):
    """Program i: row i, in one tile."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + row * stride + at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, 0) / columns + eps)
    weights = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * columns + at, (values * scale * weights).to(out.dtype.element_ty), mask=inside)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """As the op, for up to 4096 columns. ``launch`` starts the kernel, or records what it would start."""
    columns = weight.shape[0]
    given, out = rows(x.reshape(-1, columns)), torch.empty(x.shape, dtype=x.dtype, device=x.device)
    size = block(columns)
    launch(
        norm_kernel,
        (given.shape[0],),
        *(given, weight, out, given.stride(0), columns, eps),
        warps=warps_for(size),
        BLOCK=size,
    )
    return out
