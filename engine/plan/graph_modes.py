"""Which graphs can be captured around attention, as pure functions of what attention and the other calls declare.

The rules are those users know (`optimization-levels.md` section 9 in the project's references), with every downgrade
named.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Support = Literal["never", "single", "uniform", "any"]
SUPPORT: tuple[Support, ...] = ("never", "single", "uniform", "any")
"""Batches that a captured attention call serves, from fewest to most: none, one new token per request, equal query
lengths, every batch."""

PARTS: dict[str, tuple[str, str]] = {
    "NONE": ("NONE", "NONE"),
    "PIECEWISE": ("PIECEWISE", "PIECEWISE"),
    "FULL": ("FULL", "FULL"),
    "FULL_DECODE_ONLY": ("FULL", "NONE"),
    "FULL_AND_PIECEWISE": ("FULL", "PIECEWISE"),
}
"""Graph mode → what decode batches and what all other batches run."""

_MODES = {parts: mode for mode, parts in PARTS.items()}


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What decides beside the wish. ``support``: the least of all attention calls. ``pieces``: pieces are made, with
    attention between them. ``unsafe``: why a call inside the pieces cannot be captured, ``""`` where all can.
    ``query``: new tokens per request of a decode step, above 1 with a draft. ``who`` declares the least support."""

    support: Support
    pieces: bool
    unsafe: str = ""
    query: int = 1
    who: str = "attention"


def least(levels: Iterable[Support]) -> Support:
    """The support of several attention calls together; ``any`` where there is none."""
    return min(levels, key=SUPPORT.index, default="any")


def effective(mode: str, around: Surroundings) -> tuple[str, str]:
    """The graph mode that can be served, and why it is less than ``mode``; ``""`` where it is not."""
    if mode == "NONE":
        return mode, ""
    if around.unsafe:
        return "NONE", around.unsafe
    decode, mixed = PARTS[mode]
    reasons = []
    if mixed == "FULL" and around.support != "any":
        mixed = "PIECEWISE" if around.pieces and around.support != "never" else "NONE"
        reasons.append(_serves(around) + ("" if around.support == "never" else ", not every batch"))
    if decode == "FULL" and not _decodes(around):
        decode = "PIECEWISE" if around.pieces else "NONE"
        if mixed == "NONE" and mode == "FULL":
            mixed = decode
        need = "one new token per request" if around.query == 1 else f"{around.query} new tokens per request"
        more = "" if around.support == "never" else f", and decode steps have {need}"
        reasons.append(_serves(around) + more)
    if "PIECEWISE" in (decode, mixed) and not around.pieces:
        decode, mixed = (part if part != "PIECEWISE" else "NONE" for part in (decode, mixed))
        reasons.append("no pieces are made with attention between them")
    return _MODES.get((decode, mixed), "NONE"), "; ".join(dict.fromkeys(reasons))


def kinds(mode: str, size: int, requests: int, query: int = 1) -> tuple[str, ...]:
    """Graphs that a mode wants of steps of ``size`` tokens, the better first. ``requests``: the most in one step."""
    decode, mixed = PARTS[mode]
    decodes = size % query == 0 and size // query <= requests
    full = mixed == "FULL" or (decode == "FULL" and decodes)
    return ("FULL",) * full + ("PIECEWISE",) * ("PIECEWISE" in (decode, mixed))


def without(mode: str, kind: str) -> str:
    """What is left of a graph mode without graphs of one kind: decode batches run what the others run."""
    decode, mixed = (part if part != kind else "NONE" for part in PARTS[mode])
    return _MODES[decode if decode != "NONE" else mixed, mixed]


def without_pieces(mode: str) -> str:
    """What is left of a graph mode where nothing is cut into pieces."""
    return {"PIECEWISE": "NONE", "FULL_AND_PIECEWISE": "FULL_DECODE_ONLY"}.get(mode, mode)


def _serves(around: Surroundings) -> str:
    if around.support == "never":
        return f"{around.who} cannot be captured"
    return f"{around.who}, captured, serves {_WORDS[around.support]}"


_WORDS: dict[Support, str] = {
    "single": "one new token per request",
    "uniform": "equal query lengths",
    "any": "every batch",
}


def _decodes(around: Surroundings) -> bool:
    return SUPPORT.index(around.support) >= (1 if around.query == 1 else 2)
