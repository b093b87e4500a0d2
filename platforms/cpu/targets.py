"""Processors described without having them: one socket each, with 64 GiB assumed beside it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from platforms.contract import DeviceProfile
from platforms.cpu.compilers import GENERATED, KERNELS
from platforms.cpu.isa import arch_of, features_of
from platforms.cpu.probe import REPLAYED
from platforms.cpu.threads import MANY

LIBRARIES = {"torch": "2.13.0"}
"""Assumed installed on a described processor, as is a C++ compiler."""

_V2 = "cx16 lahf_lm popcnt sse4_1 sse4_2 ssse3 avx"
_V3 = f"{_V2} avx2 bmi1 bmi2 f16c fma abm movbe xsave"
_V4 = f"{_V3} avx512f avx512bw avx512cd avx512dq avx512vl avx512_vnni avx512vbmi"
_AMX = f"{_V4} avx_vnni avx512_bf16 avx512_fp16 amx_tile amx_int8 amx_bf16"
_ARM = "asimd asimdhp asimddp"
_ARM_86 = f"{_ARM} sve bf16 i8mm svebf16 svei8mm"

_KIB = 1 << 10
_MIB = 1 << 20

# target: family, product, flags, cores, L1 data, L2, L3 bytes, document
_PARTS: tuple[tuple[str, str, str, str, int, int, int, int, str], ...] = (
    ("x86-64-v2", "x86-64", "Intel Xeon E5-2690", _V2, 8, 32 * _KIB, 256 * _KIB, 20 * _MIB, "Intel ARK"),
    ("x86-64-v3", "x86-64", "AMD EPYC 7763", _V3, 64, 32 * _KIB, 512 * _KIB, 32 * _MIB, "AMD EPYC 7003 datasheet"),
    ("x86-64-v4", "x86-64", "Intel Xeon Platinum 8380", _V4, 40, 48 * _KIB, 1280 * _KIB, 60 * _MIB, "Intel ARK"),
    ("amx", "x86-64", "Intel Xeon Platinum 8480+", _AMX, 56, 48 * _KIB, 2 * _MIB, 105 * _MIB, "Intel ARK"),
    ("armv8.2", "arm64", "AWS Graviton2", _ARM, 64, 64 * _KIB, _MIB, 32 * _MIB, "Arm Neoverse N1 reference manual"),
    ("armv8.6", "arm64", "AWS Graviton3", _ARM_86, 64, 64 * _KIB, _MIB, 32 * _MIB, "Arm Neoverse V1 reference manual"),
)
_LEVELS = {
    "x86-64": "x86-64 psABI: microarchitecture levels",
    "arm64": "Arm architecture reference manual: FEAT_ names",
}
_WHERE = {
    "threads": f"cores, less one where there are {MANY} or more",
    "spare_cores": f"one where there are {MANY} or more",
    "physical_cores": "cores",
    "l1_bytes": "L1 data cache of a core",
    "l2_bytes": "L2 cache of a core",
    "l3_bytes": "L3 cache that one core reaches",
}


def _target(family: str, product: str, flags: str, cores: int, l1: int, l2: int, l3: int, source: str) -> DeviceProfile:
    given = frozenset(flags.split())
    limits = {"threads": cores - (cores >= MANY), "physical_cores": cores, "numa_nodes": 1}
    limits |= {"l1_bytes": l1, "l2_bytes": l2, "l3_bytes": l3, **({"spare_cores": 1} if cores >= MANY else {})}
    features = features_of(given) | {"mem.shared_with_host", "tool.cxx", KERNELS, GENERATED, *REPLAYED}
    return DeviceProfile(
        platform="cpu",
        arch=arch_of(family, given),
        family=family,
        product=product,
        memory_bytes=64 << 30,
        origin="described",
        features=features,
        limits=limits,
        libraries=LIBRARIES,
        evidence={
            "product": source,
            "family": source,
            "arch": _LEVELS[family],
            "features": f"{source}; {_LEVELS[family]}",
            **{f"features.{name}": f"{source}: instruction set extensions" for name in features},
            "features.mem.shared_with_host": "the host's own memory",
            "features.tool.cxx": "assumed installed: a C++ compiler",
            f"features.{KERNELS}": "kernels are compiled on first use with the C++ compiler that is assumed installed",
            **{f"features.{name}": why for name, why in REPLAYED.items()},
            f"features.{GENERATED}": "torch.compile, with the C++ compiler that is assumed installed",
            "limits": source,
            **{f"limits.{name}": f"{source}: {what}" for name, what in _WHERE.items() if name in limits},
            "limits.numa_nodes": "assumed: one socket as one node",
            "memory_bytes": "assumed: 64 GiB",
            "libraries": "assumed installed: the version this project is tested with",
        },
    )


TARGETS: Mapping[str, DeviceProfile] = MappingProxyType({part[0]: _target(*part[1:]) for part in _PARTS})
