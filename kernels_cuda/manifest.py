"""Kernel rows for NVIDIA devices: one row per implementation of an op, read without importing any of them."""

from __future__ import annotations

from typing import Any

from kernels_cuda.calls import BELOW, MINIMUM
from kernels_cuda.limits import ALL_REDUCE_BYTES
from kernels_triton.calls import alike, columns, whole_rows
from kernels_triton.manifest import ROWS
from platforms.contract import DeviceProfile, Facts, Kernel, Predicate, Verdict, all_of, fact, feature, library

_HALVES = ("float16", "bfloat16")


def _known(profile: DeviceProfile, facts: Facts) -> Verdict:
    """A version before the first whose signatures nobody compared."""
    found = profile.libraries.get("flashinfer", "")
    later = library("flashinfer", BELOW)(profile, facts)
    return Verdict(not later, f"flashinfer {found}{'' if not later else f', needs one before {BELOW}'}")


_FLASHINFER = all_of(library("flashinfer", MINIMUM), _known, feature("copy.async"))
"""It starts at Ampere."""

_REDUCE_BLOCK = 1024 * 8
"""Most threads that share one row of a fused all-reduce: a block in each part of a cluster."""


def _reduces(profile: DeviceProfile, facts: Facts) -> Verdict:
    """The group has a fused form here, and a row is made of whole 16-byte pieces that one cluster holds."""
    ranks, shapes, dtype = facts.get("tensor_parallel_size"), facts.get("call_shapes", ()), facts.get("call_dtype")
    if not isinstance(ranks, int) or not shapes or dtype is None:
        return Verdict(False, "ranks, shapes or dtype of the call unknown")
    if (profile.arch, ranks) not in ALL_REDUCE_BYTES:
        return Verdict(False, f"{profile.arch} with {ranks} ranks has no fused all-reduce")
    piece, width = (4 if dtype == "float32" else 8), columns(shapes, 0)
    if not isinstance(width, int) or width % piece or width > piece * _REDUCE_BLOCK:
        return Verdict(False, f"rows of {width}, needs a multiple of {piece} up to {piece * _REDUCE_BLOCK}")
    return Verdict(True, f"{profile.arch} with {ranks} ranks, rows of {width}")


def _row(op: str, module: str, *accepts: Predicate, needs: Predicate = _FLASHINFER, **more: Any) -> Kernel:
    return Kernel(op, "flashinfer", f"kernels_cuda.{module}:{op}", needs, all_of(*accepts), 10, **more)


_FP8 = all_of(_FLASHINFER, feature("dtype.fp8_e4m3fn"))
_STORED = fact("storage", lambda name: name == "float8_e4m3fn", "float8_e4m3fn")
_REDUCED = (*_HALVES, "float32")

KERNELS: tuple[Kernel, ...] = (
    *ROWS,
    _row("rms_norm", "norm", alike(2, *_HALVES)),
    _row("silu_and_mul", "activation", alike(1, *_HALVES)),
    _row(
        "rms_norm_quantize_static",
        "norm",
        alike(2, *_HALVES),
        whole_rows(1),
        _STORED,
        needs=_FP8,
    ),
    _row(
        "add_rms_norm_quantize_static",
        "norm",
        alike(3, *_HALVES),
        whole_rows(2),
        _STORED,
        needs=_FP8,
    ),
    _row("all_reduce_add_rms_norm", "collective", alike(3, *_REDUCED), whole_rows(2), _reduces),
    _row("all_reduce_rms_norm", "collective", alike(2, *_REDUCED), whole_rows(1), _reduces),
    _row(
        "all_reduce_add_rms_norm_quantize_static",
        "collective",
        alike(3, *_HALVES),
        whole_rows(2),
        _STORED,
        _reduces,
        needs=_FP8,
    ),
)
"""The library's rows lead the portable ones by priority. It has no norm with a scale per token or group and no
quantising activation: there the portable rows stand alone."""
