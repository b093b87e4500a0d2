"""Settings in environment variables, which the caller passes as a mapping. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from engine.compat import FOREIGN_PREFIX, OWN_PREFIX, VARIABLES, VARIABLES_NOT_TAKEN
from engine.config.assignments import Assignments
from engine.config.fields import FIELDS, OTHER_VARIABLES
from engine.config.names import advice

_SERVICE = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)")
"""What Kubernetes injects for every service in the namespace, one named like us included."""


def read_environment(environ: Mapping[str, str]) -> tuple[Assignments, list[str]]:
    """The values, and warnings. An empty variable is an unset one. Raises ``UserError`` naming the variable."""
    values, warnings = Assignments("environment"), []
    for field in FIELDS:
        found = {name: environ[name].strip() for name in _spellings(field.environment) if name in environ}
        texts = {name: text for name, text in found.items() if text or field.kind.guards}
        if field.key == "server.port" and texts and next(iter(texts.values())).startswith("tcp://"):
            warnings.append(f"{next(iter(texts))} is ignored: Kubernetes set it for a service of that name")
            continue
        if len(set(texts.values())) > 1:
            own, *others = texts
            warnings.append(f"{own} wins over {', '.join(others)}, which says something else")
        for name, text in list(texts.items())[:1]:
            values.assign(field, text, f"{name}:")
    return values, warnings


def unknown_variables(environ: Mapping[str, str], known: Collection[str] = ()) -> list[str]:
    """One warning per variable that looks like ours and that nothing reads. ``known``: full names that platforms
    read."""
    names = {name for field in FIELDS for name in _spellings(field.environment)} | set(known)
    names |= {prefix + name for prefix in (OWN_PREFIX, FOREIGN_PREFIX) for name in OTHER_VARIABLES}
    warnings = []
    for name in sorted(environ):
        if not name.startswith((OWN_PREFIX, FOREIGN_PREFIX)) or name in names or _SERVICE.fullmatch(name):
            continue
        if name in VARIABLES_NOT_TAKEN:
            warnings.append(f"{name} is not read: {VARIABLES_NOT_TAKEN[name]}")
            continue
        if said := advice(name.removeprefix(FOREIGN_PREFIX).removeprefix(OWN_PREFIX).lower()):
            warnings.append(f"{name} is not read: {said}")
            continue
        from difflib import get_close_matches

        near = get_close_matches(name, sorted(names), n=1, cutoff=0.85)
        warnings.append(f"{name} is not read by anything here" + (f"; did you mean {near[0]}?" if near else ""))
    return warnings


def _spellings(own: str) -> tuple[str, ...]:
    """Our name of a variable and the others that stand for it, ours first."""
    if not own:
        return ()
    foreign = FOREIGN_PREFIX + own.removeprefix(OWN_PREFIX)
    taken = () if foreign in VARIABLES_NOT_TAKEN else (foreign,)
    return (own, *taken, *(name for name, meant in VARIABLES.items() if meant == own))
