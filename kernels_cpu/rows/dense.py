"""Products of float activations, with dense weights and with blocks, and of int8 ones with int8 weights; look-ups."""

from __future__ import annotations

from kernels_cpu.predicates import ALIKE, COMPILED, SINGLE, emulated, native
from platforms.contract import DeviceProfile, Facts, Kernel, Predicate, Verdict, all_of, any_of, fact, feature

BLOCKS = fact("format", ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k").__contains__, "a block format")
FULL = fact("result", "float32".__eq__, "float32")


def both_int8(profile: DeviceProfile, facts: Facts) -> Verdict:
    """Activations and weights of a scaled product."""
    found = facts.get("call_dtypes", ())[:3:2]
    return Verdict(found == ("int8", "int8"), f"activations and weights are {' and '.join(found) or 'unknown'}")


INT8 = all_of(both_int8, FULL, SINGLE)


def _bytes(profile: DeviceProfile, facts: Facts) -> Verdict:
    found = next(iter(facts.get("call_dtypes", ())), "unknown")
    return Verdict(found == "int8", f"activations are {found}" + ("" if found == "int8" else ", needs int8"))


def _blocks(op: str, name: str, accepts: Predicate, **more: object) -> Kernel:
    return native(op, name, f"float_blocks:{op}", accepts=accepts, pack="kernels_cpu.native.blocks:pack", **more)


def _int8(name: str, priority: int, *needs: Predicate) -> Kernel:
    """One function, compiled for what the processor has."""
    return native(
        "scaled_linear",
        name,
        "dense_int8:scaled_linear",
        needs=all_of(COMPILED, *needs),
        accepts=INT8,
        priority=priority,
        pack="kernels_cpu.native.dense_int8:pack",
    )


ROWS: tuple[Kernel, ...] = (
    native("linear", "native", "dense:linear", accepts=SINGLE, pack="kernels_cpu.native.dense:pack"),
    native(
        "linear",
        "widened",
        "dense:widened",
        accepts=all_of(ALIKE, emulated(True)),
        priority=15,
        pack="kernels_cpu.native.dense:pack_widened",
    ),
    _blocks("block_linear", "native", all_of(BLOCKS, SINGLE)),
    _blocks("scaled_block_linear", "float", all_of(BLOCKS, _bytes, FULL, SINGLE), priority=5),
    _int8("vnni", 24, any_of(feature("isa.avx512_vnni"), feature("isa.avx_vnni"))),
    _int8("dotprod", 23, feature("isa.asimddp")),
    _int8("avx2", 22, feature("isa.avx2")),
    _int8("portable", 21),
    Kernel(
        "scaled_linear",
        "torch_unpacked",
        "kernels_cpu.linear:scaled_linear",
        accepts=both_int8,
        priority=10,
        pack="kernels_cpu.linear:pack_scaled",
    ),
    native("embedding", "native", "embedding:embedding"),
    native("block_embedding", "native", "embedding:block_embedding", accepts=all_of(BLOCKS, FULL)),
)
