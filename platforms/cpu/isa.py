"""From the flags the kernel prints to instruction-set features, an architecture name and number formats."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_FLAGS = (
    "sse4_1 sse4_2 avx f16c fma avx2 avx_vnni avx512f avx512bw avx512cd avx512dq avx512vl avx512_vnni avx512_bf16 "
    "avx512_fp16 avx512vbmi avx512_vbmi2 avx512ifma avx512_bitalg avx512_vpopcntdq gfni vaes vpclmulqdq bmi1 bmi2 adx "
    "sha_ni avx_ifma avx_vnni_int8 avx_vnni_int16 avx_ne_convert amx_complex "
    "amx_tile amx_int8 amx_bf16 amx_fp16 asimd asimdhp asimddp i8mm bf16 sve sve2 svebf16 svei8mm"
)
FEATURES = frozenset(_FLAGS.split())
"""Kernel flag names that become ``isa.<flag>``."""

NATIVE: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "dtype.bfloat16": frozenset({"avx512_bf16", "amx_bf16", "bf16"}),
        "dtype.float16": frozenset({"avx512_fp16", "amx_fp16", "asimdhp"}),
        "dtype.int8": frozenset({"avx2", "avx512_vnni", "avx_vnni", "amx_int8", "asimddp"}),
        "dtype.fp8_e4m3fn": frozenset(),
    }
)
"""A format is a feature where the processor multiplies in it; elsewhere it is ``<name>.emulated``: correct and slow."""

_PARTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "sse4_1": ("sse4_2",),
        "sse4_2": ("avx",),
        "avx": ("avx2", "f16c", "fma", "vaes", "vpclmulqdq"),
        "avx2": ("avx512f", "avx_ifma", "avx_ne_convert", "avx_vnni"),
        "avx_vnni": ("avx_vnni_",),
        "avx512f": ("avx512",),
        "amx_tile": ("amx_",),
        "asimd": ("asimdhp", "asimddp", "bf16", "i8mm", "sve"),
        "sve": ("sve",),
    }
)
"""Flag → how the flags begin that are of no use without it. ``fma`` and ``f16c`` came before ``avx2``."""

_X86_LEVELS: tuple[tuple[str, str], ...] = (
    ("x86-64-v4", "avx512f avx512bw avx512cd avx512dq avx512vl"),
    ("x86-64-v3", "avx avx2 bmi1 bmi2 f16c fma abm movbe xsave"),
    ("x86-64-v2", "cx16 lahf_lm popcnt sse4_1 sse4_2 ssse3"),
)
_ARM_LEVELS: tuple[tuple[str, str], ...] = (
    ("armv9", "sve2"),
    ("armv8.6", "bf16 i8mm"),
    ("armv8.2", "asimddp asimdhp"),
    ("armv8", "asimd"),
)
_FAMILIES = {"x86_64": "x86-64", "amd64": "x86-64", "aarch64": "arm64", "arm64": "arm64"}


def family_of(processor: str) -> str:
    """``x86_64`` → ``x86-64``, ``aarch64`` → ``arm64``; others keep their name."""
    return _FAMILIES.get(processor.lower(), processor)


def arch_of(family: str, flags: frozenset[str]) -> str:
    """The highest level whose flags, and those of every level below, are all there."""
    levels = {"x86-64": _X86_LEVELS, "arm64": _ARM_LEVELS}.get(family, ())
    for position, (name, _) in enumerate(levels):
        below = levels[position:] if family == "x86-64" else levels[position : position + 1]
        if all(flag in flags for _, needed in below for flag in needed.split()):
            return name
    return family


def without(flags: frozenset[str], words: str) -> tuple[frozenset[str], tuple[str, ...], tuple[str, ...]]:
    """What is left of the flags, what went, and which of the comma-separated names no processor has, both sorted. With
    a flag go those that build on it."""
    names = {name for word in words.split(",") if (name := word.strip().lower().replace("-", "_"))}
    levels = (needed for _, needed in (*_X86_LEVELS, *_ARM_LEVELS))
    known = FEATURES.union(flags, *(needed.split() for needed in levels))
    gone, left = set[str](), names & known
    while left:
        gone |= left
        starts = tuple(start for flag in left for start in _PARTS.get(flag, ()))
        left = {flag for flag in known if flag.startswith(starts)} - gone if starts else set()
    return flags - gone, tuple(sorted(flags & gone)), tuple(sorted(names - known))


def features_of(flags: frozenset[str]) -> frozenset[str]:
    """``isa.*`` and ``dtype.*`` names."""
    formats = {name if needed & flags else f"{name}.emulated" for name, needed in NATIVE.items()}
    return frozenset({"dtype.float32", *formats, *(f"isa.{flag}" for flag in FEATURES & flags)})
