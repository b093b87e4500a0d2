"""The values a plan is made of. Standard library only."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.program import Program
from platforms.contract import DeviceProfile, Verdict

LEANING = "performance mode"
"""The origin of a default that the performance mode changed."""


@dataclass(frozen=True, slots=True)
class Given:
    """A value somebody asked for, and who: ``command line``, ``environment``, ``file`` or ``argument`` (Python)."""

    value: Any
    origin: str


@dataclass(frozen=True, slots=True)
class Decision:
    """The final value of one canonical key. ``origin`` adds ``platform``, ``level``, ``performance mode``, ``default``
    and ``derived`` to those of ``Given``; ``reason`` says why in words for a user."""

    key: str
    value: Any
    origin: str
    reason: str


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """Who computes all calls of the program that look alike. ``call``: dtypes and attributes in one line;
    ``count``: how many such calls; ``chosen``: a row's name or ``reference``; ``considered``: every row of the op
    with its verdict, best priority first; ``rivals``: those between whom measuring may decide, in order."""

    op: str
    call: str
    count: int
    chosen: str
    target: str
    reason: str
    considered: tuple[tuple[str, Verdict], ...] = ()
    rivals: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FusionReport:
    """One rule. ``requested``: somebody or the level asked for it (``origin`` says who); ``eligible``: offer,
    predicate and kernel all said yes; ``matched``: how many places were rewritten, the most of any range. Active iff
    ``matched > 0``. ``ranges``: (first, last token count, places) for each range of step sizes in which it acts."""

    rule: str
    requested: bool
    origin: str
    eligible: bool
    matched: int
    reason: str
    ranges: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class PieceChoice:
    """Pieces of a program that differ in names only. ``name``: first, middle, last or whole, numbered where there are
    more; ``calls``: of one such piece; ``count``: how many there are; ``generator``: who makes their code, ``inductor``
    or ``native``, where each call stays what it is."""

    name: str
    calls: int
    count: int
    generator: str
    reason: str


@dataclass(frozen=True, slots=True)
class TokenRange:
    """What steps of ``start`` to ``end`` tokens run. ``matched``: rule → places rewritten in ``program``. ``pieces``:
    in order of first appearance, none where the program is not cut."""

    start: int
    end: int
    program: Program
    matched: Mapping[str, int]
    pieces: tuple[PieceChoice, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """Every decision about one model on one device at one level. Made by ``engine.plan.make_plan`` alone. ``kernels``:
    of every program in ``ranges``, which together cover steps of 1 token to the largest. ``between``: ops that stand
    between pieces."""

    profile: DeviceProfile
    decisions: Mapping[str, Decision]
    kernels: tuple[KernelChoice, ...]
    fusions: tuple[FusionReport, ...]
    ranges: tuple[TokenRange, ...]
    warnings: tuple[str, ...] = ()
    hash: str = field(default="")
    between: tuple[str, ...] = ()

    def __getitem__(self, key: str) -> Any:
        """The value decided for a canonical key, e.g. ``plan["scheduler.max_num_seqs"]``."""
        return self.decisions[key].value

    @property
    def program(self) -> Program:
        """The program of the smallest steps."""
        return self.ranges[0].program

    def to_json(self) -> dict[str, Any]:
        """Everything but the programs, whose structure the choices describe; keys sorted."""
        return {
            "platform": self.profile.platform,
            "arch": self.profile.arch,
            "profile_origin": self.profile.origin,
            "decisions": {
                key: {"value": row.value, "origin": row.origin, "reason": row.reason}
                for key, row in sorted(self.decisions.items())
            },
            "kernels": [
                {
                    "op": row.op,
                    "call": row.call,
                    "count": row.count,
                    "chosen": row.chosen,
                    "reason": row.reason,
                    "considered": [[name, verdict.ok, verdict.reason] for name, verdict in row.considered],
                }
                for row in self.kernels
            ],
            "fusions": [{name: getattr(row, name) for name in FusionReport.__slots__} for row in self.fusions],
            "ranges": [
                {
                    "start": one.start,
                    "end": one.end,
                    "pieces": [{name: getattr(row, name) for name in PieceChoice.__slots__} for row in one.pieces],
                }
                for one in self.ranges
            ],
            "between": list(self.between),
            "warnings": list(self.warnings),
            "hash": self.hash,
        }


def digest(value: Any) -> str:
    """16 hex digits of a JSON-able value; equal values give equal digests on every machine."""
    text = json.dumps(value, sort_keys=True, default=str, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
