"""Responses that may be asked for again, or continued."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import msgspec

MAX_BYTES = 64 * 2**20


@dataclass
class Stored:
    """``owner``: whose key it was made with; nobody else sees it. ``messages``: the conversation up to and with the
    answer, without instructions. ``generation``: by which the engine knows it while it is being made."""

    response: dict[str, Any]
    owner: str
    items: list[dict[str, Any]]
    messages: list[dict[str, Any]]
    generation: str | None = None
    cancelled: bool = False
    size: int = field(default=0, init=False)


class ResponseStore:
    """In the memory of this process: at most ``most`` responses, at most ``MAX_BYTES`` of JSON; the oldest go first.
    ``remedy``: what to do for some to be kept where there are none."""

    def __init__(self, most: int, remedy: str = "start it with --responses-store above 0") -> None:
        self._most, self.remedy = most, remedy
        self._kept: OrderedDict[str, Stored] = OrderedDict()
        self._bytes = 0

    @property
    def on(self) -> bool:
        return self._most > 0

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, name: str, owner: str) -> Stored | None:
        stored = self._kept.get(name)
        return stored if stored is not None and stored.owner == owner else None

    def has(self, name: str) -> bool:
        """Whether anybody's has this name."""
        return name in self._kept

    def keep(self, stored: Stored) -> None:
        """Keep it, or what has changed of it."""
        name = stored.response["id"]
        self.drop(name)
        stored.size = len(msgspec.json.encode([stored.response, stored.items, stored.messages]))
        self._kept[name] = stored
        self._bytes += stored.size
        while len(self._kept) > self._most or self._bytes > MAX_BYTES:
            self.drop(next(iter(self._kept)))

    def drop(self, name: str) -> None:
        stored = self._kept.pop(name, None)
        if stored is not None:
            self._bytes -= stored.size
