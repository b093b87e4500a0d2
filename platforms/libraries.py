"""Which libraries are proven present, without importing one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from platforms.machine import Machine


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """``version`` is ``""`` where torch is not installed; ``cuda`` and ``hip`` are the versions it was built for, or
    ``""``; ``how`` says where this was read."""

    version: str = ""
    cuda: str = ""
    hip: str = ""
    how: str = "torch is not installed"


def torch_build(machine: Machine) -> TorchBuild:
    """Read from torch's own ``version.py`` as text; from the local version suffix where that file is missing."""
    version, folder = machine.version("torch"), machine.folder("torch")
    text = ""
    if folder is not None:
        try:
            text = (folder / "version.py").read_text("utf-8", "replace")
        except OSError:
            text = ""
    if text:
        said = {
            name: match.group(1) if (match := re.search(rf"^{name}\b[^=]*=\s*'([^']*)'", text, re.MULTILINE)) else ""
            for name in ("__version__", "cuda", "hip")
        }
        return TorchBuild(version or said["__version__"], said["cuda"], said["hip"], "torch/version.py")
    if not version:
        return TorchBuild()
    suffix = version.partition("+")[2]
    cuda = re.search(r"cu(\d+)", suffix)
    hip = re.search(r"rocm([\d.]+)", suffix)
    return TorchBuild(version, cuda.group(1) if cuda else "", hip.group(1) if hip else "", f"version suffix {suffix!r}")


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
