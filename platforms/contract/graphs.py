"""Capture and replay, as the engine sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class CapturedGraph(Protocol):
    """Work recorded once. Its inputs are the buffers it was captured with; the caller refills them in place."""

    nbytes: int

    def replay(self) -> None:
        """Run the recorded work again on the runtime's stream. May not allocate."""

    def close(self) -> None:
        """Give the memory back. Idempotent."""


class GraphBackend(Protocol):
    """Made by ``Runtime.graphs``; one per opened device."""

    name: str

    def new_pool(self) -> Any:
        """An opaque memory pool that captures may share."""

    def capture(self, fn: Callable[[], Any], pool: Any) -> CapturedGraph:
        """Record ``fn``, warmed up on the same stream before. Raises ``DeviceError`` naming illegal work."""
