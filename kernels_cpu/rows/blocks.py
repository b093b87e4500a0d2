"""Products of quantised activations with blocks of four to eight bits."""

from __future__ import annotations

from kernels_cpu.predicates import COMPILED, SINGLE, native
from platforms.contract import Kernel, Predicate, all_of, arch, fact, feature


def _row(name: str, priority: int, *needs: Predicate) -> Kernel:
    """The library has the form where its compiler may use all of the level, which ``arch`` says."""
    return native(
        "scaled_block_linear",
        name,
        f"blocks:{name}",
        needs=all_of(COMPILED, *needs),
        accepts=all_of(SINGLE, fact("result", lambda found: found == "float32", "a float32 result")),
        priority=priority,
        pack="kernels_cpu.native.blocks:pack",
    )


ROWS: tuple[Kernel, ...] = (
    _row("amx", 25, arch("x86-64-v4"), feature("isa.avx512_vnni"), feature("isa.amx_int8")),
    _row("vnni", 24, arch("x86-64-v4"), feature("isa.avx512_vnni")),
    _row("avx2", 23, arch("x86-64-v3", "x86-64-v4")),
    _row("neon", 22, feature("isa.asimddp")),
    _row("portable", 21),
)
