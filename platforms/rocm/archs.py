"""What a graphics target implies. Figures are those of AMD's "GPU hardware specifications" page of the ROCm
documentation; instructions and number formats those of its "Data types and precision support" page and the ISA guides.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from platforms.accelerator import Arch

SPECIFICATIONS = "ROCm documentation, GPU hardware specifications"
_PRECISION = "ROCm documentation, data types and precision support"
_SOURCES = {
    "limits.shared_memory": f"{SPECIFICATIONS}: LDS; of RDNA's 128 KiB for a pair of units a work group gets half",
    "limits.warp_size": f"{SPECIFICATIONS}: wavefront size",
    "limits.threads_per_block": "HIP documentation, hardware features: 1024 threads in a block",
    "family": f"{SPECIFICATIONS}: architecture",
    **{
        f"features.dtype.{name}": _PRECISION
        for name in ("float32", "float16", "bfloat16", "int8", "fp8_e4m3fn", "fp8_e5m2", "fp8_e4m3fnuz", "fp8_e5m2fnuz")
    },
    **{
        f"features.dtype.{name}": "CDNA4 instruction set architecture: V_MFMA_SCALE_F32_16X16X128_F8F6F4"
        for name in ("mxfp4", "mxfp6", "mxfp8")
    },
    "features.mma.mfma": "CDNA instruction set architecture guides: matrix arithmetic instructions (V_MFMA)",
    "features.mma.wmma": "RDNA3 and RDNA4 instruction set architecture guides: V_WMMA",
    "features.graph.capture": "HIP documentation, HIP graphs: every device",
    "features.mem.shared_with_host": f"{SPECIFICATIONS}: processors with graphics",
}

_COMMON = frozenset({"dtype.float32", "dtype.float16", "dtype.bfloat16", "dtype.int8", "graph.capture"})
_MFMA = _COMMON | {"mma.mfma"}
_WMMA = _COMMON | {"mma.wmma"}
_FN = frozenset({"dtype.fp8_e4m3fn", "dtype.fp8_e5m2"})
_FNUZ = frozenset({"dtype.fp8_e4m3fnuz", "dtype.fp8_e5m2fnuz"})
_BLOCK_SCALED = frozenset({"dtype.mxfp4", "dtype.mxfp6", "dtype.mxfp8"})


def _arch(family: str, features: frozenset[str], lds_kib: int, wave: int) -> Arch:
    limits = {"shared_memory": lds_kib << 10, "warp_size": wave, "threads_per_block": 1024}
    return Arch(family, features, limits, SPECIFICATIONS, sources=_SOURCES)


_RDNA3 = _arch("rdna3", _WMMA, 64, 32)
_RDNA3_SHARED = _arch("rdna3", _WMMA | {"mem.shared_with_host"}, 64, 32)
_RDNA35 = _arch("rdna3.5", _WMMA | {"mem.shared_with_host"}, 64, 32)
_RDNA4 = _arch("rdna4", _WMMA | _FN, 64, 32)

ARCHS: Mapping[str, Arch] = MappingProxyType(
    {
        "gfx90a": _arch("cdna2", _MFMA, 64, 64),
        "gfx942": _arch("cdna3", _MFMA | _FNUZ, 64, 64),
        "gfx950": _arch("cdna4", _MFMA | _FN | _BLOCK_SCALED, 160, 64),
        "gfx1100": _RDNA3,
        "gfx1101": _RDNA3,
        "gfx1102": _RDNA3,
        "gfx1103": _RDNA3_SHARED,
        "gfx1150": _RDNA35,
        "gfx1151": _RDNA35,
        "gfx1200": _RDNA4,
        "gfx1201": _RDNA4,
    }
)
"""``limits["shared_memory"]``: bytes of local data share one work group can use; the page gives 128 KiB for RDNA's
pair of compute units, of which a group gets half."""

PRODUCTS: Mapping[int, str] = MappingProxyType(
    {
        0x7408: "AMD Instinct MI250X",
        0x740C: "AMD Instinct MI250X/MI250",
        0x740F: "AMD Instinct MI210",
        0x74A0: "AMD Instinct MI300A",
        0x74A1: "AMD Instinct MI300X",
        0x74A2: "AMD Instinct MI308X",
        0x74A5: "AMD Instinct MI325X",
        0x74A9: "AMD Instinct MI300X HF",
        0x75A0: "AMD Instinct MI350X",
        0x75A3: "AMD Instinct MI355X",
        0x744C: "AMD Radeon RX 7900 XTX",
        0x150E: "AMD Radeon 890M",
        0x1586: "AMD Radeon 8060S",
        0x7550: "AMD Radeon RX 9070 XT",
        0x7551: "AMD Radeon AI PRO R9700",
    }
)
"""PCI device id → name, for where no tool gives one."""

SHARED_DEVICES = (0x74A0,)
"""Device ids whose memory is also the host's, although their target has siblings with memory of their own."""


def arch_of(version: int) -> str:
    """The kernel's ``gfx_target_version``: ``90402`` → ``gfx942``, ``90010`` → ``gfx90a``, ``110000`` → ``gfx1100``."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
