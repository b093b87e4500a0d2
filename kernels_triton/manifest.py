"""Rows of the portable Triton kernels, for the tables of platforms whose devices Triton compiles for. Standard library
only: the kernel modules import triton, and are named here but not loaded."""

from __future__ import annotations

from typing import Any

from kernels_triton.calls import FLOAT8, columns, known_gate, two_parts, whole_rows
from kernels_triton.matmul_calls import one_type, scale_groups, stored_operands
from platforms.contract import DeviceProfile, Facts, Kernel, Predicate, Verdict, all_of, any_of, fact, feature, library

PRIORITY = 5
"""Below rows of vendor libraries, which take 10."""
BEHIND = -5
"""Behind the reference, which calls the vendor's library: for batch invariance, a pin, or where measured faster."""

_TYPES = ("float32", "bfloat16", "float16")
_STORAGE = {**FLOAT8, "int8": "dtype.int8"}
_DEVICE = all_of(library("triton", "3.5"), any_of(feature("copy.async"), feature("mma.mfma"), feature("mma.wmma")))
"""Triton compiles for devices with one of these; those without are older than it supports."""

_LARGEST_HEAD = 256
"""Columns of a head that fit the registers of the attention kernel's smallest tile."""
_LARGEST_LATENT, _LARGEST_TURN = 512, 64
"""Columns of a latent, and of the key beside it, that fit the registers of the tile of attention over latents."""


def _types(*alike: int) -> Predicate:
    """Every floating input has a type the kernels load and the device has; those at ``alike`` share one."""

    def check(profile: DeviceProfile, facts: Facts) -> Verdict:
        found = facts.get("call_dtypes", ())
        floating = sorted({name for name in found if "float" in name})
        text = f"floating inputs are {' and '.join(floating) or 'none'}"
        if not floating or not set(floating) <= set(_TYPES):
            return Verdict(False, f"{text}, needs {' or '.join(_TYPES)}")
        shared = sorted({found[at] for at in alike if at < len(found)})
        if len(shared) > 1:
            return Verdict(False, f"{text}, needs one type for activations, found {' and '.join(shared)}")
        for name in floating:
            if f"dtype.{name}" not in profile.features:
                return Verdict(False, f"{text}; dtype.{name} absent")
        return Verdict(True, text)

    return check


def _cached(cache: int, *alike: int) -> Predicate:
    """As ``_types``, beside a cache at ``cache`` that may be of an 8-bit float the device has."""
    others = _types(*alike)

    def check(profile: DeviceProfile, facts: Facts) -> Verdict:
        found = tuple(facts.get("call_dtypes", ()))
        kept = found[cache] if cache < len(found) else ""
        wanted = FLOAT8.get(kept)
        if wanted is None and "float" not in kept:
            return Verdict(False, f"the cache is {kept or 'unknown'}, needs floats")
        if wanted is None:
            return others(profile, facts)
        if wanted not in profile.features:
            return Verdict(False, f"the cache is {kept}; {wanted} absent")
        verdict = others(profile, {**facts, "call_dtypes": tuple("" if name == kept else name for name in found)})
        return Verdict(verdict.ok, f"{verdict.reason}, the cache is {kept}")

    return check


def _storage(profile: DeviceProfile, facts: Facts) -> Verdict:
    """The device converts to the type asked for."""
    name = facts.get("storage", "")
    if name not in _STORAGE:
        return Verdict(False, f"storage {name or 'unknown'} is not {' or '.join(_STORAGE)}")
    wanted = _STORAGE[name]
    return Verdict(wanted in profile.features, f"{wanted} {'present' if wanted in profile.features else 'absent'}")


def _heads(*weights: int) -> Predicate:
    """The weights at ``weights`` normalise one head each."""

    def check(profile: DeviceProfile, facts: Facts) -> Verdict:
        dim, shapes = facts.get("head_dim"), facts.get("call_shapes", ())
        found = [columns(shapes, at) for at in weights]
        if not isinstance(dim, int) or None in found:
            return Verdict(False, "head_dim or shapes of the call unknown")
        ok = all(length == dim for length in found)
        return Verdict(ok, f"head_dim {dim}" + ("" if ok else f", but weights of {found}"))

    return check


def _head_fits(profile: DeviceProfile, facts: Facts) -> Verdict:
    """A tile for these heads lies in registers."""
    dim = facts.get("head_dim")
    if not isinstance(dim, int):
        return Verdict(False, "head_dim unknown")
    sign = "<=" if dim <= _LARGEST_HEAD else ">"
    return Verdict(dim <= _LARGEST_HEAD, f"head_dim {dim} {sign} {_LARGEST_HEAD}")


def _latent_fits(profile: DeviceProfile, facts: Facts) -> Verdict:
    """Sums of latents lie in registers."""
    rank, rope = facts.get("kv_rank"), facts.get("rope")
    if not isinstance(rank, int) or not isinstance(rope, int):
        return Verdict(False, "kv_rank or rope unknown")
    if rank > _LARGEST_LATENT or rope > _LARGEST_TURN:
        return Verdict(False, f"kv_rank {rank}, rope {rope}, needs at most {_LARGEST_LATENT} and {_LARGEST_TURN}")
    return Verdict(True, f"kv_rank {rank} <= {_LARGEST_LATENT}")


