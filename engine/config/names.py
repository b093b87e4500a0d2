"""From a written name to a field or a section; ``-`` and ``_`` are equal, dots nest. Standard library only."""

from __future__ import annotations

from engine import compat
from engine.config.fields import BY_KEY, FIELDS, FUSE, Field
from engine.config.kinds import SWITCH

SECTIONS: frozenset[str] = frozenset(
    ".".join(parts[:depth])
    for parts in (field.key.split(".") for field in FIELDS)
    for depth in range(1, len(parts))
)
"""Names under which a mapping may stand: ``compilation``, ``compilation.pass_config``, ``server``…"""

FUSION = "compilation.pass_config."
SHORT: dict[str, Field] = {
    flag[1:]: field for field in FIELDS for flag in field.flags if flag.startswith("-") and not flag.startswith("--")
}
LONG: dict[str, Field] = (
    {flag[2:].replace("-", "_"): field for field in FIELDS for flag in field.flags if flag.startswith("--")}
    | BY_KEY
    | {name: BY_KEY[key] for name, key in compat.KEYS.items()}
)


def plain(name: str) -> str:
    """One spelling of the parts of a name: ``compilation-config.graph-mode`` → ``compilation.graph_mode``."""
    head, dot, rest = name.replace("-", "_").partition(".")
    return compat.SECTIONS.get(head, head) + dot + rest


def advice(name: str) -> str:
    """What is said of a plain name that users know and that is no setting here, or nothing."""
    said = (f"{word}; {names[name]}" for word, names in compat.NOT_TAKEN.items() if name in names)
    return next(said, f"has no effect here: {compat.NO_EFFECT[name][1]}" if name in compat.NO_EFFECT else "")


def field_named(name: str, command: str = "") -> Field | None:
    """The field behind a plain name, if ``command`` may use it; ``""`` stands for every source but a command line. A
    platform may bring fusion rules of its own, so every name is a switch there and the plan knows which exist."""
    field = LONG.get(name)
    if not field and name.startswith(FUSION) and name.removeprefix(FUSION).isidentifier() and not advice(name):
        return Field(name, SWITCH, FUSE, "a rule of the platform's own")
    return field if field and field.only in ("", command) else None


def unknown(written: str, name: str, prefix: str = "") -> str:
    """The message about a name nobody knows, as ``written``: what is said of it, the nearest one, or the names of its
    section. ``name``: the plain one. ``prefix``: what stands before a name in this source, such as ``--``."""
    if said := advice(name):
        return f"{written}: {said}"
    from difflib import get_close_matches

    section, dot, last = name.rpartition(".")
    if dot and section in SECTIONS:
        siblings = [key.rpartition(".")[2] for key in LONG if key.rpartition(".")[0] == section]
        near = get_close_matches(last, siblings, n=1, cutoff=0.6)
        head = written[: len(written) - len(last)]
        known = ", ".join(key.rpartition(".")[2] for key in BY_KEY if key.rpartition(".")[0] == section)
        return f"unknown setting {written}; " + (f"did you mean {head}{near[0]}?" if near else f"there are {known}")
    near = get_close_matches(name, [one for one in LONG if "." not in one], n=1, cutoff=0.7)
    nearest = near[0].replace("_", "-") if prefix and near else "".join(near)
    what = "flag" if prefix else "setting"
    return f"unknown {what} {written}; " + (f"did you mean {prefix}{nearest}?" if near else "see --help=all")
