"""Token counts that graphs are captured for."""

from __future__ import annotations

DEFAULT_CAP = 512
FEW = 16
"""So many sizes of a platform's own step come first, the rest lie ``WIDER`` steps apart: there a step that is padded to
the next costs a small share more, and each size takes time and memory at start."""
WIDER = 8


def capture_sizes(
    max_num_seqs: int,
    max_tokens: int,
    maximum: int | None = None,
    cap: int = DEFAULT_CAP,
    query: int = 1,
    step: int | None = None,
    every: int = 0,
) -> list[int]:
    """1, 2, 4, then steps of 8 below 256, then of 16, up to the maximum, which is always in the list; and the same
    counts of requests, ``max_num_seqs`` among them, with ``query`` tokens each. ``maximum`` ``None``:
    ``2 * max_num_seqs * query`` held to ``cap``. Every size is at most ``max_tokens``. Grid: `optimization-levels.md`
    section 10 in the project's references. ``step``: ``FEW`` sizes so many tokens apart instead, then ``WIDER`` times
    as far, up to ``max_num_seqs * query`` where no maximum is given. ``every``: all sizes up to this,
    too."""
    most = max_num_seqs * query if step else min(2 * max_num_seqs * query, cap)
    most = min(most if maximum is None else maximum, max_tokens)
    if step:
        sizes = {*range(step, FEW * step + 1, step), *range(FEW * step, most + 1, WIDER * step), most}
    else:
        sizes = _grid(most) | {count * query for count in _grid(max_num_seqs)}
    return sorted(size for size in sizes | {*range(1, every + 1)} if size <= most)


def _grid(most: int) -> set[int]:
    return {count for count in (1, 2, 4, *range(8, 256, 8), *range(256, most + 1, 16), most) if 1 <= count <= most}
