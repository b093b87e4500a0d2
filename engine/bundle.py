"""Kernels of a plan compiled ahead of time into a folder, and a start that takes them from there.

What a platform's compiler keeps is its own business: beside the function ``build`` that a row names (with a true
attribute ``any_call`` where its units are the same whatever the call), its module may have ``compiler()``, which says
in words what compiles and in which version; units with ``save(folder)``, which writes files and returns an entry of the
manifest (plain values, ``files`` being name → SHA-256); and ``install(folder, arch, entries, required, packages)``,
after which launches, or the opening of the device, find those files. That returns an object with ``misses`` and
``problems``, lists of sentences; ``required``: launches raise where something would be compiled; ``packages``: where
the platform's kernels come from, for nothing else is to be imported on a manifest's word.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.bind import load_target
from engine.errors import UserError
from engine.explain import Row
from engine.first_touch import smallest
from engine.graphs.space import table_width
from engine.kernels.bundle_folder import MANIFEST, publish, working_folder
from engine.kernels.units import Step, any_call, units_of
from engine.ops import Op
from engine.ops.compare import specs_of
from engine.plan_values import Plan
from engine.table import counted
from platforms.contract import DeviceProfile, Kernel

logger = logging.getLogger("engine")

FORMAT = 1
KEY = "compilation.kernel_bundle"
Told = Callable[[int, int, str], None]


@dataclass(slots=True)
class Written:
    """``forms``: how many are in the folder. ``problems``: why others are not, a sentence each."""

    forms: int = 0
    nbytes: int = 0
    problems: list[str] = field(default_factory=list)


def steps_for(plan: Plan) -> tuple[Step, ...]:
    """Steps in which calls may take other forms: a token each of so many requests, and prompts, by powers of two up to
    the most that a step holds, and the sizes of graphs; over caches of every length, by powers of two."""
    most, seqs = plan["scheduler.max_num_batched_tokens"], plan["scheduler.max_num_seqs"]
    sizes = dict.fromkeys([*_powers(most), *plan["compilation.capture_sizes"]])
    return tuple(
        Step(n, requests, blocks)
        for n in sorted(sizes)
        for requests in dict.fromkeys((min(n, seqs), 1))
        for blocks in _powers(table_width(plan))
    )


def _powers(most: int) -> list[int]:
    """Of two below ``most``, and ``most``."""
    return [*(1 << at for at in range(most.bit_length()) if 1 << at < most), most]


def write_bundle(
    folder: Path,
    plan: Plan,
    rows: Sequence[Kernel],
    ops: Mapping[str, Op],
    told: Told = lambda done, count, name: None,
    steps: Sequence[Step] = (),
) -> Written:
    """Compile everything that the plan's rows start, in serving and where they are compared with their reference
    before. The folder is made; another bundle in it is replaced once this one is whole. ``steps``: in place of
    ``steps_for``.
    Raises ``UserError`` where it cannot be written, and where no row of the plan is compiled ahead of time."""
    units = units_of(plan, rows, ops, steps or steps_for(plan), chosen=True)
    chosen = {(choice.op, choice.chosen) for choice in plan.kernels}
    for row in rows:
        if not row.build or (row.op, row.name) not in chosen or any_call(row):
            continue
        if found := smallest(row, ops[row.op], plan):
            units.add(row, ops[row.op], plan.profile, specs_of(found[1]), found[0].attributes)
    builds = {f"{row.op}/{row.name}": row.build for row in rows}
    able = [(unit, builds[next(iter(names))]) for unit, names in units.rows.items() if hasattr(unit, "save")]
    if not able:
        if units.problems:
            raise UserError(f"no kernel of the plan can be compiled ahead of time: {'; '.join(units.problems)}")
        raise UserError(
            f"no kernel of the plan for {plan.profile.platform}:{plan.profile.arch} is compiled ahead of time; "
            "`engine explain` with the same flags says which kernels it has"
        )
    written = Written(problems=list(units.problems))
    entries: list[dict[str, Any]] = []
    try:
        with working_folder(folder) as made:
            for done, (unit, build) in enumerate(able, 1):
                # A compiler is strangers' code; what it raised is why the form is not there.
                try:
                    entries.append({"build": build, **unit.save(made)})
                except OSError:
                    raise
                except Exception as error:
                    said = str(error).strip().splitlines() or [""]
                    written.problems.append(f"{unit.name}: {type(error).__name__}: {said[0]}")
                told(done, len(able), unit.name.partition(" ")[0])
            if not entries:
                raise UserError(f"nothing of the plan could be compiled, such as {written.problems[0]}")
            body = {
                "format": FORMAT,
                "platform": plan.profile.platform,
                "arch": plan.profile.arch,
                "plan": plan.hash,
                "compilers": {build: _compiler(build) for _, build in able},
                "forms": entries,
            }
            (made / MANIFEST).write_text(json.dumps(body, indent=1, sort_keys=True) + "\n")
            written.nbytes = sum(file.stat().st_size for file in made.iterdir())
            publish(made, folder)
    except OSError as error:
        why = error.strerror or str(error)
        raise UserError(f"the bundle cannot be written to {folder}: {why}; name another folder") from error
    written.forms = len(entries)
    return written


def _compiler(build: str) -> str:
    found: str = load_target(f"{build.partition(':')[0]}:compiler")()
    return found


@dataclass(slots=True)
class Bundle:
    """One that is in use. ``installed``: what each compiler returned. ``forms``: how many can be found."""

    folder: Path
    required: bool
    installed: list[Any] = field(default_factory=list)
    forms: int = 0

    def check(self) -> None:
        """Raises ``UserError`` where everything had to be in it and something was not."""
        missed = [name for one in self.installed for name in one.misses]
        if self.required and missed:
            more = f", and {len(missed) - 1} more" if len(missed) > 1 else ""
            raise UserError(
                f"ENGINE_FORCE_AOT_LOAD: kernel {missed[0]} is not in the bundle {self.folder}{more}. Unset "
                "ENGINE_FORCE_AOT_LOAD to compile it, or build the bundle with the flags of this start."
            )

    def rows(self) -> list[Row]:
        """For the table at start-up."""
        missed = sum(len(one.misses) for one in self.installed)
        words = counted(self.forms, "form") + (f", {missed} more compiled here" if missed else "")
        return [Row("kernel bundle", words, str(self.folder))]


def open_bundle(folder: str | None, profile: DeviceProfile, rows: Iterable[Kernel], required: bool) -> Bundle | None:
    """Put a bundle into use; ``None`` where none was asked for, and where it does not fit: then kernels are got
    as ever, with one line saying why. Raises ``UserError`` for a folder without a bundle, and where ``required``
    (ENGINE_FORCE_AOT_LOAD) for one that does not fit."""
    if not folder:
        return None
    path = Path(folder).absolute()
    body, rows = _manifest(path), tuple(rows)
    builds = {row.build for row in rows if row.build}
    packages = frozenset(name.split(":")[0].split(".")[0] for row in rows for name in (row.target, row.build))
    problem = _unfit(body, profile, builds)
    if problem:
        if required:
            advice = "No kernel of this platform comes from a bundle: drop --kernel-bundle."
            if builds:
                advice = "Build it again with this version and `engine kernels build`, or unset ENGINE_FORCE_AOT_LOAD "
                advice += "to compile its kernels here."
            raise UserError(f"ENGINE_FORCE_AOT_LOAD: the bundle {path} cannot be used: {problem}. {advice}")
        meanwhile = "kernels are compiled anew" if builds else "no kernel of this platform comes from a bundle"
        logger.warning("%s, the bundle %s is not used: %s", meanwhile, path, problem)
        return None
    bundle = Bundle(path, required)
    problems: list[str] = []
    for build in body["compilers"]:
        entries = [entry for entry in body["forms"] if entry["build"] == build]
        found = load_target(f"{build.partition(':')[0]}:install")(path, profile.arch, entries, required, packages)
        bundle.installed.append(found)
        bundle.forms += len(entries) - len(found.problems)
        problems += found.problems
    if problems:
        logger.warning(
            "%d of %d forms of the bundle %s are not used, such as %s", len(problems), len(body["forms"]), path,
            problems[0],
        )  # fmt: skip
    return bundle


def _manifest(path: Path) -> dict[str, Any]:
    what = f"--kernel-bundle={path}"
    try:
        body = json.loads((path / MANIFEST).read_bytes())
    except OSError as error:
        raise UserError(
            f"{what} cannot be read: {path / MANIFEST}: {error.strerror}. Make one with `engine kernels build --out "
            f"{path}`, or drop the flag."
        ) from error
    except (ValueError, RecursionError) as error:
        message = f"{what}: {MANIFEST} is damaged ({error}). Build the bundle anew in another folder, or drop the flag."
        raise UserError(message) from error
    kinds = {"format": int, "platform": str, "arch": str, "plan": str, "compilers": dict, "forms": list}
    wrong = [name for name, kind in kinds.items() if not isinstance(body, dict) or not isinstance(body.get(name), kind)]
    if not wrong and any(not isinstance(entry, dict) or "build" not in entry for entry in body["forms"]):
        wrong = ["forms"]
    if wrong:
        lacks = f"{what}: {MANIFEST} lacks {', '.join(wrong)}"
        raise UserError(f"{lacks}. Build the bundle anew in another folder, or drop the flag.")
    found: dict[str, Any] = body
    return found


def _unfit(body: Mapping[str, Any], profile: DeviceProfile, builds: set[str]) -> str:
    """Why a bundle is not for this device and these compilers, or nothing."""
    if body["format"] != FORMAT:
        return f"its format is {body['format']}, this version reads {FORMAT}"
    if (body["platform"], body["arch"]) != (profile.platform, profile.arch):
        return f"it was made for {body['platform']}:{body['arch']}, the device is {profile.platform}:{profile.arch}"
    if not body["forms"] or not body["compilers"]:
        return "it holds no forms"
    if strange := sorted(set(body["compilers"]) - builds):
        return f"no kernel of this platform is made by {strange[0]}"
    for build, made in sorted(body["compilers"].items()):
        if (here := _compiler(build)) != made:
            return f"it was made by {made}, here is {here}"
    return ""
