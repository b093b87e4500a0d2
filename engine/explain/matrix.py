"""Every level on every device that is here or described. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.config.sources import value_of
from engine.errors import UserError
from engine.explain.same import LEVEL, same
from engine.levels import LEVELS
from engine.models.config import ModelConfig
from engine.plan import plan_for
from engine.plan_values import Given, Plan
from platforms.contract import DeviceProfile, PlatformPlugin

if TYPE_CHECKING:
    from platforms.discovery import Candidate


@dataclass(frozen=True, slots=True)
class Device:
    """One row of the page. ``label``: what ``--platform`` calls it. ``present``: it is in this machine."""

    label: str
    plugin: PlatformPlugin
    profile: DeviceProfile
    present: bool


@dataclass(frozen=True, slots=True)
class Cell:
    """One device at one level. ``plan``: ``None`` where none can be made, ``refusal`` then saying why. ``twin``: the
    lowest level with the same plan, where there is one below."""

    level: int
    plan: Plan | None
    refusal: str = ""
    twin: int | None = None


def devices(given: Mapping[str, Given]) -> tuple[list[Device], list[str]]:
    """What is here first, then every described target, and a line per platform that is left out. ``--platform`` and
    ``--profile`` narrow it. Raises ``PlatformError`` for a name that nobody has."""
    from platforms.discovery import AUTO, candidates, read_profile, select

    request, file = value_of(given, "platform"), value_of(given, "profile_file")
    rows = [] if ":" in request or file else [row for row in candidates() if request in (AUTO, row.name)]
    if not rows:
        chosen = select(request, profile=read_profile(file) if file else None)
        label = "saved profile" if file else request
        return [Device(label, chosen.plugin, chosen.profile, chosen.present)], []
    found, notes = [], []
    for row in sorted(rows, key=lambda row: row.kind == "host"):
        found += [Device(row.name, row.plugin, profile, True) for profile in row.devices[:1] if row.plugin is not None]
    for row in rows:
        described, problem = _described(row)
        found += described
        notes += [f"platform {row.name} is left out: {problem}"] if problem else []
    return found, notes


def _described(row: Candidate) -> tuple[list[Device], str]:
    plugin = row.plugin
    if plugin is None:
        return [], row.error
    # Strangers' code may raise anything, and what it raised is the row's content.
    try:
        return [Device(f"{row.name}:{target}", plugin, profile, False) for target, profile in plugin.targets().items()
                ], ""
    except Exception as error:
        return [], f"targets() raised {type(error).__name__}: {error}"


def matrix(
    found: Sequence[Device], model: ModelConfig, given: Mapping[str, Given], environment: Mapping[str, str]
) -> list[tuple[Device, list[Cell]]]:
    """A row per device with a cell per level; everything else as ``given``."""
    return [(device, _cells(device, model, given, environment)) for device in found]


def _cells(
    device: Device, model: ModelConfig, given: Mapping[str, Given], environment: Mapping[str, str]
) -> list[Cell]:
    cells: list[Cell] = []
    for level in LEVELS:
        asked = {**given, LEVEL: Given(level.number, "command line")}
        try:
            plan = plan_for(device.plugin, device.profile, model, asked, environment=environment)
        except UserError as error:
            cells.append(Cell(level.number, None, str(error)))
            continue
        twins = [cell.level for cell in cells if cell.plan and same(cell.plan, plan)]
        cells.append(Cell(level.number, plan, twin=min(twins, default=None)))
    return cells
