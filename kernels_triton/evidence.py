"""What must be true of a form's code on a device, and what is said where it is not. Standard library only."""

from __future__ import annotations

import re
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

STREAMS = frozenset(
    {
        f"kernels_triton.{name}"
        for name in ("rows:row_kernel", "norm:dual_kernel", "copies:add_kernel", "copies:gather_kernel")
    }
)
"""Kernels that move rows of any length: where their constant ``WIDE`` says that these are multiples of 16, by accesses
of ``WIDE`` bits, if a tile (their constant ``BLOCK``) has as many for each thread."""

EXCUSED: Mapping[tuple[str, str], str] = {}
"""(kernel as its form names it, arch) → why its products stay on the older unit."""


def problems(form: Form, found: Resources, arch: str, shared_memory: int) -> tuple[str, ...]:
    """Sentences, none where the code is as it should be: nothing spilled, shared memory within ``shared_memory`` bytes,
    matrix products on the arch's matrix unit (on that for large tiles from ``LARGE`` rows on), and 128-bit loads of
    ``STREAMS``."""
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
    if form.kernel in STREAMS and found.load < (wanted := _bits(form, arch)):
        said.append(f"loads {found.load} bits at most, rows of multiples of 16 allow {wanted}")
    return tuple(said)


def _bits(form: Form, arch: str) -> int:
    """Of a thread's load, as wide as its part of a tile, where rows are multiples of 16."""
    constants, lanes = dict(form.constants), 64 if arch.startswith("gfx9") else 32
    kind = next(kind for _, kind in form.signature if kind.startswith("*"))
    each = constants["BLOCK"] // (lanes * form.warps)
    return min(WIDE, each * int(re.sub(r"\D", "", kind.partition("e")[0]))) if constants["WIDE"] else 0
