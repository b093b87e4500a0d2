"""Chapter contract: what a descriptor may import, say and touch, on machines nobody planned for."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import combinations, product
from typing import TYPE_CHECKING, Any

from engine.conformance import hostile, sources
from engine.conformance.check import NotSupported, Wrong
from engine.conformance.models import sample_facts, sample_models
from engine.conformance.planning import plan_of
from engine.conformance.pure import odd_facts, steady, verdict
from engine.table import counted
from platforms.contract import API_VERSION, DeviceError, DeviceProfile, Facts, Kernel, Setting

if TYPE_CHECKING:
    from engine.conformance.subject import Subject

HEAVY = ("engine", "numpy", "torch")
ABSENT = 4096
"""The index of a device that is nowhere."""


def checks(subject: Subject) -> Iterator[tuple[str, Callable[[], str]]]:
    """Name and body of each check."""
    yield "identity", partial(_identity, subject)
    yield "imports", partial(_imports, subject)
    yield "engine-internals", partial(_internals, subject)
    here = dict(os.environ)
    yield "probe/here", lambda: hostile.judge(hostile.ask(subject.source))
    yield "probe/no-driver", partial(_no_driver, subject)
    for name, environ in {
        "empty-environment": {},
        "no-home": {key: value for key, value in here.items() if key not in ("HOME", "USER", "XDG_CACHE_HOME")},
        "no-tools": {**here, "PATH": ""},
        "10000-variables": {**here, **{f"UNRELATED_{number}": "x" * 1000 for number in range(10_000)}},
    }.items():
        yield f"probe/{name}", partial(_probe, subject, environ)
    yield "probe/hanging-tools", partial(_hanging, subject, here)
    for name, value in hostile.VALUES.items():
        yield f"probe/variables-{name}", partial(_variables, subject, here, value)
    yield "profiles", partial(_profiles, subject)
    yield "targets", partial(_targets, subject)
    yield "aliases", partial(_aliases, subject)
    yield "settings", partial(_settings, subject)
    yield "rows", partial(_rows, subject)
    yield "ties", partial(_ties, subject)
    yield "open-refuses", partial(_open_refuses, subject)


def _identity(subject: Subject) -> str:
    plugin = subject.plugin
    if not re.fullmatch(r"[a-z][a-z0-9_]*", plugin.name):
        raise Wrong(f"name is {plugin.name!r}; --platform and file names need lower-case letters, digits and _")
    if plugin.name == "auto":
        raise Wrong("name is auto, which --platform keeps for the automatic choice")
    if type(plugin.api) is not int or plugin.api != API_VERSION:
        raise Wrong(f"api is {plugin.api!r}, this is {API_VERSION}")
    return f"{plugin.name}, {plugin.kind}, contract version {plugin.api}"


def _own(subject: Subject) -> tuple[str, ...]:
    return sources.packages(subject.source, subject.rows)


def _imports(subject: Subject) -> str:
    answer = hostile.ask(subject.source, tables=True)
    if "error" in answer:
        raise Wrong(f"in a fresh process it raised {answer['error']}")
    names = answer["asked"]
    if loaded := sources.foreign(names, _own(subject)):
        tops = sorted({name.partition(".")[0] for name in loaded})
        raise Wrong(
            f"importing the descriptor and asking for its tables loaded {', '.join(tops)}; it may load the standard "
            "library, platforms.contract and its own package"
        )
    return f"{len(names)} modules, all of the standard library, the contract and its own"


def _internals(subject: Subject) -> str:
    found = list(sources.files(_own(subject)))
    for file in found:
        if wrong := [name for name in sources.imported(file) if name.partition(".")[0] == "engine"]:
            raise Wrong(f"{file} imports {', '.join(sorted(wrong))}: a plugin knows platforms.contract alone")
    return counted(len(found), "file")


def _probe(subject: Subject, environ: Mapping[str, str]) -> str:
    return hostile.judge(hostile.ask(subject.source, environ))


def _words(subject: Subject) -> set[str]:
    return sources.words(sources.files(_own(subject)))


def _hanging(subject: Subject, environ: Mapping[str, str]) -> str:
    if os.name != "posix":
        raise NotSupported("this system runs no shell scripts")
    with hostile.hanging_tools(_words(subject)) as folder:
        return _probe(subject, {**environ, "PATH": folder})


def _variables(subject: Subject, environ: Mapping[str, str], value: str) -> str:
    names = hostile.variables(_words(subject), subject.plugin.aliases())
    said = _probe(subject, {**environ, **dict.fromkeys(names, value)})
    return f"{said}, with {len(names)} variables set"


def _no_driver(subject: Subject) -> str:
    answer = hostile.ask(subject.source)
    if loaded := {name.partition(".")[0] for name in answer["probed"]} & set(HEAVY):
        raise Wrong(f"probe() loaded {', '.join(sorted(loaded))}; only open() may")
    if answer["devices"]:
        raise Wrong(f"probe() leaves {', '.join(answer['devices'])} open; only open() may start a driver")
    return "no heavy library loaded, no device file left open"


def checked_profile(where: str, profile: DeviceProfile, platform: str, origin: str) -> None:
    """Raises ``Wrong`` where a profile is incomplete or does not survive JSON."""
    import json

    if DeviceProfile.from_json(json.loads(json.dumps(profile.to_json()))) != profile:
        raise Wrong(f"{where} does not survive a round trip through JSON")
    if (profile.platform, profile.origin) != (platform, origin):
        raise Wrong(f"{where} says {profile.platform}, {profile.origin}; it must say {platform}, {origin}")
    empty = [name for name in ("arch", "family", "product") if not getattr(profile, name)]
    if empty or not profile.evidence:
        raise Wrong(f"{where} has no {' and no '.join(empty or ['evidence'])}")


def _profiles(subject: Subject) -> str:
    """Without a device there is no profile to look at."""
    subject.need_device()
    for at, profile in enumerate(subject.devices):
        checked_profile(f"the probe's device {at}", profile, subject.plugin.name, "probed")
    return counted(len(subject.devices), "device")


def _targets(subject: Subject) -> str:
    if not subject.targets:
        raise NotSupported("it describes no target, so nobody can plan for it elsewhere")
    for name, profile in subject.targets.items():
        if not re.fullmatch(r"[\w.+-]+", name):
            raise Wrong(f"target {name!r} cannot be written as --platform {subject.plugin.name}:TARGET")
        checked_profile(f"target {name}", profile, subject.plugin.name, "described")
        if profile.memory_bytes <= 0:
            raise Wrong(f"target {name} has {profile.memory_bytes} bytes of memory")
    return ", ".join(subject.targets)


def _aliases(subject: Subject) -> str:
    known = {name for facts in sample_facts().values() for name in facts}
    found = subject.plugin.aliases()
    for variable, name in found.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable) or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            raise Wrong(f"alias {variable!r} → {name!r}: a variable's name and a lower-case fact are needed")
        if name in known:
            raise Wrong(f"alias {variable} → {name}: that fact is the engine's own")
    return f"{len(found)} aliases"


def _settings(subject: Subject) -> str:
    """Pure, with reasons, of keys that the planner reads and of values that the key may have."""
    from engine.config.fields import BY_KEY

    count, odd = 0, set[str]()
    for name, profile in subject.profiles.items():
        for label, facts in odd_facts(subject).items():
            for level in range(4):
                where = f"settings of {name} at -O{level} with {label}"
                rows: Any = steady(where, partial(subject.plugin.settings, profile, facts, level))
                for row in rows:
                    if not isinstance(row, Setting) or not row.reason:
                        raise Wrong(f"{where}: {row!r} is no Setting with a reason")
                    if row.key not in BY_KEY:
                        odd.add(row.key)
                    else:
                        _fits(where, BY_KEY[row.key].kind, row)
                count += len(rows)
    for name in subject.profiles if odd else ():
        for warning in plan_of(subject, name, next(iter(sample_models())), 2).warnings:
            if unread := [key for key in odd if key in warning and "not used" in warning]:
                raise Wrong(f"settings of {name}: the engine has no setting {unread[0]!r}")
    return f"{count} settings, all known and with reasons"


def _fits(where: str, kind: Any, row: Setting) -> None:
    try:
        kind.parse(row.value)
    except (TypeError, ValueError) as error:
        raise Wrong(f"{where}: {row.key} = {row.value!r}: {error}") from error


def _rows(subject: Subject) -> str:
    seen: set[tuple[str, str]] = set()
    for row in subject.rows:
        if not isinstance(row, Kernel):
            raise Wrong(f"kernels() holds {row!r}, no Kernel")
        if row.op not in subject.ops:
            raise Wrong(f"row {row.op}/{row.name}: there is no such op")
        if (row.op, row.name) in seen:
            raise Wrong(f"row {row.op}/{row.name} is there twice")
        seen.add((row.op, row.name))
    return counted(len(seen), "row")


def _ties(subject: Subject) -> str:
    """Rows of one priority that both say yes cannot be planned with."""
    from engine.conformance.calls import calls_of

    count = 0
    pairs = [(a, b) for a, b in combinations(subject.rows, 2) if (a.op, a.priority) == (b.op, b.priority)]

    def takes(row: Kernel, profile: DeviceProfile, facts: Facts) -> bool:
        return bool(verdict(row.needs, profile, facts) and verdict(row.accepts, profile, facts))

    for one, other in pairs:
        calls = calls_of(subject.ops[one.op])
        for call, (name, profile), (model, known) in product(calls, subject.profiles.items(), sample_facts().items()):
            facts = {**known, **call.facts}
            count += 1
            if takes(one, profile, facts) and takes(other, profile, facts):
                raise Wrong(
                    f"{one.op}: rows {one.name} and {other.name} share priority {one.priority}, and both take {call} "
                    f"on {name} for {model}"
                )
    return f"{len(pairs)} pairs of rows with equal priority, {count} calls asked about"


def _open_refuses(subject: Subject) -> str:
    try:
        subject.plugin.open(ABSENT).close()
    except DeviceError as error:
        if not str(error):
            raise Wrong(f"open({ABSENT}) raises a DeviceError without a message") from error
        return f"open({ABSENT}): {str(error).splitlines()[0]}"
    raise Wrong(f"open({ABSENT}) opened a device that is not there")
