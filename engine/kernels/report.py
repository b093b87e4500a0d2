"""What every unit of every device takes, and what is wrong with it. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.explain.matrix import Device, devices
from engine.fusion import RULES, all_ops
from engine.kernels.units import STEPS, Step, Units, make_all, units_of
from engine.models.config import ModelConfig
from engine.plan import plan_for
from engine.plan_values import Given
from engine.table import BOLD, DIM, YELLOW, coloured, lay_out
from platforms.contract import FusionRule

ALL = "all"
Told = Callable[[int, int, str], None]
"""(units done, of how many, the last one's name)."""


@dataclass(slots=True)
class Target:
    """A device: its units and what came of each. ``problems``: of rows that named none."""

    device: Device
    units: Units
    made: dict[Any, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def problems(self) -> list[str]:
        """One sentence each."""
        return [
            *self.units.problems,
            *(f"{unit.name}: {problem}" for unit in self.units.rows for problem in self.made[unit]["problems"]),
        ]

    def to_json(self) -> dict[str, Any]:
        return {
            "device": self.device.label,
            "arch": self.device.profile.arch,
            "kernels": [
                {"name": unit.name, "rows": list(rows), **self.made[unit]} for unit, rows in self.units.rows.items()
            ],
            "problems": self.problems,
        }


def asked_for(given: Mapping[str, Given]) -> tuple[list[Device], list[str]]:
    """What ``--platform`` and ``--profile`` name; ``all`` and nothing at all are every device, here or described. Two
    that are one arch of one platform are one."""
    everything = {key: one for key, one in given.items() if key != "platform" or one.value != ALL}
    found, notes = devices(everything)
    once = {(device.profile.platform, device.profile.arch): device for device in reversed(found)}
    return [device for device in found if device in once.values()], notes


def report(
    found: Iterable[Device],
    model: ModelConfig,
    given: Mapping[str, Given],
    environment: Mapping[str, str],
    *,
    processes: int = 1,
    told: Told = lambda done, count, name: None,
    steps: Sequence[Step] = STEPS,
) -> list[Target]:
    """Every unit of every row that says yes to a call of the model's plan on each device, made. Devices without such
    rows are left out."""
    targets = []
    asked = {key: one for key, one in given.items() if key not in ("platform", "profile_file")}
    for device in found:
        rows = device.plugin.kernels()
        if any(row.build for row in rows):
            plan = plan_for(device.plugin, device.profile, model, asked, environment=environment)
            extra = tuple(row for row in device.plugin.fusions() if isinstance(row, FusionRule))
            targets.append(Target(device, units_of(plan, rows, all_ops((*RULES, *extra)), steps)))
    owners: dict[Any, list[Target]] = {}
    for target in targets:
        for unit in target.units.rows:
            owners.setdefault(unit, []).append(target)
    for done, (unit, made) in enumerate(make_all(list(owners), processes), 1):
        for target in owners[unit]:
            target.made[unit] = made
        told(done, len(owners), f"{unit.name.partition(' ')[0]} for {owners[unit][0].device.label}")
    return targets


def render(targets: Sequence[Target], notes: Sequence[str], width: int, colour: bool) -> str:
    """A table per device and the problems below; a last line that counts."""
    lines = []
    for target in targets:
        label = f"{target.device.label}  {target.device.profile.product}"
        lines += [coloured(label, BOLD if colour else ""), *_table(target, width, colour), ""]
        lines += [f"  {coloured('problem', YELLOW if colour else '')}  {text}" for text in target.problems]
        lines += [""] * bool(target.problems)
    lines += notes
    count, wrong = sum(len(target.units.rows) for target in targets), sum(len(target.problems) for target in targets)
    devices = f"{len(targets)} device{'s' if len(targets) > 1 else ''}"
    problems = f"{wrong or 'no'} problem{'' if wrong == 1 else 's'}"
    return "\n".join([*lines, f"{count} kernels on {devices}, {problems}"]) + "\n"


def _table(target: Target, width: int, colour: bool) -> list[str]:
    """A line of figures per unit; below it the rest of its name, and which rows start it."""
    if not target.units.rows:
        return ["  no kernel is made ahead of time"]
    names = list(dict.fromkeys(name for made in target.made.values() for name in made["figures"]))
    body, below = [], []
    for unit, rows in target.units.rows.items():
        kernel, _, rest = unit.name.partition(" ")
        body.append((kernel, *(_figure(target.made[unit]["figures"].get(name, "")) for name in names)))
        (details,) = lay_out([(f"{', '.join(rows)}: {rest}",)], width, indent=4)
        below.append(coloured(details, DIM if colour else ""))
    head, *lines = lay_out([("kernel", *(name.replace("_", " ") for name in names)), *body], width)
    return [head, *(line for pair in zip(lines, below, strict=True) for line in pair)]


def _figure(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def clean(targets: Sequence[Target]) -> bool:
    return not any(target.problems for target in targets)
