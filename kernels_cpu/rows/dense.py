"""Products of float activations, with dense weights and with blocks; look-ups."""

from __future__ import annotations

from kernels_cpu.predicates import SINGLE, native
from platforms.contract import Kernel, Predicate, all_of, fact

BLOCKS = fact("format", ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k").__contains__, "a block format")
FULL = fact("result", "float32".__eq__, "float32")


def _blocks(op: str, name: str, accepts: Predicate, **more: object) -> Kernel:
    return native(op, name, f"float_blocks:{op}", accepts=accepts, pack="kernels_cpu.native.blocks:pack", **more)


ROWS: tuple[Kernel, ...] = (
    native("linear", "native", "dense:linear", accepts=SINGLE, pack="kernels_cpu.native.dense:pack"),
    _blocks("block_linear", "native", all_of(BLOCKS, SINGLE)),
    _blocks("scaled_block_linear", "float", all_of(BLOCKS, FULL, SINGLE), priority=5),
    native("embedding", "native", "embedding:embedding"),
    native("block_embedding", "native", "embedding:block_embedding", accepts=all_of(BLOCKS, FULL)),
)
