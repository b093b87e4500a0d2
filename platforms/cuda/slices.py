"""Slices of a device (MIG instances) in the management library: which there are, and which one a name means."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

_OLD_NAME = re.compile(r"MIG-(GPU-[^/\s]+)/([0-9]{1,4})/([0-9]{1,4})", re.IGNORECASE)
_MOST = 64


class Asked(Protocol):
    """The library, with an answer or a default for every question."""

    def ask(self, name: str, *arguments: Any, default: Any = None) -> Any: ...


def by_name(library: Asked, name: str, devices: Sequence[Any]) -> Any:
    """The handle of a device or slice, or ``None``. Newer libraries know whole ids alone: ``MIG-GPU-<id>/<instance>/
    <compute instance>``, an id cut short and one in another case are found by looking."""
    handle = library.ask("nvmlDeviceGetHandleByUUID", name)
    if handle is not None:
        return handle
    old = _OLD_NAME.fullmatch(name)
    found = []
    for device in devices:
        if old and not _begins(library, device, old[1]):
            continue
        for _, instance in instances(library, device):
            if (_numbers(library, instance) == (int(old[2]), int(old[3]))) if old else _begins(library, instance, name):
                found.append(instance)
    return found[0] if len(found) == 1 else None


def instances(library: Asked, device: Any) -> Iterator[tuple[int, Any]]:
    """Of one device: those that exist, with their places."""
    if device is None:
        return
    for index in range(min(library.ask("nvmlDeviceGetMaxMigDeviceCount", device, default=0), _MOST)):
        instance = library.ask("nvmlDeviceGetMigDeviceHandleByIndex", device, index)
        if instance is not None:
            yield index, instance


def first_of(library: Asked, device: Any) -> tuple[int, Any]:
    """Place and handle of the first slice; no handle where there is none."""
    return next(instances(library, device), (0, None))


def is_slice(library: Asked, handle: Any) -> bool:
    return bool(library.ask("nvmlDeviceIsMigDeviceHandle", handle, default=False))


def parent_of(library: Asked, handle: Any) -> Any:
    """The device a slice is cut from; ``None`` for a whole device."""
    return library.ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)


def _numbers(library: Asked, instance: Any) -> tuple[Any, Any]:
    return library.ask("nvmlDeviceGetGpuInstanceId", instance), library.ask("nvmlDeviceGetComputeInstanceId", instance)


def _begins(library: Asked, handle: Any, name: str) -> bool:
    known = library.ask("nvmlDeviceGetUUID", handle, default="") if handle is not None else ""
    return str(known).lower().startswith(name.lower())