def _experts(profile: DeviceProfile, facts: Facts) -> Verdict:
    """Few enough experts and choices for one program of the routing."""
    shapes, chosen = facts.get("call_shapes", ()), facts.get("top_k")
    experts = columns(shapes, 1)
    if not isinstance(experts, int) or not isinstance(chosen, int):
        return Verdict(False, "experts or top_k of the call unknown")
    ok = experts <= 1024 and chosen <= 32
    return Verdict(ok, f"{chosen} of {experts} experts" + ("" if ok else ", needs at most 32 of 1024"))


_float32 = fact("call_dtypes", lambda found: found[0] == "float32", "float32 logits")


def _packed(profile: DeviceProfile, facts: Facts) -> Verdict:
    """Groups are whole halves of a run of packed columns."""
    group, shapes, form = facts.get("group"), facts.get("call_shapes", ()), facts.get("format")
    width = columns(shapes, 0)
    if not isinstance(group, int) or not isinstance(width, int) or form not in ("int4", "mxfp4"):
        return Verdict(False, f"format {form or 'unknown'}, groups of {group}, {width} columns")
    ok = group > 0 and group % 32 == 0 and width % group == 0
    wanted = "" if ok else ", needs whole groups of a multiple of 32"
    return Verdict(ok, f"groups of {group} in {width} columns{wanted}")


def _row(
    op: str,
    module: str,
    *accepts: Predicate,
    invariant: bool = True,
    priority: int = PRIORITY,
    form: str = "",
    **more: Any,
) -> Kernel:
    target = f"kernels_triton.{module}:{form}_{op}" if form else f"kernels_triton.{module}:{op}"
    name = f"triton_{form}" if form else "triton"
    conditions = all_of(*accepts)
    given: dict[str, Any] = {"batch_invariant": invariant, "build": "kernels_triton.build:build", **more}
    return Kernel(op, name, target, _DEVICE, conditions, priority, **given)


ROWS: tuple[Kernel, ...] = (
    _row("rms_norm", "norm", _types(0)),
    _row("add_rms_norm", "norm", _types(0, 1), whole_rows(2)),
    _row("rms_norm_quantize_static", "norm", _types(0), _storage, whole_rows(1)),
    _row("rms_norm_quantize_dynamic", "norm", _types(0), _storage, whole_rows(1)),
    _row("add_rms_norm_quantize_static", "norm", _types(0, 1), _storage, whole_rows(2)),
    _row("add_rms_norm_quantize_dynamic", "norm", _types(0, 1), _storage, whole_rows(2)),
    _row("add_rms_norm_pad", "norm", _types(0, 1), whole_rows(2)),
    _row("dual_rms_norm", "norm", _types(0), two_parts),
    _row("silu_and_mul", "activation", _types(0)),
    _row("silu_and_mul_quantize_static", "activation", _types(0), _storage),
    _row("silu_and_mul_quantize_dynamic", "activation", _types(0), _storage),
    _row("gelu_and_mul", "activation", _types(0), known_gate),
    _row("gelu_and_mul_quantize_static", "activation", _types(0), _storage, known_gate),
    _row("gelu_and_mul_quantize_dynamic", "activation", _types(0), _storage, known_gate),
    _row("mask", "mask", _float32),
    _row("penalize", "sampling", _float32),
    _row("draw", "sampling", _float32),
    _row("packed_linear", "packed", _types(0), _packed),
    _row("quantize_static", "quant", _types(0), _storage),
    _row("quantize_dynamic", "quant", _types(0), _storage),
    _row("linear", "linear", _types(0), one_type, priority=BEHIND),
    _row("scaled_linear", "scaled_linear", stored_operands, scale_groups, form="steady", priority=BEHIND),
    _row(
        "scaled_linear",
        "scaled_linear",
        stored_operands,
        scale_groups,
        invariant=False,
        tune="kernels_triton.matmul_tuning:tune",
    ),
    _row("embedding", "copies", _types(), priority=BEHIND),
    _row("add", "copies", _types(0, 1), priority=BEHIND),
    _row("select_rows", "copies", _types(), priority=BEHIND),
    _row("rotary", "rotary", _types(0, 1)),
    _row("kv_write", "rotary", _cached(2, 0, 1)),
    _row("rotary_kv_write", "rotary", _cached(4, 0, 1, 3)),
    _row("qk_norm_rotary", "rotary", _types(0, 2), _heads(1, 3)),
    _row("qk_norm_rotary_kv_write", "rotary", _cached(6, 0, 2, 5), _heads(1, 3)),
    _row("moe", "moe", _types(0, 2, 3), _experts, invariant=False),
    _row("mla_write", "mla", _types(0, 1)),
    _row("rotary_mla_write", "mla", _types(0, 1, 3)),
    _row("mla_attention", "mla_attention", _types(0, 1, 2, 3), _latent_fits, invariant=False),
    _row("attention", "attention", _cached(1, 0), _head_fits, invariant=False),
    _row("attention_quantize_static", "attention", _cached(1, 0), _storage, _head_fits, invariant=False),
)
"""The row of an op is named ``triton``, another form of it ``triton_`` and the form."""
