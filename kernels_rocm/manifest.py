"""Kernel rows for AMD devices: one row per implementation of an op, read without importing any of them."""

from __future__ import annotations

from typing import Any

from kernels_rocm.accepts import HALVES, attends, cached, experts, float8, latents, product, routing
from kernels_rocm.limits import ALL_REDUCE_RANKS, WIDEST_BLOCK, WIDEST_ROW, gate_vector, group_fits, norm_vector
from kernels_rocm.needs import aiter
from kernels_triton.calls import FLOAT8, alike, columns, known_gate, two_parts, whole_rows
from kernels_triton.manifest import ROWS
from platforms.contract import DeviceProfile, Facts, Kernel, Predicate, Verdict, all_of, fact

_UNITS = 304
"""Compute units where a profile does not say: those of the largest device, whose table is the strictest."""


def _width(at: int, half: bool = False) -> Predicate:
    """Columns of input ``at`` (of half of them): whole vectors of 8, up to the widest row."""

    def fits(found: Any) -> bool:
        width, parts = columns(found, at), 1 + half
        return isinstance(width, int) and width % (8 * parts) == 0 and 0 < width <= WIDEST_ROW * parts

    return fact("call_shapes", fits, f"{'halves' if half else 'rows'} of a multiple of 8 up to {WIDEST_ROW}")


def _block(parts: int) -> Predicate:
    """Columns of the first input over ``parts``: any number that one program holds."""

    def fits(found: Any) -> bool:
        width = columns(found, 0)
        return isinstance(width, int) and width % parts == 0 and 0 < width <= WIDEST_BLOCK * parts

    return fact("call_shapes", fits, f"{'halves' if parts == 2 else 'rows'} of up to {WIDEST_BLOCK}")


def _scale(at: int) -> Predicate:
    return fact(
        "call_dtypes", lambda found: len(found) == at + 1 and found[at] == "float32", f"a float32 scale as input {at}"
    )


def _dynamic(gated: bool) -> Predicate:
    """Storage, groups and scales are those that the kernel makes."""

    def check(profile: DeviceProfile, facts: Facts) -> Verdict:
        missing = [name for name in ("storage", "columns", "power_of_two", "call_shapes") if name not in facts]
        if missing:
            return Verdict(False, f"{', '.join(missing)} unknown")
        storage, group, width = facts["storage"], facts["columns"], columns(facts["call_shapes"], 0)
        if not isinstance(width, int):
            return Verdict(False, f"rows of {width}")
        if facts["power_of_two"]:
            return Verdict(False, "scales that are powers of two: the kernel has no such option")
        whole_row = storage == "int8" and not group and not gated
        if FLOAT8.get(storage, "") not in profile.features and not whole_row:
            return Verdict(False, f"storage {storage} in groups of {group or 'a row'}")
        if not group:
            return Verdict(not gated, "a scale per row" + ("; the kernel has groups only" if gated else ""))
        width = width // 2 if gated else width
        vector = gate_vector(width) if gated else norm_vector(width, profile.limits.get("compute_units", _UNITS))
        ok = width % group == 0 and group_fits(group, vector) and (not gated or group & (group - 1) == 0)
        return Verdict(ok, f"groups of {group} in rows of {width}" + ("" if ok else f", {vector} to a thread"))

    return check


def _summed_groups(profile: DeviceProfile, facts: Facts) -> Verdict:
    """Each thread of the fused sum owns eight columns, whatever the width."""
    width, group = columns(facts.get("call_shapes", ()), 0), facts.get("columns", 0)
    if facts.get("power_of_two", True) or not isinstance(width, int) or not group:
        return Verdict(False, f"groups of {group or 'a row'} in rows of {width}, or scales that are powers of two")
    ok = width % group == 0 and group_fits(group, 8)
    return Verdict(ok, f"groups of {group} in rows of {width}" + ("" if ok else ", 8 to a thread"))


def _captured(profile: DeviceProfile, facts: Facts) -> Verdict:
    """Called one by one, the library's wrapper costs more than its kernel saves; a graph does away with it."""
    mode = facts.get("graph_mode", "unknown")
    return Verdict(mode != "NONE", f"graph mode {mode}" + ("; used where graphs are captured only" * (mode == "NONE")))


def _heads(profile: DeviceProfile, facts: Facts) -> Verdict:
    """Whole heads are turned, and heads and pages are powers of two, in a bfloat16 cache."""
    dim, shapes, dtypes = facts.get("head_dim"), facts.get("call_shapes", ()), facts.get("call_dtypes", ())
    if not isinstance(dim, int) or len(shapes) != 6 or len(dtypes) != 6:
        return Verdict(False, "head_dim or inputs of the call unknown")
    if {dtypes[0], dtypes[1], dtypes[3], dtypes[4]} != {"bfloat16"} or dtypes[2] != "float32":
        return Verdict(False, f"types {' '.join(dtypes)}, needs bfloat16 with a float32 table")
    page, turned = shapes[4][2] if len(shapes[4]) == 5 else None, columns(shapes, 2)
    ok = turned == dim and all(isinstance(n, int) and n & (n - 1) == 0 for n in (dim, page))
    wanted = "" if ok else "; needs whole heads, and powers of two"
    return Verdict(ok, f"{turned} of {dim} columns turned, pages of {page}{wanted}")


