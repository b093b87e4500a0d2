"""The host platform's table of kernels, and the fusions they make worth offering. Standard library only."""

from __future__ import annotations

from platforms.contract import FusionOffer, Kernel, always, fact

_FLOATING = fact("call_dtype", lambda dtype: dtype in ("float32", "bfloat16", "float16"), "a floating type")
_SINGLE = fact("call_dtype", lambda dtype: dtype == "float32", "float32")


def _row(op: str, name: str, module: str, **more: object) -> Kernel:
    return Kernel(op, name, f"kernels_cpu.{module}:{op}", priority=10, **more)  # type: ignore[arg-type]


KERNELS: tuple[Kernel, ...] = (
    _row("attention", "torch_grouped", "attention", accepts=_FLOATING),
    _row("linear", "torch_transposed", "linear", accepts=_FLOATING, pack="kernels_cpu.linear:pack"),
    _row("rms_norm", "torch_fused", "norm", accepts=_SINGLE),
    _row("rotary_kv_write", "torch_inplace", "rotary", accepts=_FLOATING),
    _row("silu_and_mul", "torch_inplace", "activation", accepts=_SINGLE),
)

OFFERS: tuple[FusionOffer, ...] = (FusionOffer("fuse_rope_kvcache", always("one pass over keys instead of two")),)
