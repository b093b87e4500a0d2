"""Products of quantised activations with blocks of four to eight bits."""

from __future__ import annotations

from kernels_cpu.predicates import COMPILED, SINGLE, native
from platforms.contract import Kernel, all_of, fact, feature


def _row(name: str, priority: int, *features: str) -> Kernel:
    return native(
        "scaled_block_linear",
        name,
        f"blocks:{name}",
        needs=all_of(COMPILED, *(feature(f"isa.{one}") for one in features)),
        accepts=all_of(SINGLE, fact("result", lambda found: found == "float32", "a float32 result")),
        priority=priority,
        pack="kernels_cpu.native.blocks:pack",
    )


ROWS: tuple[Kernel, ...] = (
    _row("vnni", 24, "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"),
    _row("avx2", 23, "avx2", "fma", "f16c"),
)
