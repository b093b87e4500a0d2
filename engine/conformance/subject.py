"""The plugin under the kit: found, loaded, probed, and opened once for every check that needs its device."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

from engine.conformance.check import CHAPTERS, NO_DEVICE, Check, NotSupported, Wrong, check, said
from platforms.contract import DeviceProfile, FusionOffer, FusionRule, Kernel, PlatformPlugin, Runtime

if TYPE_CHECKING:
    from engine.ops import Op
    from platforms.discovery import Candidate


class Subject:
    """``request``: what ``--platform`` calls it; ``source``: ``module:attribute`` of its descriptor."""

    def __init__(self, plugin: PlatformPlugin, request: str, source: str) -> None:
        self.plugin, self.request, self.source = plugin, request, source
        self.plans: dict[Any, Any] = {}
        self.served: dict[Any, Any] = {}

    def checks(self, chapters: tuple[str, ...] = CHAPTERS) -> tuple[Check, ...]:
        return tuple(row for chapter in chapters for row in self._chapter(chapter))

    def _chapter(self, chapter: str) -> tuple[Check, ...]:
        module: Any = import_module(f"engine.conformance.{chapter}")
        lister: Callable[[Subject], Iterator[tuple[str, Callable[[], str]]]] = module.checks
        # The list is made from strangers' tables: where one breaks, that is the one check of the chapter.
        try:
            return tuple(check(chapter, name, body) for name, body in lister(self))
        except (Exception, SystemExit) as error:
            message = said(error)

            def broken() -> str:
                raise Wrong(message)

            return (check(chapter, "tables", broken),)

    @cached_property
    def rows(self) -> tuple[Kernel, ...]:
        return self.plugin.kernels()

    @cached_property
    def rules(self) -> tuple[FusionRule, ...]:
        """Those of its own."""
        return tuple(row for row in self.plugin.fusions() if isinstance(row, FusionRule))

    @cached_property
    def offers(self) -> tuple[FusionOffer, ...]:
        return tuple(row for row in self.plugin.fusions() if isinstance(row, FusionOffer))

    @cached_property
    def ops(self) -> dict[str, Op]:
        """The vocabulary with every fused op, its own included."""
        from engine.fusion import RULES, all_ops

        return all_ops((*RULES, *self.rules))

    @cached_property
    def targets(self) -> dict[str, DeviceProfile]:
        return dict(self.plugin.targets())

    @cached_property
    def _probed(self) -> Candidate:
        """What discovery makes of it; its faults are told by the contract's own chapter."""
        from platforms.discovery import Candidate, probed

        return probed((Candidate(self.plugin.name, self.source, self.plugin.kind, plugin=self.plugin),))[0]

    @property
    def devices(self) -> tuple[DeviceProfile, ...]:
        """Those its probe sees here."""
        return self._probed.devices

    @cached_property
    def profiles(self) -> dict[str, DeviceProfile]:
        """Everything it can be planned for: described targets, and devices that are here."""
        return {**self.targets, **{f"device {at}": profile for at, profile in enumerate(self.devices)}}

    def need_device(self) -> None:
        """Raises ``NotSupported`` where the probe sees none."""
        if not self.devices:
            raise NotSupported(f"{NO_DEVICE}: {self._probed.reason}")

    @cached_property
    def _opened(self) -> Runtime | str:
        try:
            runtime = self.plugin.open(0)
        except (Exception, SystemExit) as error:
            return said(error)
        atexit.register(runtime.close)
        return runtime

    @property
    def runtime(self) -> Runtime:
        """Opened on first use, closed when the process ends. Raises ``NotSupported`` without a device, and where it
        does not open: that is one failure, told by the chapter on memory."""
        self.need_device()
        if isinstance(self._opened, str):
            raise NotSupported(f"the device does not open: {self._opened}")
        return self._opened


def find(name: str) -> Subject:
    """An installed platform by name, or ``module:attribute``. Raises ``PlatformError``."""
    from difflib import get_close_matches

    from platforms.discovery import ByHand, PlatformError, Point, installed, loaded

    known = installed()
    found: list[Point] = [point for point in known if point.name == name]
    if len(found) > 1:
        paths = " or ".join(point.value for point in found)
        raise PlatformError(f"{name}: registered more than once; pick one by its path, {paths}")
    if not found and ":" not in name:
        names = sorted({point.name for point in known})
        near = get_close_matches(name.lower(), names, 1, 0.5)
        hint = f"did you mean {near[0]}" if near else f"there are {', '.join(names) or 'none'}"
        raise PlatformError(f"no platform {name!r} is installed; {hint}; one that is not installed is module:attribute")
    row = loaded(found[0] if found else ByHand(name))
    if row.plugin is None:
        raise PlatformError(f"{name}: the plugin {row.source} does not load: {row.error}")
    return Subject(row.plugin, name, row.source)