def _reduces(profile: DeviceProfile, facts: Facts) -> Verdict:
    ranks = facts.get("tensor_parallel_size", "unknown")
    ok = ranks in ALL_REDUCE_RANKS
    return Verdict(ok, f"{ranks} ranks" + ("" if ok else f", needs {' or '.join(map(str, ALL_REDUCE_RANKS))}"))


def _row(op: str, module: str, needs: Predicate, *accepts: Predicate, priority: int = 10, **more: Any) -> Kernel:
    return Kernel(op, "aiter", f"kernels_rocm.{module}:{op}", needs, all_of(*accepts), priority, **more)


_SECOND = 4
"""Behind the portable rows: kernels of the same compiler, which need a version of the library beside it."""

_REDUCE = aiter("custom_ar", "0.1.13", ("communicator", "reduce_norm"))
_PART_SIZES = fact(
    "sizes",
    lambda sizes: all(size % 8 == 0 and size <= WIDEST_ROW for size in sizes[:2]),
    f"multiples of 8 up to {WIDEST_ROW}",
)
_ROUTING = ("experts", "shuffle", "route_softmax", "route_groups", "route_biased")
_SUM = (alike(3, *HALVES), whole_rows(2), _width(2))

KERNELS: tuple[Kernel, ...] = (
    *ROWS,
    _row("rms_norm", "norm", aiter("rmsnorm", calls=("rms_norm",)), alike(2, *HALVES), _width(1), _captured),
    _row("add_rms_norm", "norm", aiter("rmsnorm", calls=("add_norm",)), *_SUM, _captured),
    _row(
        "rms_norm_quantize_dynamic",
        "norm",
        aiter("rmsnorm", calls=("norm_dynamic",)),
        *(alike(2, *HALVES), whole_rows(1), _width(1), _dynamic(False)),
    ),
    _row(
        "add_rms_norm_quantize_dynamic",
        "norm",
        aiter("rmsnorm", calls=("add_norm_dynamic",)),
        *(*_SUM, _dynamic(False)),
    ),
    _row(
        "rms_norm_quantize_static",
        "norm",
        aiter("rmsnorm", calls=("norm_static",)),
        *(alike(2, *HALVES), whole_rows(1), _block(1), _scale(2), float8),
        priority=_SECOND,
    ),
    _row(
        "add_rms_norm_quantize_static",
        "norm",
        aiter("rmsnorm", calls=("norm_static",)),
        *(alike(3, *HALVES), whole_rows(2), _block(1), _scale(3), float8),
        priority=_SECOND,
    ),
    _row("add_rms_norm_pad", "norm", aiter("rmsnorm", calls=("norm_pad",)), alike(3, *HALVES), whole_rows(2)),
    _row("dual_rms_norm", "norm", aiter("rmsnorm", calls=("dual_norm",)), alike(3, *HALVES), two_parts, _PART_SIZES),
    _row("silu_and_mul", "activation", aiter("linear", calls=("silu",)), alike(1, *HALVES), _width(0, half=True)),
    _row(
        "gelu_and_mul",
        "activation",
        aiter("linear", calls=("gelu", "gelu_tanh")),
        *(alike(1, *HALVES), _width(0, half=True), known_gate),
    ),
    _row(
        "silu_and_mul_quantize_dynamic",
        "activation",
        aiter("linear", calls=("silu_dynamic",)),
        *(alike(1, *HALVES), _width(0, half=True), _dynamic(True)),
    ),
    _row(
        "silu_and_mul_quantize_static",
        "activation",
        aiter("linear", calls=("silu_static",)),
        *(alike(1, *HALVES), _block(2), _scale(1), float8),
        priority=_SECOND,
    ),
    _row("rotary_kv_write", "rotary", aiter("triton_rope", calls=("rotary_write",)), _heads),
    _row("scaled_linear", "linear", aiter("linear", calls=("gemm_rows", "gemm_blocks")), product),
    _row("moe", "moe", aiter("moe", calls=_ROUTING), experts, routing, pack="kernels_rocm.moe:pack"),
    _row(
        "attention",
        "attention",
        aiter("unified_attention", calls=("attention",)),
        *(cached(5), attends),
        priority=_SECOND,
    ),
    _row(
        "attention_quantize_static",
        "attention",
        aiter("unified_attention", calls=("attention_static",)),
        *(cached(6), float8, attends),
        priority=_SECOND,
    ),
    _row("mla_attention", "mla", aiter("mla", calls=("mla",)), latents, priority=_SECOND),
    _row("all_reduce_add_rms_norm", "collective", _REDUCE, *_SUM, _reduces),
    _row(
        "all_reduce_add_rms_norm_quantize_dynamic",
        "collective",
        aiter("custom_ar", "0.1.13", ("communicator", "reduce_norm_groups")),
        *(*_SUM, float8, _summed_groups, _reduces),
    ),
    _row("all_reduce_rms_norm", "collective", _REDUCE, alike(2, *HALVES), whole_rows(1), _width(1), _reduces),
)
"""The library's rows lead the portable ones by priority; where they refuse a call, those take it. It starts at CDNA 3:
on older and on graphics families the portable rows stand alone."""
