"""Products of quantised activations with blocks of four to eight bits."""

from __future__ import annotations

from kernels_cpu.predicates import COMPILED, SINGLE, TILES, TILES_BF16, VNNI, native
from platforms.contract import Kernel, Predicate, all_of, arch, fact, feature


def _row(name: str, priority: int, *needs: Predicate, **more: object) -> Kernel:
    return native(
        "scaled_block_linear",
        name,
        f"blocks:{name}",
        needs=all_of(COMPILED, *needs),
        accepts=all_of(SINGLE, fact("result", lambda found: found == "float32", "a float32 result")),
        priority=priority,
        pack="kernels_cpu.native.blocks:pack",
        **more,
    )


ROWS: tuple[Kernel, ...] = (
    _row("amx_bf16", 26, TILES_BF16, rounds="bfloat16", batch_invariant=False),
    _row("amx", 25, TILES),
    _row("vnni", 24, VNNI),
    _row("avx2", 23, arch("x86-64-v3", "x86-64-v4")),
    _row("neon", 22, feature("isa.asimddp")),
    _row("portable", 21),
)
