"""What a compute capability implies. Figures per thread block and per multiprocessor are those of the CUDA C++
Programming Guide, "Technical Specifications per Compute Capability"; instructions those of the PTX ISA's target notes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from platforms.accelerator import UNKNOWN, Arch

GUIDE = "CUDA C++ Programming Guide, technical specifications per compute capability; PTX ISA, target notes"

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
    return Arch(family, features, limits, GUIDE, cores)


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
