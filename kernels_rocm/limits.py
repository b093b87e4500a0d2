"""Sizes that AITER's kernels take, read off their sources. Standard library only. A call outside them may end the
process instead of raising, so that a row has to refuse it."""

from __future__ import annotations

WIDEST_ROW = 8192
WIDEST_BLOCK = 16384
"""Columns of the Triton kernels, which hold a row in one program: 16 of them in each of 1024 threads."""

ALL_REDUCE_BYTES = 64 << 20
"""Most bytes of one fused sum: half of the buffers, which two stages share."""

ALL_REDUCE_RANKS = (2, 4, 8)
ONE_STAGE_TOKENS = 80


def one_stage_bytes(ranks: int) -> int:
    """Below this one stage is the faster one."""
    return ALL_REDUCE_BYTES if ranks == 2 else (256 if ranks == 4 else 128) << 10


def norm_vector(width: int, compute_units: int) -> int:
    """Elements of a row that one thread of the norm with groups takes; 0 where no kernel has the width."""
    if width <= 2048:
        return 8
    if width <= 4096:
        return 16
    if width <= 6144:
        return 24
    return 0 if width > WIDEST_ROW else 16 if compute_units < 160 else 8


def gate_vector(width: int) -> int:
    """The same of the gated activation; ``width``: of its result."""
    if width <= 2048:
        return 8
    return 16 if width <= 4096 else 24 if width <= 6144 else 32 if width <= WIDEST_ROW else 0


def group_fits(columns: int, vector: int) -> bool:
    """A group is reduced by a power of two of threads within one wave of 64."""
    threads, rest = divmod(columns, vector) if vector else (0, 1)
    return rest == 0 and 0 < threads <= 64 and threads & (threads - 1) == 0
