"""Options of subcommands that are no settings of the engine: one row gives spelling, help and default. Standard library
only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from engine.config.command_line import is_flag
from engine.config.values import Kind, boolean, written_value
from engine.errors import UserError


@dataclass(frozen=True, slots=True)
class Option:
    """``flag``: as typed, with ``--``; ``short``: another spelling. ``unset``: what happens without a value, where no
    ``default`` says it. ``many``: every word up to the next flag is a value of it."""

    flag: str
    kind: Kind
    help: str
    default: Any = None
    unset: str = ""
    short: str = ""
    many: bool = False

    @property
    def name(self) -> str:
        return self.flag[2:].replace("-", "_")

    @property
    def usage(self) -> str:
        """As help and ``engine.config.collect`` take it: ``--seed N``, or ``--profile`` for a switch."""
        return f"{self.flag} {self.kind.metavar}".rstrip()


def read_options(
    words: Sequence[str], options: Sequence[Option], command: str, positional: Option | None = None
) -> Any:
    """Values by name, defaults included; - and _ are equal in names, and the last of equal flags counts. ``command``:
    what messages call it. ``positional``: the option that a word without a flag is the value of. Raises ``UserError``
    naming the word."""
    values = _defaults((*options, positional) if positional else options)
    known = {spelling: option for option in options for spelling in (option.flag, option.short) if spelling}
    queue = list(words)
    while queue:
        word = queue.pop(0)
        spelling, equals, raw = word.partition("=")
        name = "--" + spelling[2:].replace("_", "-") if spelling.startswith("--") else spelling
        if not is_flag(word):
            if positional is None or getattr(values, positional.name) != positional.default:
                raise UserError(f"{command}: unexpected word {word!r}; see {command} --help")
            setattr(values, positional.name, _parsed(positional, word, positional.flag))
        elif name.startswith("--no-") and (option := known.get(f"--{name[5:]}")) and option.kind.switch and not equals:
            setattr(values, option.name, False)
        elif option := known.get(name):
            given = [raw] if equals else _taken(option, spelling, queue)
            parsed = [_parsed(option, one, spelling) for one in given]
            setattr(values, option.name, tuple(parsed) if option.many else parsed[-1])
        else:
            raise UserError(_unknown(command, spelling, known))
    return values


def chosen(switches: Mapping[str, tuple[str, ...]], options: Sequence[Option]) -> Any:
    """The same of what ``engine.config.collect`` was given as ``switches``: usages of ``options``."""
    values = _defaults(options)
    for option in options:
        if option.flag in switches:
            given = switches[option.flag]
            setattr(values, option.name, _parsed(option, given[0], option.flag) if given else True)
    return values


def usages(options: Sequence[Option]) -> list[str]:
    return [option.usage for option in options]


def plainly(words: Sequence[str], options: Sequence[Option]) -> list[str]:
    """``words`` with the flags of ``options`` in one spelling, for a reader that knows no other."""
    flags = {spelling: option.flag for option in options for spelling in (option.flag, option.short) if spelling}
    found = []
    for word in words:
        spelling, equals, raw = word.partition("=")
        plain = spelling.replace("_", "-")
        found.append(flags[plain] + equals + raw if plain in flags else word)
    return found


def rows_of(options: Sequence[Option]) -> list[tuple[str, str]]:
    """(flags, what they do and what happens without them), for help and documents."""
    return [(_flags(option), f"{option.help}{_otherwise(option)}") for option in options]


def _defaults(options: Sequence[Option]) -> SimpleNamespace:
    """A switch of which nothing is said is off, unless something else decides."""
    off = (row.kind.switch and row.default is None and not row.unset for row in options)
    return SimpleNamespace(**{row.name: row.default if not no else False for row, no in zip(options, off, strict=True)})


def _flags(option: Option) -> str:
    if option.kind.switch and option.default:
        return option.flag.replace("--", "--[no-]", 1)
    more = " ..." if option.many else ""
    return ", ".join(filter(None, (option.short, option.usage + more)))


def _otherwise(option: Option) -> str:
    if option.unset:
        return f" [{option.unset}]"
    if option.default is None or (option.kind.switch and not option.default):
        return ""
    return f" [{'on' if option.default is True else written_value(option.default)}]"


def _taken(option: Option, spelling: str, queue: list[str]) -> list[str]:
    if option.kind.switch:
        return ["true"]
    if not queue or is_flag(queue[0]):
        raise UserError(f"{spelling} needs a value: {option.usage}; found {queue[0] if queue else 'nothing'}")
    taken = [queue.pop(0)]
    while option.many and queue and not is_flag(queue[0]):
        taken.append(queue.pop(0))
    return taken


def _parsed(option: Option, raw: str, spelling: str) -> Any:
    try:
        return boolean(raw) if option.kind.switch else option.kind.parse(raw)
    except ValueError as error:
        raise UserError(f"{spelling} {written_value(raw)}: {error}") from error


def _unknown(command: str, spelling: str, known: Mapping[str, Option]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(spelling, known, n=1)
    return f"{command}: unknown flag {spelling}; " + (f"did you mean {near[0]}?" if near else f"see {command} --help")
