"""Devices that code is compiled for without having them. Imports triton when asked."""

from __future__ import annotations

from typing import Any


def target_of(arch: str) -> Any:
    """What Triton calls the device a profile calls ``arch``. Raises ``ValueError`` for one it does not compile for."""
    from triton.backends.compiler import GPUTarget

    kind, _, number = arch.partition("_")
    if kind == "sm" and number.isdigit():
        return GPUTarget("cuda", int(number), 32)
    if arch.startswith("gfx"):
        return GPUTarget("hip", arch, 64 if arch.startswith("gfx9") else 32)
    raise ValueError(f"Triton kernels are compiled for sm_NN and gfxN archs, found {arch!r}")


def ranges_matter(arch: str) -> bool:
    """Whether code for the arch differs for tensors within 2 GiB, whose offsets fit buffer instructions."""
    return arch.startswith("gfx")
