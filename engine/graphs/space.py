"""What graphs will take of the device, before any is made. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from engine.compile.cut import Segment
from engine.graphs.buffers import buffer_bytes, logits_bytes, places
from engine.graphs.dispatch import Key
from engine.memory import body_bytes
from engine.plan_values import Plan
from engine.program import Program


def graph_bytes(ranges: Iterable[tuple[Program, Sequence[Segment]]], keys: Sequence[Key], width: int) -> int:
    """0 without graphs. Else the buffers, to the byte, and for the pool what a step of the largest graph needs: graphs
    run one at a time, and largest first each later one fits into the memory of the first. Not counted: what a driver
    keeps for each graph. ``width``: columns of the block tables."""
    if not keys:
        return 0
    ranges = list(ranges)
    tokens, requests = max(key.tokens for key in keys), max(key.requests for key in keys)
    used = {place for program, segments in ranges for place in places(program, segments).values()}
    pool = max(
        max(body_bytes(program, tokens, min(tokens, max(requests, 1))), logits_bytes(program, requests))
        for program, _ in ranges
    )
    return buffer_bytes(ranges[0][0], used, tokens, requests, width) + pool


def table_width(plan: Plan) -> int:
    """Columns of a block table that holds the longest sequence."""
    return -(-plan["scheduler.max_model_len"] // plan["cache.block_size"])
