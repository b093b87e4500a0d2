"""What must be true of a form's code on a device, and what is said where it is not. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernels_triton.forms import Form
    from kernels_triton.resources import Resources

LARGE = 64
"""Rows of a matrix product from which newer units take it; below, no tile fits them."""
WIDE = 128
"""Bits of an access that a thread can make at most on every arch."""

_LARGE_UNITS = {"sm_90": "wgmma", "sm_100": "tcgen05", "sm_103": "tcgen05"}
_EVERY_UNIT = ("mma.sync", "wgmma", "tcgen05", "mfma", "wmma")

_NO_INTEGERS = ("sm_100", "sm_103")
"""Their large unit takes integers only on sm_100, and Triton offers that to nobody."""

EXCUSED: Mapping[tuple[str, str], str] = {}
"""(kernel as its form names it, arch) → why its products stay on the older unit."""


def problems(form: Form, found: Resources, arch: str, shared_memory: int) -> tuple[str, ...]:
    """Sentences, none where the code is as it should be: nothing spilled, shared memory within ``shared_memory`` bytes,
    matrix products on the arch's matrix unit (on that for large tiles from ``LARGE`` rows on), and 128-bit loads where
    the form promises rows of multiples of 16 by its constant ``WIDE``."""
    said = []
    if found.spills:
        said.append(f"spills {found.spills}")
    if found.shared_memory > shared_memory:
        said.append(f"takes {found.shared_memory} bytes of shared memory, {arch} has {shared_memory}")
    if found.product_rows and not set(found.matrix) & set(_EVERY_UNIT):
        said.append(f"products of {found.product_rows} rows use no matrix unit")
    integers = arch in _NO_INTEGERS and form.signature[0][1] == "*i8"
    unit = None if integers else _LARGE_UNITS.get(arch)
    if found.product_rows >= LARGE and unit and unit not in found.matrix and (form.kernel, arch) not in EXCUSED:
        used = " and ".join(found.matrix) or "none"
        said.append(f"products of {found.product_rows} rows use {used}, needs {unit}")
    if dict(form.constants).get("WIDE") and found.load < WIDE:
        said.append(f"loads {found.load} bits at most, promises {WIDE}")
    return tuple(said)
