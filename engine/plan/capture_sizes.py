"""Token counts that graphs are captured for."""

from __future__ import annotations

DEFAULT_CAP = 512


def capture_sizes(
    max_num_seqs: int,
    max_tokens: int,
    maximum: int | None = None,
    cap: int = DEFAULT_CAP,
    query: int = 1,
    step: int | None = None,
) -> list[int]:
    """1, 2, 4, then steps of 8 below 256, then of 16, up to the maximum, which is always in the list; and the same
    counts of requests, ``max_num_seqs`` among them, with ``query`` tokens each. ``maximum`` ``None``:
    ``2 * max_num_seqs * query`` held to ``cap``. Every size is at most ``max_tokens``. Grid: `optimization-levels.md`
    section 10 in the project's references. ``step``: every so many tokens instead, up to ``max_num_seqs * query`` where
    no maximum is given."""
    if step:
        most = min(maximum if maximum is not None else max_num_seqs * query, max_tokens)
        return sorted({*range(step, most + 1, step), most})
    chosen = min(maximum if maximum is not None else min(2 * max_num_seqs * query, cap), max_tokens)
    requests = {count * query for count in _grid(max_num_seqs)}
    return sorted(size for size in _grid(chosen) | requests if size <= chosen)


def _grid(most: int) -> set[int]:
    return {count for count in (1, 2, 4, *range(8, 256, 8), *range(256, most + 1, 16), most) if 1 <= count <= most}
