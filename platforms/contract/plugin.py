"""The two objects a platform gives: a descriptor importable anywhere, and a runtime opened in the worker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

from platforms.contract.fusion import FusionOffer, FusionRule
from platforms.contract.graphs import GraphBackend
from platforms.contract.kernel import Kernel
from platforms.contract.profile import DeviceProfile, Memory, Probe, Setting
from platforms.contract.verdict import Facts, Verdict

API_VERSION = 1
"""Raised when a member changes; a new member with a default keeps it."""


class DeviceError(RuntimeError):
    """The device cannot be opened or has failed. The message says what was tried and what to do."""


class PlatformPlugin(ABC):
    """The descriptor. Its module imports the standard library and ``platforms.contract`` only."""

    name: str
    """What ``--platform`` calls it; the entry point's name."""
    api: int
    """The ``API_VERSION`` it was written for; another number makes it a refused row in the table."""
    kind: Literal["accelerator", "host"] = "accelerator"
    """``host`` is the floor of automatic choice."""

    @abstractmethod
    def probe(self) -> Probe:
        """What this machine seems to have. At most 2 s, no driver, no torch, no environment written, never raises."""

    @abstractmethod
    def targets(self) -> Mapping[str, DeviceProfile]:
        """Devices it can describe without having them, by the name used in ``--platform NAME:target``."""

    @abstractmethod
    def kernels(self) -> tuple[Kernel, ...]:
        """Its table of implementations, for every target."""

    def fusions(self) -> tuple[FusionOffer | FusionRule, ...]:
        """Offers for rules of the catalog, and rules of its own together with their offers."""
        return ()

    def settings(self, profile: DeviceProfile, facts: Facts, level: int) -> tuple[Setting, ...]:
        """Soft defaults for this profile. Pure. A user's value wins over each."""
        return ()

    def aliases(self) -> Mapping[str, str]:
        """Environment variables worded for this platform → the fact name predicates know them by. The engine reads
        the variables once at start; predicates see ``facts[name]`` as text."""
        return {}

    @abstractmethod
    def open(self, index: int) -> Runtime:
        """Open visible device ``index`` in this process; the only member that may import torch or start a driver.
        Raises ``DeviceError``."""


class Runtime(ABC):
    """One opened device, made and used inside one worker. Two may live side by side."""

    @property
    @abstractmethod
    def profile(self) -> DeviceProfile:
        """Measured facts; replaces what the probe guessed."""

    @property
    @abstractmethod
    def device(self) -> Any:
        """A ``torch.device``, opaque to the engine."""

    @abstractmethod
    def memory(self) -> Memory:
        """Read now. Memory that only an allocator's cache holds counts as available: it is given back first."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until all work queued on ``compute()`` is done."""

    def compute(self) -> AbstractContextManager[Any]:
        """The stream for everything the engine runs, warm-up and capture included."""
        return nullcontext()

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """A zeroed tensor for state that lives as long as the runtime, such as a KV cache. ``dtype``: torch's."""
        import torch

        return torch.zeros(shape, dtype=dtype, device=self.device)

    def fetch(self, tensor: Any) -> Fetch:
        """Start copying a tensor to the host; ``wait()`` gives the host tensor."""
        return Fetch(tensor)

    def graphs(self) -> GraphBackend | Verdict:
        """The capture backend, or why there is none."""
        return Verdict(False, "no backend offered")

    def communicator(self) -> str:
        """Name of the torch.distributed backend for collectives between such devices."""
        return "gloo"

    def close(self) -> None:
        """Release the device. Idempotent; nothing may be called afterwards."""
        return None


class Fetch:
    """A copy to the host under way. The base is for devices whose tensors the host reads directly."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def wait(self) -> Any:
        """The host tensor, complete."""
        return self._tensor.cpu()
