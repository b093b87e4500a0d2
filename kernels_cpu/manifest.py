"""The host platform's table of kernels, and the fusions they make worth offering. Standard library only."""

from __future__ import annotations

from kernels_cpu.predicates import ALIKE, MIXED, SINGLE, emulated, float_cache, paired, uncapped, unscaled
from kernels_cpu.rows import attention, blocks, dense, small
from platforms.contract import FusionOffer, Kernel, all_of, always


def _row(op: str, name: str, module: str, **more: object) -> Kernel:
    return Kernel(op, name, f"kernels_cpu.{module}:{op}", priority=10, **more)  # type: ignore[arg-type]


KERNELS: tuple[Kernel, ...] = (
    *attention.ROWS,
    *blocks.ROWS,
    *dense.ROWS,
    *small.ROWS,
    _row("attention", "torch_grouped", "attention", accepts=all_of(ALIKE, float_cache(1), unscaled(5), uncapped)),
    _row(
        "linear",
        "torch_transposed",
        "linear",
        accepts=all_of(ALIKE, emulated(False), paired),
        pack="kernels_cpu.linear:pack",
    ),
    _row("rms_norm", "torch_fused", "norm", accepts=SINGLE),
    _row("rotary_kv_write", "torch_inplace", "rotary", accepts=all_of(MIXED, float_cache(4), unscaled(6))),
    _row("silu_and_mul", "torch_inplace", "activation", accepts=SINGLE),
    _row("gelu_and_mul", "torch_inplace", "activation", accepts=SINGLE),
)

OFFERS: tuple[FusionOffer, ...] = (FusionOffer("fuse_rope_kvcache", always("one pass over keys instead of two")),)
