"""What every unit of every device takes, and what is wrong with it. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.config.sources import value_of
from engine.explain.matrix import Device, devices
from engine.fusion import RULES, all_ops
from engine.kernels.units import STEPS, Step, Units, make_all, units_of
from engine.models.config import ModelConfig
from engine.plan import plan_for
from engine.plan_values import Given
from engine.table import BOLD, DIM, GAP, YELLOW, coloured, counted, lay_out
from platforms.contract import FusionRule

ALL, AUTO = "all", "auto"
Told = Callable[[int, int, str], None]
"""(units done, of how many, the last one's name)."""
Said = Callable[[str], None]
"""What begins now."""

LEGEND = {
    "registers": "of a thread",
    "spills": "of a thread, in memory (a problem unless 0)",
    "scalar_spills": "kept in vector registers (no problem)",
    "shared_memory": "bytes of a block of threads",
    "matrix": "matrix instructions that occur",
    "product_rows": "of the largest product of 16-bit or narrower values",
    "load": "bits of a thread's widest access to global memory",
    "store": "as load",
    "seconds": "to compile it on one core",
}
"""Figures that have one meaning wherever they are reported, and that in words."""
NEAR = "~ after a type: a tensor within 2 GiB"


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
    """What ``--platform`` and ``--profile`` name; ``all`` and nothing at all are every device, here or described. A
    platform's name alone is its device that is here, or where none is, all that it describes."""
    everything = {key: one for key, one in given.items() if key != "platform" or one.value != ALL}
    found, notes = devices(everything)
    here = [device for device in found if device.present]
    return here if here and value_of(everything, "platform") != AUTO else found, notes


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
    """``targets_of``, made."""
    targets = targets_of(found, model, given, environment, steps=steps)
    make(targets, processes=processes, told=told)
    return targets


def targets_of(
    found: Iterable[Device],
    model: ModelConfig,
    given: Mapping[str, Given],
    environment: Mapping[str, str],
    *,
    said: Said = lambda phase: None,
    steps: Sequence[Step] = STEPS,
) -> list[Target]:
    """Every unit of every row that says yes to a call of the model's plan on each device. Devices without rows that are
    built are left out, and of several of one arch with the same units all but the first."""
    targets: list[Target] = []
    asked = {key: one for key, one in given.items() if key not in ("platform", "profile_file")}
    for device in found:
        rows = device.plugin.kernels()
        if any(row.build for row in rows):
            said(f"planning for {device.label}")
            plan = plan_for(device.plugin, device.profile, model, asked, environment=environment)
            extra = tuple(row for row in device.plugin.fusions() if isinstance(row, FusionRule))
            units = units_of(plan, rows, all_ops((*RULES, *extra)), steps)
            if not any(_alike(one, device, units) for one in targets):
                targets.append(Target(device, units))
    return targets


def _alike(one: Target, device: Device, units: Units) -> bool:
    profiles = one.device.profile, device.profile
    same = len({(profile.platform, profile.arch) for profile in profiles}) == 1
    return same and (one.units.rows, one.units.problems) == (units.rows, units.problems)


def make(
    targets: Sequence[Target],
    *,
    processes: int = 1,
    told: Told = lambda done, count, name: None,
    said: Said = lambda phase: None,
) -> None:
    """Make every unit, equal ones once."""
    owners: dict[Any, list[Target]] = {}
    for target in targets:
        for unit in target.units.rows:
            owners.setdefault(unit, []).append(target)
    if owners:
        said(f"compiling {counted(len(owners), 'kernel')} for {counted(len(targets), 'device')}")
    for done, (unit, made) in enumerate(make_all(list(owners), processes), 1):
        for target in owners[unit]:
            target.made[unit] = made
        told(done, len(owners), f"{unit.name.partition(' ')[0]} for {owners[unit][0].device.label}")


def render(targets: Sequence[Target], notes: Sequence[str], width: int, colour: bool) -> str:
    """A table per device and the problems below; what the figures mean; a last line that counts. Names of kernels are
    whole whatever the width."""
    lines = []
    for target in targets:
        label = f"{target.device.label}  {target.device.profile.product}"
        lines += [coloured(label, BOLD if colour else ""), *_table(target, width, colour), ""]
        for text in target.problems:
            first, *more = _wrapped(f"problem  {text}", width, 2, 11)
            lines += [first.replace("problem", coloured("problem", YELLOW if colour else ""), 1), *more]
        lines += [""] * bool(target.problems)
    lines += [*(coloured(line, DIM if colour else "") for line in _legend(targets, width)), *notes]
    count, wrong = sum(len(target.units.rows) for target in targets), sum(len(target.problems) for target in targets)
    problems = counted(wrong, "problem") if wrong else "no problems"
    return "\n".join([*lines, f"{counted(count, 'kernel')} on {counted(len(targets), 'device')}, {problems}"]) + "\n"


def _wrapped(text: str, width: int, indent: int, below: int) -> list[str]:
    """Lines that break between words alone; those after the first begin at column ``below``."""
    from textwrap import wrap

    return wrap(
        text,
        width,
        initial_indent=" " * indent,
        subsequent_indent=" " * below,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _legend(targets: Sequence[Target], width: int) -> list[str]:
    """What the figures that occur mean."""
    named = _names(made for target in targets for made in target.made.values())
    said = [f"{name.replace('_', ' ')}: {LEGEND[name]}" for name in named if name in LEGEND]
    said += [NEAR] * any("~" in unit.name for target in targets for unit in target.units.rows)
    return [*_wrapped("; ".join(said), width, 0, 0), ""] if said else []


def _names(made: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for one in made for name in one["figures"]))


def _table(target: Target, width: int, colour: bool) -> list[str]:
    """A line of figures per unit, its kernel in front where all of them fit, else above; below it the rest of its name,
    and which rows start it."""
    if not target.units.rows:
        return ["  no kernel is made ahead of time"]
    names = _names(target.made.values())
    kernels, body, below = [], [], []
    for unit, rows in target.units.rows.items():
        kernel, _, rest = unit.name.partition(" ")
        kernels.append(kernel)
        body.append([_figure(target.made[unit]["figures"].get(name, "")) for name in names])
        details = _wrapped(f"{', '.join(rows)}: {rest}", width, 6, 6)
        below.append([coloured(line, DIM if colour else "") for line in details])
    table = [[name.replace("_", " ") for name in names], *body]
    if _fits(joined := [[first, *cells] for first, cells in zip(["kernel", *kernels], table, strict=True)], width):
        head, *lines = lay_out(joined, width)
        return [head, *(line for first, more in zip(lines, below, strict=True) for line in (first, *more))]
    head, *lines = lay_out(table, width, indent=4)
    parts = zip(kernels, lines, below, strict=True)
    return ["  kernel", head, *(line for kernel, first, more in parts for line in (f"  {kernel}", first, *more))]


def _fits(rows: Sequence[Sequence[str]], width: int) -> bool:
    """Whether ``lay_out`` breaks no word of them."""
    columns = zip(*rows, strict=True)
    longest = [max((len(word) for cell in column for word in cell.split()), default=0) for column in columns]
    return 2 + sum(longest) + GAP * (len(longest) - 1) <= width


def _figure(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def clean(targets: Sequence[Target]) -> bool:
    return not any(target.problems for target in targets)
