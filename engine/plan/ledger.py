"""Who decides a setting: the user, the platform, the level, the default — in this order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from engine.config.fields import BY_KEY
from engine.config.names import field_named
from engine.config.values import written_value
from engine.errors import UserError
from engine.plan_values import Decision, Given
from platforms.contract import Setting

AUTO = "auto"


class Ledger:
    """Collects decisions; each key is decided once. ``given``: what users asked for; ``settings``: what the platform
    would rather have, by key."""

    def __init__(self, given: Mapping[str, Given], settings: Mapping[str, Setting]) -> None:
        self._given = given
        self._settings = dict(settings)
        self._taken: dict[str, Decision] = {}
        self.decisions: dict[str, Decision] = {}
        self.warnings: list[str] = []

    def user(self, key: str) -> Any:
        """The user's value, or ``None``; ``auto`` is no wish."""
        row = self._given.get(key)
        return None if row is None or row.value == AUTO else row.value

    def asked(self, key: str) -> str:
        """How a message names what the user asked for: the flag, its value and where it came from."""
        row, field = self._given[key], field_named(key)
        return f"{field.flag if field else key}={written_value(row.value)} ({row.origin})"

    def wish(self, key: str, fallback: Any = None, origin: str = "default", reason: str = "") -> Decision:
        """User, then platform, then ``fallback`` with its ``origin`` and ``reason``; nothing is decided yet."""
        if self.user(key) is not None:
            row = self._given[key]
            self._settings.pop(key, None)
            return Decision(key, row.value, row.origin, "asked for")
        if key in self._settings:
            setting = self._settings.pop(key)
            self._taken[key] = Decision(key, setting.value, "platform", setting.reason)
        if key in self._taken:
            return self._taken[key]
        return self._fallback(key, fallback, origin, reason)

    def own(self, key: str, fallback: Any = None, reason: str = "") -> Any:
        """Settle what no platform may set: the user's value, else ``fallback``. Returns the value."""
        row = self._given.get(key)
        if row is None or row.value == AUTO:
            return self.settle(self._fallback(key, fallback, "default", reason))
        return self.settle(Decision(key, row.value, row.origin, "asked for"))

    def _fallback(self, key: str, value: Any, origin: str, reason: str) -> Decision:
        if value is None and key in BY_KEY:
            value = BY_KEY[key].default
            value = None if value == AUTO else value
        return Decision(key, value, origin, reason or "default")

    def platform(self, key: str) -> Any:
        """What the platform would rather have, or ``None``."""
        row = self._settings.get(key)
        return None if row is None else row.value

    def overruled(self, key: str) -> str:
        """What the platform would rather have than what the user asked for, and why; ``""`` where they agree. Before
        the key is decided."""
        row = self._settings.get(key)
        return "" if row is None or self.user(key) in (None, row.value) else f"{row.value} ({row.reason})"

    def rank(self, decision: Decision) -> int:
        """Precedence of where a value came from: level and default 0, platform 1, user 2."""
        return 2 if self.user(decision.key) is not None else int(decision.origin == "platform")

    def decide(self, key: str, fallback: Any = None, origin: str = "default", reason: str = "") -> Any:
        """``wish``, and settle it. Returns the value."""
        return self.settle(self.wish(key, fallback, origin, reason))

    def settle(self, decision: Decision) -> Any:
        """Record a decision. Returns its value."""
        if decision.key in self.decisions:
            raise ValueError(f"{decision.key} is decided already; a plan decides each key once")
        self.decisions[decision.key] = decision
        return decision.value

    def unused(self) -> list[str]:
        """Keys of platform settings that nobody asked for."""
        return sorted(self._settings)

    def limit(self, key: str, bound: int, what: str, adjust: Callable[[int, int], int] = min) -> int:
        """Hold a decided number to a bound: a user's value outside it is refused, another one follows the bound."""
        row = self.decisions[key]
        if adjust(row.value, bound) == row.value:
            return row.value
        if self.user(key) is not None:
            raise UserError(f"{self.asked(key)} cannot be served: {what}. Change one of them, or drop the flag.")
        self.decisions[key] = Decision(key, bound, "derived", f"{row.value} ({row.origin}) held to {what}")
        return bound
