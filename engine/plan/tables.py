"""What a platform brings to a plan. A stranger's code may give anything: it is checked here, so that a plan can rely on
it. Standard library only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from engine.config.kinds import SIZE
from engine.config.names import field_named
from engine.errors import UserError
from engine.fusion import RULES, check_rules
from engine.plan.fusions import LIMITS
from engine.plan.graph_modes import SUPPORT
from engine.plan.kernels import BROKEN
from engine.plan.ledger import AUTO
from platforms.contract import DeviceProfile, Facts, FusionOffer, FusionRule, Kernel, PlatformPlugin, Setting, Verdict

PLATFORM_ONLY = {"compilation.capture_cap": SIZE, "compilation.capture_step": SIZE}
"""Settings that no user has a flag for."""


@dataclass(frozen=True, slots=True)
class Tables:
    """``settings``: the plugin's own function. ``compiler`` and ``graphs``: whether pieces can be compiled and graphs
    captured there; ``None``: as the profile says."""

    kernels: tuple[Kernel, ...] = ()
    fusions: tuple[FusionOffer | FusionRule, ...] = ()
    settings: Callable[[DeviceProfile, Facts, int], tuple[Setting, ...]] = lambda profile, facts, level: ()
    compiler: Verdict | None = None
    graphs: Verdict | None = None

    @classmethod
    def of(cls, plugin: PlatformPlugin) -> Tables:
        """Raises ``UserError`` for a plugin that breaks or gives something else."""
        kernels = _rows(plugin, "kernels", Kernel)
        fusions = _rows(plugin, "fusions", (FusionOffer, FusionRule))
        for member, problem in (("kernels", _of_kernels(kernels)), ("fusions", _of_fusions(fusions))):
            if problem:
                raise broken(plugin.name, f"{member}(): {problem}")
        return cls(kernels, fusions, lambda *asked: _rows(plugin, "settings", Setting, *asked))

    def soft(self, profile: DeviceProfile, facts: Facts, level: int) -> dict[str, Setting]:
        """Settings by key, with values as a user's would be read. Raises ``UserError`` for one that no user could
        give, and for two of one key. ``auto`` is no wish."""
        found: dict[str, Setting] = {}
        for row in self.settings(profile, facts, level):
            key, field = str(row.key), field_named(str(row.key))
            kind = field.kind if field else PLATFORM_ONLY.get(key)
            if key in found:
                raise broken(profile.platform, f"settings() gives {key} twice")
            if kind is None:
                found[key] = row
                continue
            try:
                value = kind.parse(row.value)
            except ValueError as error:
                raise broken(profile.platform, f"settings() gives {key} = {row.value!r}: {error}") from error
            if value != AUTO:
                found[key] = Setting(key, value, row.reason)
        return found


def told(plugin: PlatformPlugin, member: str, read: Callable[[Any], Any], *arguments: Any) -> Any:
    """What a member of the plugin answers. Raises ``UserError`` with what it raised."""
    try:
        return read(getattr(plugin, member)(*arguments))
    except BROKEN as error:
        raise broken(plugin.name, f"{member}() raised {type(error).__name__}: {error}") from error


def broken(platform: str, what: str) -> UserError:
    return UserError(f"platform {platform}: {what}; fix or remove the plugin")


def _rows(plugin: PlatformPlugin, member: str, kinds: Any, *arguments: Any) -> tuple[Any, ...]:
    rows: tuple[Any, ...] = told(plugin, member, tuple, *arguments)
    strange = next((row for row in rows if not isinstance(row, kinds)), None)
    if strange is not None:
        raise broken(plugin.name, f"{member}() holds a {type(strange).__name__}")
    return rows


def _of_kernels(rows: Iterable[Kernel]) -> str:
    """What is wrong with a table, ``""`` where nothing is."""
    seen: set[tuple[str, str]] = set()
    for row in rows:
        name = f"{row.op}/{row.name}"
        if (row.op, row.name) in seen:
            return f"two rows are called {name}"
        seen.add((row.op, row.name))
        if not isinstance(row.priority, int):
            return f"the priority of {name} is {row.priority!r}, needs a whole number"
        if row.graph_batches not in SUPPORT[1:]:
            return f"graph_batches of {name} is {row.graph_batches!r}, needs one of {', '.join(SUPPORT[1:])}"
    return ""


def _of_fusions(rows: Iterable[FusionOffer | FusionRule]) -> str:
    rules = tuple(row for row in rows if isinstance(row, FusionRule))
    offers = Counter(row.rule for row in rows if isinstance(row, FusionOffer))
    twice = next((name for name, count in offers.items() if count > 1), "")
    if twice:
        return f"two offers for {twice}"
    taken = next((rule.name for rule in rules if rule.name in LIMITS), "")
    if taken:
        return f"fusion rule {taken}: a setting beside the switches has that name"
    try:
        check_rules((*RULES, *rules))
    except ValueError as error:
        return str(error)
    return ""
