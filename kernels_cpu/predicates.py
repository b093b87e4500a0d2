"""Predicates that several rows of the host share. Standard library only."""

from __future__ import annotations

from platforms.contract import DeviceProfile, Facts, Kernel, Predicate, Verdict, all_of, arch, feature

FLOATING = ("float32", "bfloat16", "float16")


def floats(*known: str, alike: bool) -> Predicate:
    """Every floating input has one of the ``known`` types; ``alike``: all of them the same one."""

    def check(profile: DeviceProfile, facts: Facts) -> Verdict:
        found = sorted({name for name in facts.get("call_dtypes", ()) if "float" in name})
        text = f"floating inputs are {' and '.join(found) or 'none'}"
        if not found or not set(found) <= set(known):
            return Verdict(False, f"{text}, needs {' or '.join(known)}")
        if alike and len(found) > 1:
            return Verdict(False, f"{text}, needs one type for all")
        return Verdict(True, text)

    return check


def emulated(wanted: bool) -> Predicate:
    """Whether the processor has no products of the call's 16-bit floats; float32 is never emulated."""

    def check(profile: DeviceProfile, facts: Facts) -> Verdict:
        kind = facts.get("call_dtype", "unknown")
        found = f"dtype.{kind}.emulated" in profile.features
        text = f"this processor {'emulates' if found else 'has'} products of {kind}"
        return Verdict(found == wanted, text)

    return check


def paired(profile: DeviceProfile, facts: Facts) -> Verdict:
    """Columns of 16 bits are even in number: torch's library takes them in pairs, and what lies behind an odd row times
    zero, which of NaN is NaN."""
    shape = (facts.get("call_shapes") or ((0,),))[0]
    odd = facts.get("call_dtype") != "float32" and isinstance(shape[-1], int) and shape[-1] % 2 == 1
    return Verdict(not odd, f"{shape[-1]} columns" + (", needs an even number in 16 bits" if odd else ""))


def unscaled(inputs: int) -> Predicate:
    """The call has no scales of keys and values behind its ``inputs``."""

    def check(profile: DeviceProfile, facts: Facts) -> Verdict:
        given = len(facts.get("call_dtypes", ()))
        return Verdict(given <= inputs, "no scales of keys and values" if given <= inputs else "scales keys and values")

    return check


def float_cache(at: int) -> Predicate:
    """The cache at ``at`` keeps floats."""

    def check(profile: DeviceProfile, facts: Facts) -> Verdict:
        found = facts.get("call_dtypes", ())
        kept = found[at] if at < len(found) else "unknown"
        return Verdict("float" in kept, f"the cache is {kept}" + ("" if "float" in kept else ", needs floats"))

    return check


def uncapped(profile: DeviceProfile, facts: Facts) -> Verdict:
    cap = facts.get("softcap", 0.0)
    return Verdict(not cap, f"scores are capped at {cap}" if cap else "scores are not capped")


ALIKE, MIXED, SINGLE = (
    floats(*FLOATING, alike=True),
    floats(*FLOATING, alike=False),
    floats("float32", alike=True),
)

COMPILED = feature("kernel.cxx")
VNNI = all_of(arch("x86-64-v4"), feature("isa.avx512_vnni"))
TILES = all_of(VNNI, feature("isa.amx_int8"))
TILES_BF16 = all_of(TILES, feature("isa.amx_bf16"), feature("isa.avx512_bf16"))
"""What the library has those forms for: its compiler may use all of a level, which ``arch`` says."""


def native(op: str, name: str, target: str, **more: object) -> Kernel:
    """A row of ours: ``target`` below ``kernels_cpu.native``. A result never depends on its neighbours."""
    given = {"needs": COMPILED, "priority": 20, "batch_invariant": True, "build": "platforms.cpu.bundle:build", **more}
    return Kernel(op, name, f"kernels_cpu.native.{target}", **given)  # type: ignore[arg-type]
