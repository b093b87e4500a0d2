"""Attention over the paged cache, and what writes it."""

from __future__ import annotations

from typing import Any

from kernels_cpu.predicates import COMPILED, SINGLE, TILES_BF16, native
from platforms.contract import DeviceProfile, Facts, Kernel, Predicate, Verdict, all_of

CACHES = ("float32", "float16", "bfloat16", "float8_e4m3fn", "int8")
LARGEST_HEAD, LARGEST_GROUP = 512, 256
"""Columns of a head, and query heads of one kv head, whose scores and sums fit a thread's own memory."""


def _cached(cache: int, inputs: int) -> Predicate:
    """Float32 beside a cache at ``cache`` of a type that the kernels know; scales lie behind the other ``inputs``."""

    def check(profile: DeviceProfile, facts: Facts) -> Verdict:
        found = tuple(facts.get("call_dtypes", ()))
        kept = found[cache] if cache < len(found) else "unknown"
        if kept not in CACHES:
            return Verdict(False, f"the cache is {kept}, needs {' or '.join(CACHES)}")
        if kept == "int8" and len(found) > inputs:
            return Verdict(False, "the cache is int8, which has scales of its own, and takes no others")
        others = SINGLE(profile, {**facts, "call_dtypes": (*found[:cache], *found[cache + 1 :])})
        return Verdict(others.ok, f"{others.reason}, the cache is {kept}")

    return check


def _width(shapes: Any, at: int) -> Any:
    """Of the last axis of the input at ``at``, ``None`` if unknown."""
    return shapes[at][-1] if at < len(shapes) and shapes[at] else None


def _heads(*weights: int) -> Predicate:
    """The weights at ``weights`` normalise one head each."""

    def check(profile: DeviceProfile, facts: Facts) -> Verdict:
        dim, shapes = facts.get("head_dim"), facts.get("call_shapes", ())
        found = [_width(shapes, at) for at in weights]
        if not isinstance(dim, int) or None in found:
            return Verdict(False, "head_dim or shapes of the call unknown")
        ok = all(length == dim for length in found)
        return Verdict(ok, f"head_dim {dim}" + ("" if ok else f", but weights of {found}"))

    return check


def _fits(profile: DeviceProfile, facts: Facts) -> Verdict:
    dim, heads, kv_heads = (facts.get(name) for name in ("head_dim", "heads", "kv_heads"))
    if not isinstance(dim, int) or not isinstance(heads, int) or not isinstance(kv_heads, int) or not kv_heads:
        return Verdict(False, "heads, kv_heads or head_dim unknown")
    each = heads // kv_heads
    text = f"{each} query head{'s' * (each != 1)} of {dim} columns {'share' if each != 1 else 'has'} a kv head"
    ok = dim <= LARGEST_HEAD and heads // kv_heads <= LARGEST_GROUP
    return Verdict(ok, text if ok else f"{text}, needs at most {LARGEST_GROUP} of {LARGEST_HEAD}")


_PAGED = all_of(_cached(1, 5), _fits)

ROWS: tuple[Kernel, ...] = (
    native(
        "attention",
        "amx_bf16",
        "attention:amx_bf16",
        needs=all_of(COMPILED, TILES_BF16),
        accepts=_PAGED,
        priority=21,
        rounds="bfloat16",
        batch_invariant=False,
    ),
    native("attention", "native", "attention:attention", accepts=_PAGED, batch_invariant=False),
    native("attention", "alike", "attention:alike", accepts=_PAGED, priority=19),
    native("rotary_table", "native", "rotary:rotary_table"),
    native("rotary", "native", "rotary:rotary", accepts=SINGLE),
    native("kv_write", "native", "rotary:kv_write", accepts=_cached(2, 4)),
    native("rotary_kv_write", "native", "rotary:rotary_kv_write", accepts=_cached(4, 6)),
    native("qk_norm_rotary", "native", "rotary:qk_norm_rotary", accepts=all_of(SINGLE, _heads(1, 3))),
    native(
        "qk_norm_rotary_kv_write",
        "native",
        "rotary:qk_norm_rotary_kv_write",
        accepts=all_of(_cached(6, 8), _heads(1, 3)),
    ),
)
