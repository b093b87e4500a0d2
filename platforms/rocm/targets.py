"""Devices described without having them; figures of AMD's "GPU hardware specifications" page."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from platforms.accelerator import Found, profile
from platforms.contract import DeviceProfile
from platforms.rocm.archs import ARCHS, SPECIFICATIONS

LIBRARIES = {"torch": "2.13.0", "triton": "3.7.1"}
"""Assumed installed on a described device."""

_WITH_AITER = {**LIBRARIES, "aiter": "0.1.20.post1"}

_PARTS: tuple[tuple[str, str, int, int, int, Mapping[str, str]], ...] = (
    ("gfx90a", "AMD Instinct MI210", 64, 104, 8, LIBRARIES),
    ("gfx942", "AMD Instinct MI300X", 192, 304, 32, _WITH_AITER),
    ("gfx950", "AMD Instinct MI355X", 288, 256, 32, _WITH_AITER),
    ("gfx1100", "AMD Radeon RX 7900 XTX", 24, 96, 6, LIBRARIES),
    ("gfx1201", "AMD Radeon AI PRO R9700", 32, 64, 8, LIBRARIES),
)


def _target(
    arch: str, product: str, gibibytes: int, units: int, l2_mib: int, libraries: Mapping[str, str]
) -> DeviceProfile:
    how = {
        "product": f"{SPECIFICATIONS}: model",
        "arch": f"{SPECIFICATIONS}: LLVM target name of {product}",
        "memory_bytes": f"{SPECIFICATIONS}: {gibibytes} GiB",
        "limits.compute_units": f"{SPECIFICATIONS}: compute units",
        "limits.l2_bytes": f"{SPECIFICATIONS}: L2 cache",
        "libraries": "assumed installed: the versions this project is written against",
    }
    limits = {"compute_units": units, "l2_bytes": l2_mib << 20}
    found = Found(product, arch, gibibytes << 30, limits=limits, how=how)
    return profile("rocm", found, ARCHS, libraries, "described")


TARGETS: Mapping[str, DeviceProfile] = MappingProxyType({part[0]: _target(*part) for part in _PARTS})
