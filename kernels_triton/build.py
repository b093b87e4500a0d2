"""The ``build`` of Triton rows: units of work ahead of time, each one form for one arch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels_triton.bundle import compiler, install, save
from kernels_triton.evidence import problems
from kernels_triton.forms import Form, forms_of
from kernels_triton.resources import measure
from platforms.contract import DeviceProfile

__all__ = ["Unit", "build", "compiler", "install"]


@dataclass(frozen=True, slots=True)
class Unit:
    """A form to compile for ``arch``. ``shared_memory``: bytes a block may have there. Can be sent to other processes;
    equal units make the same."""

    form: Form
    arch: str
    shared_memory: int

    @property
    def name(self) -> str:
        return self.form.name

    def make(self) -> dict[str, Any]:
        """Compile; ``figures`` by name, and ``problems``, sentences about what a device would suffer from."""
        found = measure(self.form, self.arch)
        return {"figures": found.to_json(), "problems": problems(self.form, found, self.arch, self.shared_memory)}

    def save(self, folder: Path) -> dict[str, Any]:
        """As ``engine.bundle`` asks of units."""
        return save(self.form, self.arch, folder)


def build(
    profile: DeviceProfile, target: str, tensors: Sequence[Any], attributes: Mapping[str, Any]
) -> tuple[Unit, ...]:
    """As the contract's ``Kernel.build``. Raises ``LookupError`` for a profile that does not say how much shared memory
    a block may have."""
    room = profile.limits.get("shared_memory")
    if room is None:
        name = f"{profile.platform}:{profile.arch}"
        raise LookupError(f"profile {name} has no limit shared_memory (bytes that a block of threads may have)")
    return tuple(Unit(form, profile.arch, room) for form in forms_of(target, tensors, attributes, profile.arch))
