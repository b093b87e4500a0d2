"""The host platform's table of kernels, and the fusions they make worth offering. Standard library only."""

from __future__ import annotations

from platforms.contract import FusionOffer, Kernel, always, fact

_ANY_FLOAT = fact("call_dtype", lambda dtype: dtype in ("float32", "bfloat16", "float16"), "a floating type")

KERNELS: tuple[Kernel, ...] = (
    Kernel("attention", "torch_grouped", "kernels_cpu.attention:attention", accepts=_ANY_FLOAT, priority=10),
    Kernel("rotary_kv_write", "torch_inplace", "kernels_cpu.rotary:rotary_kv_write", accepts=_ANY_FLOAT, priority=10),
)

OFFERS: tuple[FusionOffer, ...] = (FusionOffer("fuse_rope_kvcache", always("one pass over keys instead of two")),)
