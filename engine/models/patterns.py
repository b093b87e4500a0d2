"""What it can take to ask whether a pattern of a stranger's matches: ``re`` tries without end, and has no clock."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import comb
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

NAME = 64
"""Characters of a module's name at most."""
LENGTH = 1000
"""Characters of a pattern at most."""
GROUPS = 100
"""Parentheses that a pattern opens at most: readers of patterns go down into each, and so deep is no stack."""
TRIES = 1 << 20
"""Most tries of a pattern at one name: some 20 ms."""
_CASELESS = re.compile(r"\(\?[a-zA-Z]*i")
_FEW = 8
_REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT)


@dataclass(frozen=True, slots=True)
class _Ways:
    """In how many ways a part can match: ``several`` times those of ``free`` repeats that share a name among them."""

    several: int = 1
    free: int = 0

    @property
    def one(self) -> bool:
        return self.several == 1 and not self.free

    @property
    def tries(self) -> int:
        return self.several * comb(NAME + self.free, self.free)


def tries(pattern: str) -> int:
    """At most how often the parts of ``pattern`` are tried at the start of a name. Raises ``ValueError`` saying why
    the pattern cannot be read, or why there is no such number."""
    if len(pattern) > LENGTH:
        raise ValueError(f"it has {len(pattern)} characters, more than {LENGTH}")
    if _CASELESS.search(pattern) and set(pattern) & set("[|"):
        # Letters that differ in case are not apart, and sets without case are compiled letter by letter.
        raise ValueError("it ignores case, which goes with neither sets nor alternatives")
    if pattern.count("(") > GROUPS:
        raise ValueError(f"it opens {pattern.count('(')} groups, more than {GROUPS}")
    try:
        re.compile(pattern)
        parts = list(parser.parse(pattern))
        while parts and parts[-1][0] in _REPEATS and parts[-1][1][0] <= 1 and _of(parts[-1][1][2]).one:
            parts.pop()  # nothing behind it can fail
        return _of(parts).tries
    except (re.error, OverflowError) as error:
        raise ValueError(str(error)) from error


def _of(parts: Any) -> _Ways:
    several, free = 1, 0
    for code, value in parts:
        found = _part(code, value)
        several, free = several * found.several, free + found.free
        if several > TRIES or free > NAME:
            raise ValueError("too many of its repeats and alternatives follow each other")
    return _Ways(several, free)


def _part(code: Any, value: Any) -> _Ways:
    if code in _REPEATS:
        return _repeat(*value)
    if code is codes.BRANCH:
        ways = [_of(one) for one in value[1]]
        starts = [tuple(one)[:1] for one in value[1]]
        apart = len({*map(str, starts)}) == len(starts) and all(s and s[0][0] is codes.LITERAL for s in starts)
        several = [one.several for one in ways]
        return _Ways(max(several) if apart else sum(several), max(one.free for one in ways))
    if code is codes.SUBPATTERN:
        return _of(value[3])
    if code is codes.ATOMIC_GROUP:
        return _of(value)
    if code in (codes.ASSERT, codes.ASSERT_NOT):
        return _of(value[1])
    if code is codes.GROUPREF_EXISTS:
        ways = [_of(one) for one in value[1:] if one is not None]
        return _Ways(sum(one.several for one in ways), max(one.free for one in ways))
    return _Ways()


def _repeat(least: int, most: int, body: Any) -> _Ways:
    ways = _of(body)
    if most <= 1:
        return _Ways(ways.several + (least < most), ways.free)
    if not body.getwidth()[0]:
        raise ValueError("it repeats what may be nothing")
    spread = min(most, NAME) - min(least, NAME) + 1
    if ways.one:
        return _Ways(spread) if spread <= _FEW else _Ways(1, 1)
    if most > _FEW:
        raise ValueError("it repeats what itself can match in several ways")
    return _Ways(ways.several**most * spread, ways.free * most)
