"""What rows of products ask of a call. Standard library only."""

from __future__ import annotations

from typing import Any

from kernels_triton.calls import FLOAT8, columns
from platforms.contract import DeviceProfile, Facts, Predicate, Verdict

STORED = {**FLOAT8, "int8": "dtype.int8"}
"""Types of stored values → the feature a device needs for their products."""
RESULTS = ("float32", "bfloat16", "float16")
SMALLEST_DEPTH = 32
"""Columns that every matrix unit multiplies at once."""
LARGEST_SUM = (2**31 - 1) // 128**2
"""Products of int8 that an int32 holds the sum of."""


def stored_operands(profile: DeviceProfile, facts: Facts) -> Verdict:
    """Both operands of a scaled product have one storage type, which the device multiplies; it has the result's type
    too."""
    found, result = facts.get("call_dtypes", ()), facts.get("result")
    if len(found) not in (4, 5):
        return Verdict(False, "types of the call unknown")
    kind, other = found[0], found[2]
    if kind != other or kind not in STORED:
        return Verdict(False, f"operands are {kind} and {other}, needs one of {', '.join(STORED)} for both")
    if found[1] != "float32" or found[3] != "float32":
        return Verdict(False, f"scales are {found[1]} and {found[3]}, needs float32")
    outside = [name for name in (result, *found[4:]) if name not in RESULTS]
    if outside:
        return Verdict(False, f"result or bias is {outside[0] or 'unknown'}, needs one of {', '.join(RESULTS)}")
    for wanted in (STORED[kind], *(f"dtype.{name}" for name in (result, *found[4:]))):
        if wanted not in profile.features:
            return Verdict(False, f"{wanted} absent")
    return Verdict(True, f"{STORED[kind]} present")


def scale_groups(profile: DeviceProfile, facts: Facts) -> Verdict:
    """A group of columns is whole tiles deep; sums of integers between two scalings fit an int32."""
    found, block = facts.get("call_dtypes", ()), facts.get("block")
    width: Any = columns(facts.get("call_shapes", ()), 0)
    if block is not None and block[1] % SMALLEST_DEPTH:
        return Verdict(False, f"groups of {block[1]} columns, needs a multiple of {SMALLEST_DEPTH}")
    run = block[1] if block else width
    if found[:1] == ("int8",) and isinstance(run, int) and run > LARGEST_SUM:
        return Verdict(False, f"sums of {run} products of int8, an int32 holds {LARGEST_SUM}")
    return Verdict(True, f"groups of {run} columns" if block else "one scale per row")


def whole_pieces(size: int, depth: int = 1) -> Predicate:
    """Rows of operands, of ``size`` bytes an element, and of the result are whole 16-byte pieces, as descriptors need
    them; groups of columns are a multiple of ``depth``."""

    def check(profile: DeviceProfile, facts: Facts) -> Verdict:
        shapes, block, result = facts.get("call_shapes", ()), facts.get("block"), facts.get("result")
        weight = 1 if size > 1 else 2
        width, out = columns(shapes, 0), shapes[weight][0] if weight < len(shapes) else None
        if not isinstance(width, int) or not isinstance(out, int):
            return Verdict(False, "shapes of the call unknown")
        made = 4 if result == "float32" else 2
        if width * size % 16 or out * made % 16:
            return Verdict(False, f"rows of {width * size} and {out * made} bytes, needs multiples of 16")
        if block is not None and block[1] % depth:
            return Verdict(False, f"groups of {block[1]} columns, needs a multiple of {depth}")
        return Verdict(True, f"rows of {width * size} and {out * made} bytes")

    return check


def one_type(profile: DeviceProfile, facts: Facts) -> Verdict:
    """Activations, weight and bias of a dense product have one type."""
    found = set(facts.get("call_dtypes", ()))
    return Verdict(len(found) == 1, f"inputs are {' and '.join(sorted(found)) or 'unknown'}, needs one type for all")
