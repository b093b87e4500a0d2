"""Capture and replay, as the engine sees it."""

from __future__ import annotations

from typing import Any, Protocol


class Work(Protocol):
    """Work on buffers that stay where they are, those of its results included. Calling it does it once: record what
    that queues, or go through ``calls``, each ``values[outputs] = function(*values[inputs], **attributes)``."""

    values: list[Any]
    calls: list[Any]

    def __call__(self) -> None: ...


class CapturedGraph(Protocol):
    """Work recorded once. Its inputs are the buffers it was captured with; the caller refills them in place."""

    nbytes: int

    def replay(self) -> None:
        """Run the recorded work again on the runtime's stream. Keeps no memory beyond ``nbytes``."""

    def close(self) -> None:
        """Give the memory back. Idempotent."""


class GraphBackend(Protocol):
    """Made by ``Runtime.graphs``, one per opened device. Its own ``copy(buffer, value)``, if any, serves between."""

    name: str

    def new_pool(self) -> Any:
        """An opaque memory pool that captures may share."""

    def capture(self, work: Work, pool: Any) -> CapturedGraph:
        """Record ``work``, run once before where that is needed. Raises ``DeviceError`` naming illegal work."""
