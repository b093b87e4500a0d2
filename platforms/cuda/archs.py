"""What a compute capability implies. Figures per thread block and per multiprocessor are those of the CUDA C++
Programming Guide, "Technical Specifications per Compute Capability"; instructions those of the PTX ISA's target notes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from platforms.accelerator import UNKNOWN, Arch

_GUIDE = "CUDA C++ Programming Guide, technical specifications per compute capability"
_PTX = "PTX ISA, target notes of"
_SOURCES = {
    "limits.shared_memory": f"{_GUIDE}: maximum amount of shared memory per thread block",
    "limits.registers": f"{_GUIDE}: number of 32-bit registers per SM",
    "limits.registers_per_thread": f"{_GUIDE}: maximum number of 32-bit registers per thread",
    "limits.threads_per_block": f"{_GUIDE}: maximum number of threads per block",
    "limits.warps_per_unit": f"{_GUIDE}: maximum number of resident warps per SM",
    "limits.warp_size": f"{_GUIDE}: warp size",
    "family": "CUDA GPU compute capability, list of products",
    "features.dtype.float32": f"{_PTX} fma: .f32 on every target",
    "features.dtype.float16": f"{_PTX} mma: .f16 from sm_70",
    "features.dtype.int8": f"{_PTX} mma: .s8 from sm_75",
    "features.dtype.bfloat16": f"{_PTX} mma: .bf16 from sm_80",
    "features.dtype.tfloat32": f"{_PTX} mma: .tf32 from sm_80",
    "features.dtype.fp8_e4m3fn": f"{_PTX} mma: .e4m3 from sm_89",
    "features.dtype.fp8_e5m2": f"{_PTX} mma: .e5m2 from sm_89",
    "features.dtype.nvfp4": f"{_PTX} mma and tcgen05.mma: .kind::mxf4nvf4 on sm_120a and the sm_100 family",
    "features.dtype.mxfp4": f"{_PTX} mma and tcgen05.mma: .kind::mxf4 on sm_120a and the sm_100 family",
    "features.dtype.mxfp6": f"{_PTX} mma and tcgen05.mma: .kind::mxf8f6f4 on sm_120a and the sm_100 family",
    "features.dtype.mxfp8": f"{_PTX} mma and tcgen05.mma: .kind::mxf8f6f4 on sm_120a and the sm_100 family",
    "features.mma.sync": f"{_PTX} mma: from sm_70",
    "features.mma.wgmma": f"{_PTX} wgmma.mma_async: sm_90a alone",
    "features.mma.tcgen05": f"{_PTX} tcgen05: the sm_100 family and sm_110, not sm_120",
    "features.copy.async": f"{_PTX} cp.async: from sm_80",
    "features.copy.tma": f"{_PTX} cp.async.bulk.tensor: from sm_90",
    "features.cluster.launch": f"{_PTX} .reqnctapercluster: from sm_90",
    "features.launch.dependent": f"{_PTX} griddepcontrol: from sm_90",
    "features.graph.capture": "CUDA C++ Programming Guide, CUDA Graphs: every device",
    "features.mem.shared_with_host": "CUDA for Tegra application note, memory management; product brief",
}

_TURING = frozenset({"dtype.float32", "dtype.float16", "dtype.int8", "mma.sync", "graph.capture"})
_AMPERE = _TURING | {"dtype.bfloat16", "dtype.tfloat32", "copy.async"}
_ADA = _AMPERE | {"dtype.fp8_e4m3fn", "dtype.fp8_e5m2"}
_HOPPER = _ADA | {"copy.tma", "cluster.launch", "launch.dependent"}
_BLOCK_SCALED = frozenset({"dtype.nvfp4", "dtype.mxfp4", "dtype.mxfp6", "dtype.mxfp8"})
_BLACKWELL = _HOPPER | _BLOCK_SCALED | {"mma.tcgen05"}
_CLIENT = _HOPPER | _BLOCK_SCALED
_SHARED = frozenset({"mem.shared_with_host"})


def _arch(family: str, features: frozenset[str], shared_kib: int, warps: int, cores: int) -> Arch:
    limits = {
        "shared_memory": shared_kib << 10,
        "registers": 65536,
        "registers_per_thread": 255,
        "threads_per_block": 1024,
        "warps_per_unit": warps,
        "warp_size": 32,
    }
    return Arch(family, features, limits, _GUIDE, cores, _SOURCES)


ARCHS: Mapping[str, Arch] = MappingProxyType(
    {
        "sm_75": _arch("turing", _TURING, 64, 32, 64),
        "sm_80": _arch("ampere", _AMPERE, 163, 64, 64),
        "sm_86": _arch("ampere", _AMPERE, 99, 48, 128),
        "sm_87": _arch("jetson-orin", _AMPERE | _SHARED, 163, 48, 128),
        "sm_89": _arch("ada", _ADA, 99, 48, 128),
        "sm_90": _arch("hopper", _HOPPER | {"mma.wgmma"}, 227, 64, 128),
        "sm_100": _arch("blackwell", _BLACKWELL, 227, 64, 128),
        "sm_103": _arch("blackwell", _BLACKWELL, 227, 64, 128),
        "sm_110": _arch("jetson-thor", _BLACKWELL | _SHARED, 227, 48, 128),
        "sm_120": _arch("blackwell-client", _CLIENT, 99, 48, 128),
        "sm_121": _arch("blackwell-client", _CLIENT | _SHARED, 99, 48, 128),
    }
)
"""``limits["shared_memory"]``: most bytes one thread block can opt in to."""

_PRODUCTS: tuple[tuple[str, str], ...] = (
    (r"\bG?B300\b", "sm_103"),
    (r"\bGB10\b", "sm_121"),
    (r"\bG?B[12]00\b", "sm_100"),
    (r"\bG?H[128]00\b|\bH20\b", "sm_90"),
    (r"RTX PRO|RTX 50[5-9]0", "sm_120"),
    (r"\bL4\b|\bL40S?\b|\bL20\b|RTX 40[5-9]0|Ada Generation", "sm_89"),
    (r"Thor", "sm_110"),
    (r"Orin", "sm_87"),
    (r"\bA[18]00\b|\bA30\b", "sm_80"),
    (r"\bA(10|10G|16|2|40)\b|RTX A\d{4}|RTX 30[5-9]0", "sm_86"),
    (r"\bT4\b|RTX 20[6-8]0|\bRTX [568]000$", "sm_75"),
)


def arch_of(major: int, minor: int) -> str:
    """``(9, 0)`` → ``sm_90``."""
    return f"sm_{major}{minor}"


def arch_by_name(product: str) -> str:
    """A guess, for where nobody reports the compute capability; ``unknown`` rather than a wrong one."""
    return next((arch for pattern, arch in _PRODUCTS if re.search(pattern, product)), UNKNOWN)
