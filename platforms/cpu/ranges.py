"""CPU lists as the kernel prints them, never written out: a damaged one may name every number there is."""

from __future__ import annotations

from platforms.machine import whole

Ranges = tuple[range, ...]


def parse(text: str) -> Ranges:
    """``0-3,8`` → 0 to 3 and 8; parts that are no numbers are left out."""
    spans = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        low, high = whole(first), whole(last) if dash else whole(first)
        if low is not None and high is not None and low <= high:
            spans.append(range(low, high + 1))
    return tuple(spans)


def inside(spans: Ranges, number: int) -> bool:
    return any(number in span for span in spans)
