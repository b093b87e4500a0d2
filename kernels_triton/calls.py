"""What rows ask of a call: predicates over its types and shapes, for the tables of every platform that points here.
Standard library only."""

from __future__ import annotations

from typing import Any

from platforms.contract import DeviceProfile, Facts, Predicate, Verdict, fact

FLOAT8 = {"float8_e4m3fn": "dtype.fp8_e4m3fn", "float8_e4m3fnuz": "dtype.fp8_e4m3fnuz"}
"""Storage types of 8-bit floats → the feature a device needs for them."""


known_gate = fact("approximate", lambda how: how in ("none", "tanh"), "none or tanh")
"""A form of GELU that kernels have."""


def columns(shapes: Any, at: int) -> Any:
    """The last axis of input ``at``, ``None`` where there is none."""
    return shapes[at][-1] if at < len(shapes) and shapes[at] else None


def alike(count: int, *known: str) -> Predicate:
    """The first ``count`` inputs have one of the ``known`` types, all the same: a vendor's library reads a weight as if
    it had the activation's type."""
    return fact(
        "call_dtypes",
        lambda found: len(set(found[:count])) == 1 and found[0] in known,
        f"{' or '.join(known)}, one type for the first {count}",
    )


def whole_rows(weight: int) -> Predicate:
    """The weight at ``weight`` covers a whole row of the first input."""

    def check(profile: DeviceProfile, facts: Facts) -> Verdict:
        shapes = facts.get("call_shapes", ())
        width, length = columns(shapes, 0), columns(shapes, weight)
        if width is None or length is None:
            return Verdict(False, "shapes of the call unknown")
        if width != length:
            return Verdict(False, f"a row of {width} is normalised in runs of {length}, needs whole rows")
        return Verdict(True, f"{width} columns")

    return check


def two_parts(profile: DeviceProfile, facts: Facts) -> Verdict:
    """The weights at 1 and 2 cover a whole part of the row each, and what is left is one part."""
    sizes, shapes = facts.get("sizes", ()), facts.get("call_shapes", ())
    if len(sizes) != 3 or len(shapes) != 3:
        return Verdict(False, f"parts of {sizes or 'unknown size'}, needs two normalised ones and a rest")
    lengths = (columns(shapes, 1), columns(shapes, 2))
    ok = lengths == tuple(sizes[:2])
    return Verdict(ok, f"parts of {sizes[0]} and {sizes[1]}" + ("" if ok else f", weights of {lengths}"))
