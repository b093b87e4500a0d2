"""The descriptor: one row written in Triton. Importable anywhere: standard library and the contract only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata

from platforms.contract import (
    API_VERSION,
    DeviceProfile,
    Facts,
    FusionOffer,
    FusionRule,
    Kernel,
    PlatformPlugin,
    Probe,
    Runtime,
    Setting,
    Verdict,
    library,
)

LARGEST = 4096
"""Columns of the kernel's one tile."""

CHIP = DeviceProfile(
    platform="triton_chip",
    arch="sm_90",
    family="triton-chip",
    product="Triton chip",
    memory_bytes=8 << 30,
    origin="described",
    features=frozenset({"dtype.float32", "dtype.bfloat16", "dtype.float16", "mem.shared_with_host"}),
    limits={"shared_memory": 227 << 10},
    libraries={"torch": "2.13.0", "triton": "3.7.1"},
    evidence={
        "features": "assumed",
        "limits": "assumed: bytes of shared memory that a block may have",
        "memory_bytes": "assumed: 8 GiB",
        "libraries": "assumed installed",
    },
)


def one_tile(profile: DeviceProfile, facts: Facts) -> Verdict:
    """What is normalised fits one tile."""
    if "call_shapes" not in facts:
        return Verdict(False, "call_shapes unknown")
    columns = facts["call_shapes"][1][0]
    return Verdict(columns <= LARGEST, f"{columns} columns {'<=' if columns <= LARGEST else '>'} {LARGEST}")


KERNELS: tuple[Kernel, ...] = (
    Kernel(
        "rms_norm",
        "triton_chip",
        "triton_chip.kernels:rms_norm",
        needs=library("triton", "3.5"),
        accepts=one_tile,
        priority=10,
        build="kernels_triton.build:build",
    ),
)


class ChipPlugin(PlatformPlugin):
    """The device is the host, where Triton interprets."""

    name = "triton_chip"
    api = API_VERSION
    kind = "accelerator"

    def probe(self) -> Probe:
        said = os.environ.get("TRITON_INTERPRET", "")
        line = f"TRITON_INTERPRET={said}" if said else "TRITON_INTERPRET not set"
        if said != "1":
            return Probe(evidence=(f"{line}: no device",))
        try:
            libraries = {name: metadata.version(name) for name in ("torch", "triton")}
        except metadata.PackageNotFoundError as error:
            return Probe(evidence=(f"{line}: no device, {error.name} is not installed",))
        evidence = {name: line for name in ("arch", "features", "limits")}
        evidence |= {"libraries": "metadata of installed distributions", "memory_bytes": "unknown until opened"}
        found = replace(CHIP, origin="probed", memory_bytes=0, libraries=libraries, evidence=evidence)
        return Probe((found,), (f"{line}: one device",))

    def targets(self) -> Mapping[str, DeviceProfile]:
        return {"sm_90": CHIP}

    def kernels(self) -> tuple[Kernel, ...]:
        return KERNELS

    def fusions(self) -> tuple[FusionOffer | FusionRule, ...]:
        return ()

    def settings(self, profile: DeviceProfile, facts: Facts, level: int) -> tuple[Setting, ...]:
        return ()

    def open(self, index: int) -> Runtime:
        from triton_chip.runtime import ChipRuntime

        return ChipRuntime(index, self.probe())
