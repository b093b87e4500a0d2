"""Which libraries are proven present, without importing one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from platforms.machine import Machine

_BUILDS: Mapping[str, str] = {"cuda": "libtorch_cuda.so", "hip": "libtorch_hip.so"}


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """``version`` is ``""`` where torch is not installed; ``cuda`` and ``hip`` are the versions it was built for, or
    ``""``; ``how`` says where this was read."""

    version: str = ""
    cuda: str = ""
    hip: str = ""
    how: str = "torch is not installed"


def torch_build(machine: Machine) -> TorchBuild:
    """Read from torch's own ``version.py`` as text; where that says nothing, from the libraries beside it; from the
    local version suffix where those are missing too."""
    version, folder = machine.version("torch"), machine.folder("torch")
    said = _stated(machine.read(str((folder / "version.py").absolute()))) if folder is not None else {}
    if said:
        where = "torch/version.py"
        return TorchBuild(version or said.get("__version__", ""), said.get("cuda", ""), said.get("hip", ""), where)
    for name, file in _BUILDS.items():
        if folder is not None and (folder / "lib" / file).exists():
            return TorchBuild(version or "unknown", how=f"torch/lib/{file}", **{name: "unknown"})
    if not version:
        return TorchBuild()
    suffix = version.partition("+")[2]
    cuda = re.search(r"cu(\d+)", suffix)
    hip = re.search(r"rocm([\d.]+)", suffix)
    return TorchBuild(version, cuda.group(1) if cuda else "", hip.group(1) if hip else "", f"version suffix {suffix!r}")


def _stated(text: str) -> dict[str, str]:
    """``__version__``, ``cuda`` and ``hip``, those that stand there; empty where neither of the builds does."""
    found = re.findall(r"^(__version__|cuda|hip)\b[^=\n]*=[ \t]*(?:None|['\"]([^'\"\n]*)['\"])", text, re.MULTILINE)
    said = dict(found)
    return said if {"cuda", "hip"} & set(said) else {}


def present(machine: Machine, wanted: Mapping[str, tuple[str, tuple[str, ...]]]) -> dict[str, str]:
    """``wanted``: name → (module that must be found, distributions that may bring it). Gives name → version for those
    that are there; a module found without a distribution that knows its version has version ``unknown``."""
    found = {}
    for name, (module, distributions) in wanted.items():
        if machine.folder(module) is None:
            continue
        versions = (machine.version(distribution) for distribution in distributions)
        found[name] = next((version for version in versions if version), "unknown")
    return found
