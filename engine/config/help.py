"""Help, made from the table of fields. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence

from engine import compat
from engine.config.fields import DEVICE, FIELDS, FUSE, Field
from engine.errors import UserError
from engine.levels import describe
from engine.table import BOLD, CYAN, coloured, lay_out, written

ALL = "all"


def render_help(command: str, topic: str, width: int, color: bool, own: Sequence[tuple[str, str]] = ()) -> str:
    """Flags of ``command`` in groups. ``topic``: ``""`` for the usual ones, ``all`` for every one with its key and
    variable, else part of a group's title, a flag or a key. ``own``: flags of the subcommand itself, with their help.
    Raises ``UserError`` when nothing fits the topic."""
    blocks = []
    groups = dict.fromkeys(field.group for field in FIELDS)
    for group in groups:
        shown = [field for field in FIELDS if field.group == group and _fits(field, topic, command)]
        if shown:
            rows = [(_flags(field), _text(field, full=bool(topic))) for field in shown]
            blocks.append(_block(group, rows, width, color))
        if group == DEVICE and (not topic or topic == ALL or _plain(topic) in ("level", "levels", "o", _plain(DEVICE))):
            blocks.append(render_levels(width, color))
    if not blocks:
        raise UserError(f"--help={topic}: no group, flag or key contains it; the groups are {', '.join(groups)}")
    if not topic or topic == ALL:
        extra = [*own, ("--config FILE", "settings from a YAML file"), ("-h, --help[=TOPIC]", _TOPICS)]
        blocks.append(_block("Other", extra, width, color))
        blocks.append(_precedence(width))
    return "\n\n".join(blocks) + "\n"


def render_levels(width: int, color: bool) -> str:
    """The table of levels."""
    from engine.fusion.catalog import LEVEL_OF

    rows = describe(LEVEL_OF)
    head = {name: name.replace("_", " ") for name in rows[0]} | {"level": "level\nand what for"}
    cells = [[f"{row['level']}\n{row['purpose']}".strip(), *list(row.values())[1:-1]] for row in rows]
    return _block("Levels: what each asks for", [list(head.values())[:-1], *cells], width, color)


_TOPICS = "TOPIC: all, or part of a group's title, a flag or a key"


def _fits(field: Field, topic: str, command: str) -> bool:
    if field.only not in ("", command):
        return False
    if not topic:
        return field.group != FUSE
    words = (field.group, field.key, *field.flags, *(old for old, key in compat.KEYS.items() if key == field.key))
    return topic == ALL or any(_plain(topic) in _plain(word) for word in words)


def _flags(field: Field) -> str:
    names = list(field.flags) or [field.flag]
    if field.kind.switch:
        names = [name.replace("--", "--[no-]", 1) if "." not in name else f"{name}=true|false" for name in names]
        return ", ".join(names)
    return ", ".join(names) + ("=" if "." in names[-1] else " ") + field.kind.metavar


def _text(field: Field, full: bool) -> str:
    default = written(field.default) if field.default is not None else field.unset
    text = f"{field.help} [{default}]"
    if not full or field.only:
        return text
    others = [old for old, key in compat.KEYS.items() if key == field.key]
    names = [f"file: {field.key}", field.environment, *(f"also {old}" for old in others)]
    return text + "\n" + "; ".join(name for name in names if name)


def _precedence(width: int) -> str:
    from textwrap import fill

    return fill(
        "Command line wins over environment, environment over file, file over what the platform, the level and the "
        "default say. The order of flags matters only where one is given twice: the last one counts. In a name - and "
        "_ are equal. Lists take a,b or JSON, and += adds to one. Every fusion is a switch -cc.pass_config.NAME; "
        f"--help={FUSE.lower()} lists them. {compat.OWN_PREFIX}CACHE_ROOT names the folder of models and builds.",
        width,
    )


def _plain(text: str) -> str:
    return text.lower().strip("-").replace("-", "_")


def _block(title: str, rows: Sequence[Sequence[str]], width: int, color: bool) -> str:
    def paint(column: int, text: str) -> str:
        return CYAN if column == 0 else ""

    return "\n".join([coloured(title, BOLD if color else ""), *lay_out(rows, width, paint=paint if color else None)])
