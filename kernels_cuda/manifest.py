"""Kernel rows for NVIDIA devices: one row per implementation of an op, read without importing any of them."""

from __future__ import annotations

from typing import Any

from kernels_cuda.accepts import attends, attends_in_bfloat16, attends_latents, grouped, scaled_rows, stepwise
from kernels_cuda.calls import BELOW, MINIMUM
from kernels_cuda.limits import ALL_REDUCE_BYTES
from kernels_triton.calls import alike, columns, known_gate, whole_rows
from kernels_triton.manifest import ROWS
from kernels_triton.matmul_calls import one_type, scale_groups, stored_operands, whole_pieces
from platforms.contract import (
    DeviceProfile,
    Facts,
    Kernel,
    Predicate,
    Verdict,
    all_of,
    arch,
    fact,
    family,
    feature,
    library,
)

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


def _gelu(profile: DeviceProfile, facts: Facts) -> Verdict:
    """The library's hyperbolic tangent is the device's own, of 11 bits: near minus one that shows in float16."""
    coarse = facts.get("approximate") == "tanh" and "float16" in facts.get("call_dtypes", ())
    return Verdict(not coarse, "a tangent of 11 bits, float16 asks for more" if coarse else "exact for the type")


def _row(op: str, module: str, *accepts: Predicate, needs: Predicate = _FLASHINFER, **more: Any) -> Kernel:
    return Kernel(op, "flashinfer", f"kernels_cuda.{module}:{op}", needs, all_of(*accepts), 10, **more)


def _steps(
    op: str, kind: str, prepare: str, workspace: str, priority: int, needs: Predicate, *accepts: Predicate
) -> Kernel:
    """A row whose calls share what ``prepare`` makes of a step; captured, it serves one new token of each request."""
    module = f"kernels_cuda.{op}"
    suffix = f"_{kind}" if kind else ""
    return Kernel(
        op,
        f"flashinfer{suffix}",
        f"{module}:{op}{suffix}",
        needs,
        all_of(stepwise, *accepts),
        priority,
        graph_batches="single",
        workspace=f"kernels_cuda.workspace:{workspace}",
        prepare=f"{module}:{prepare}",
    )


_PAGES, _HEADS = (16, 32, 64), (64, 128, 256)
"""Those that users run; the library builds kernels for others, which nobody vouches for."""


_FP8 = all_of(_FLASHINFER, feature("dtype.fp8_e4m3fn"))
_GROUPED = all_of(_FP8, arch("sm_100", "sm_103", "sm_120", "sm_121"))
_PRIMS = all_of(_FP8, library("cutlass_dsl", "4.8"), arch("sm_100", "sm_103"))
_STORED = fact("storage", lambda name: name == "float8_e4m3fn", "float8_e4m3fn")
_REDUCED = (*_HALVES, "float32")

_PRECOMPILED = all_of(_FLASHINFER, arch("sm_100", "sm_103"))

_COPIED = all_of(library("triton", "3.7"), family("hopper", "blackwell"), feature("copy.tma"))


def _copied(op: str, priority: int, *accepts: Predicate, invariant: bool) -> Kernel:
    """Our own products with descriptors, after the library's rows."""
    return Kernel(
        op,
        "triton_tma",
        f"kernels_cuda.matmul:{op}",
        _COPIED,
        all_of(*accepts),
        priority,
        batch_invariant=invariant,
        build="kernels_triton.build:build",
    )


KERNELS: tuple[Kernel, ...] = (
    *ROWS,
    _copied("linear", -4, alike(1, *_HALVES), one_type, whole_pieces(2), invariant=True),
    _copied(
        "scaled_linear",
        7,
        alike(1, "float8_e4m3fn"),
        stored_operands,
        scale_groups,
        whole_pieces(1, 128),
        invariant=False,
    ),
    _row("rms_norm", "norm", alike(2, *_HALVES)),
    _row("silu_and_mul", "activation", alike(1, *_HALVES)),
    _row("gelu_and_mul", "activation", alike(1, *_HALVES), known_gate, _gelu),
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
    _row("scaled_linear", "scaled_linear", grouped, needs=_GROUPED),
    Kernel(
        "scaled_linear",
        "flashinfer_prims",
        "kernels_cuda.scaled_linear:scaled_linear_prims",
        _PRIMS,
        scaled_rows,
        priority=4,
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
    _steps("mla_attention", "", "prepare", "planned", 10, _FLASHINFER, attends_latents),
    _steps("mla_attention", "trtllm", "prepare_decode", "either", 11, _PRECOMPILED, attends_in_bfloat16),
    _steps(
        *("attention", "", "prepare_planned", "planned", 10, _FLASHINFER),
        attends(pages=_PAGES, heads=_HEADS, softcap=True, stored=True),
    ),
    _steps(
        *("attention", "xqa", "prepare_decode", "either", 11, all_of(_FLASHINFER, arch("sm_90", "sm_120", "sm_121"))),
        attends(pages=(*_PAGES, 128), heads=_HEADS, group=16, stored=True),
    ),
    _steps(
        *("attention", "trtllm", "prepare_context", "precompiled", 12, _PRECOMPILED),
        attends(pages=_PAGES, heads=_HEADS),
    ),
)
"""The library's rows lead the portable ones by priority, but for products with one scale per row: its tiles of 256 rows
are mostly empty while tokens are decoded, so they are taken where they were measured faster.

There are none where it does other than the op: no norm with a scale per token or group, no sum beside a norm that keeps
its inputs whole, no quantising activation; and its samplers cut nuclei by sums of float32 and keep every tie at an edge
(``air_top_p.cuh``, ``topk.cuh``), where a draw is exact."""
