"""Who decides a setting: the user, the platform, the level, the default — in this order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from engine.config.fields import BY_KEY
from engine.errors import UserError
from engine.plan_values import Decision, Given
from platforms.contract import Setting


class Ledger:
    """Collects decisions; each key is decided once. ``given``: what users asked for; ``settings``: what the platform
    would rather have."""

    def __init__(self, given: Mapping[str, Given], settings: tuple[Setting, ...]) -> None:
        self._given = given
        self._settings = {row.key: row for row in settings}
        self.decisions: dict[str, Decision] = {}
        self.warnings: list[str] = []

    def user(self, key: str) -> Any:
        """The user's value, or ``None``."""
        row = self._given.get(key)
        return None if row is None else row.value

    def origin(self, key: str) -> str:
        """Who asked for it."""
        return self._given[key].origin

    def setting(self, key: str) -> Setting | None:
        """What the platform would rather have, if the user said nothing."""
        return self._settings.get(key) if self.user(key) is None else None

    def asked(self, key: str) -> str:
        """How a message names what the user asked for: the flag, its value and where it came from."""
        row = self._given[key]
        flag = BY_KEY[key].flag if key in BY_KEY else f"--{key}"
        return f"{flag}={row.value} ({row.origin})"

    def decide(self, key: str, fallback: Any = None, origin: str = "default", reason: str = "") -> Any:
        """User, then platform, then ``fallback`` with its ``origin`` and ``reason``. Returns the value."""
        if self.user(key) is not None:
            row = self._given[key]
            return self.set(key, row.value, row.origin, "asked for")
        if key in self._settings:
            setting = self._settings[key]
            return self.set(key, setting.value, "platform", setting.reason)
        if fallback is None and key in BY_KEY:
            fallback = BY_KEY[key].default
        return self.set(key, fallback, origin, reason or "default")

    def set(self, key: str, value: Any, origin: str, reason: str) -> Any:
        if key in self.decisions:
            raise ValueError(f"{key} is decided already; a plan decides each key once")
        self.decisions[key] = Decision(key, value, origin, reason)
        return value

    def limit(self, key: str, bound: int, what: str, adjust: Callable[[int, int], int] = min) -> int:
        """Hold a decided number to a bound: a user's value outside it is refused, another one follows the bound."""
        row = self.decisions[key]
        if adjust(row.value, bound) == row.value:
            return row.value
        if key in self._given:
            raise UserError(f"{self.asked(key)} cannot be served: {what}. Change one of them, or drop the flag.")
        self.decisions[key] = Decision(key, bound, "derived", f"{row.value} ({row.origin}) held to {what}")
        return bound
