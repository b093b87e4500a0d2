"""Devices described without having them. Memory is the vendor's nominal figure in decimal bytes; ``compute_units`` are
streaming multiprocessors."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from platforms.accelerator import Found, profile
from platforms.contract import DeviceProfile
from platforms.cuda.archs import ARCHS

LIBRARIES = {"torch": "2.13.0", "triton": "3.7.1", "flashinfer": "0.7.4"}
"""Assumed installed on a described device."""

_EMBEDDED = {name: LIBRARIES[name] for name in ("torch", "triton")}

_PARTS: tuple[tuple[str, str, int, int, int, str], ...] = (
    ("sm_80", "NVIDIA A100-SXM4-80GB", 80, 108, 40, "NVIDIA A100 Tensor Core GPU Architecture whitepaper"),
    ("sm_87", "NVIDIA Jetson AGX Orin 64GB", 64, 16, 4, "NVIDIA Jetson AGX Orin Series Technical Brief"),
    ("sm_89", "NVIDIA L40S", 48, 142, 96, "NVIDIA L40S datasheet; NVIDIA Ada GPU Architecture whitepaper"),
    ("sm_90", "NVIDIA H100 80GB HBM3", 80, 132, 50, "NVIDIA H100 Tensor Core GPU Architecture whitepaper, SXM5"),
    ("sm_100", "NVIDIA B200", 180, 148, 126, "NVIDIA DGX B200 datasheet; CUDA device query of B200"),
    ("sm_103", "NVIDIA B300", 270, 148, 126, "NVIDIA HGX B300 datasheet; CUDA device query of B300"),
    (
        "sm_120",
        "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        96,
        188,
        128,
        "NVIDIA RTX Blackwell PRO GPU Architecture whitepaper",
    ),
)


def _target(arch: str, product: str, gigabytes: int, units: int, l2_mib: int, source: str) -> DeviceProfile:
    libraries = _EMBEDDED if arch == "sm_87" else LIBRARIES
    how = {
        "product": source,
        "arch": f"CUDA GPU compute capability, list of products: {product}",
        "memory_bytes": f"{source}: {gigabytes} GB",
        "limits.compute_units": source,
        "limits.l2_bytes": source,
        "libraries": "assumed installed: the versions this project is tested with",
    }
    limits = {"compute_units": units, "l2_bytes": l2_mib << 20}
    found = Found(product, arch, gigabytes * 10**9, limits=limits, how=how)
    return profile("cuda", found, ARCHS, libraries, "described")


TARGETS: Mapping[str, DeviceProfile] = MappingProxyType({part[0]: _target(*part) for part in _PARTS})
