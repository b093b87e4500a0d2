"""The grammar of the command line, in one pass over the words. Standard library only.

A parser of our own instead of argparse, which folds spellings together before anybody can tell them apart, abbreviates
flags, and cannot read ``-O2``, ``-cc.x=y`` or ``key+=value`` without being rewritten around them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine import compat
from engine.config.assignments import Assignments
from engine.config.fields import BY_KEY
from engine.config.kinds import LEVEL_NAMES
from engine.config.names import LONG, SECTIONS, SHORT, field_named, plain, unknown
from engine.config.values import FALSE, TRUE
from engine.errors import UserError

LEVEL = BY_KEY["optimization_level"]
MODEL = BY_KEY["model.name"]


@dataclass(slots=True)
class CommandLine:
    """What the words after a subcommand say. ``switches``: those of the subcommand itself that were given, with the
    words that came with each."""

    values: Assignments
    config: str | None = None
    switches: dict[str, tuple[str, ...]] = field(default_factory=dict)


def read(words: Sequence[str], command: str, switches: Sequence[str] = ()) -> CommandLine:
    """Raises ``UserError`` naming the word it cannot read. ``switches``: flags of the subcommand itself as its help
    writes them, such as ``--json`` or ``--diff A B``; a capital word stands for one value."""
    line = CommandLine(Assignments("command line"))
    own = {usage.split()[0]: usage.split()[1:] for usage in switches}
    queue, model = list(words), ""
    while queue:
        word = queue.pop(0)
        if not is_flag(word):
            if model:
                raise UserError(f"unexpected word {word!r}: the model is {model!r} already")
            model = word
            line.values.assign(MODEL, word, "MODEL")
        elif word.partition("=")[0] in own:
            name = word.partition("=")[0]
            line.switches[name] = _switch(word, own[name], queue)
        elif word.partition("=")[0] == "--config":
            _config(line, word, queue)
        elif word[:2] in ("-O", "-o"):
            _level(line.values, word, queue)
        else:
            _flag(line.values, word, queue, command)
    return line


def _switch(word: str, wanted: Sequence[str], queue: list[str]) -> tuple[str, ...]:
    """A single value may follow ``=``. Several are taken as they come, since a value may look like a flag there."""
    name, given, value = word.partition("=")
    usage = " ".join([name, *wanted])
    if given and len(wanted) != 1:
        raise UserError(f"{word}: write {usage}")
    if given and value:
        return (value,)
    taken = [queue.pop(0) for _ in wanted if queue] if not given else []
    if len(taken) < len(wanted) or (len(wanted) == 1 and is_flag(taken[0])):
        raise UserError(f"{word} needs {usage.partition(' ')[2]}: {usage}; found {' '.join(taken) or 'nothing'}")
    return tuple(taken)


def _config(line: CommandLine, word: str, queue: list[str]) -> None:
    _, given, path = word.partition("=")
    if not given and queue and not is_flag(queue[0]):
        path = queue.pop(0)
    if not path:
        raise UserError("--config needs a file: --config FILE.yaml")
    if line.config not in (None, path):
        raise UserError(f"--config {line.config} and --config {path}: give one file")
    line.config = path


def _level(values: Assignments, word: str, queue: list[str]) -> None:
    levels = f"the levels are {LEVEL_NAMES}, as in -O2"
    if word.startswith("-O."):
        raise UserError(f"{word}: -O takes a level only ({levels}); for one setting write -cc.{word[3:]}")
    if word.startswith("-o"):
        raise UserError(f"unknown flag {word}; did you mean -O? {levels}")
    raw = word[2:].removeprefix("=")
    if word == "-O" and queue and re.fullmatch(r"-?[\d.]+", queue[0]):
        raw = queue.pop(0)
    if raw not in LEVEL_NAMES.split(", "):
        found = f"{word} {raw}" if word == "-O" and raw else word
        raise UserError(f"{found}: {'no such level' if raw else 'a level is missing'}; {levels}")
    values.assign(LEVEL, raw, "-O")


def _flag(values: Assignments, word: str, queue: list[str], command: str) -> None:
    spelling, given, raw = word.partition("=")
    append, spelling = spelling.endswith("+"), spelling.removesuffix("+")
    name = _name(spelling)
    found = field_named(name, command)
    if not found and name.startswith("no_") and (positive := field_named(name[3:], command)) and positive.kind.switch:
        if given:
            raise UserError(f"{word}: takes no value; write --{spelling[5:]}={raw} to give one")
        values.assign(positive, False, f"--{spelling[5:]}")
    elif not found and name not in SECTIONS and name not in compat.NO_EFFECT:
        raise _unknown(spelling, name, command)
    elif given:
        values.assign_path(name, raw, spelling, append=append, command=command)
    elif found.kind.switch if found else not compat.NO_EFFECT.get(name, (True, ""))[0]:
        # A dotted switch may have its value in the next word, as other dotted settings do.
        valued = "." in name and queue and queue[0].lower() in TRUE | FALSE
        if not valued and queue and queue[0].lower() in TRUE | FALSE:
            raise UserError(f"{spelling} {queue[0]}: takes no word behind it; write {spelling}={queue[0]}")
        values.assign_path(name, queue.pop(0) if valued else True, spelling, command=command)
    elif not queue or is_flag(queue[0]):
        what = found.kind.metavar if found else "a JSON object" if name in SECTIONS else "N"
        wanted = f"{spelling} needs a value ({what})"
        hint = f", found {queue[0]}; a value that starts with - is written {spelling}=VALUE" if queue else ""
        raise UserError(wanted + hint)
    else:
        items = [queue.pop(0)]
        while found and found.kind.metavar == "N,..." and queue and queue[0].isdecimal():
            items.append(queue.pop(0))
        values.assign_path(name, ",".join(items), spelling, append=append, command=command)


def _name(spelling: str) -> str:
    if spelling.startswith("--"):
        return plain(spelling[2:])
    head, dot, rest = spelling[1:].replace("-", "_").partition(".")
    if head in compat.SHORT_SECTIONS:
        return compat.SHORT_SECTIONS[head] + dot + rest
    return SHORT[head].key if head in SHORT and not dot else ""


def is_flag(word: str) -> bool:
    """Whether a word begins an option; a negative number does not."""
    return word.startswith("-") and word != "-" and not re.fullmatch(r"-\d+(\.\d+)?", word)


def _unknown(spelling: str, name: str, command: str) -> UserError:
    if (elsewhere := LONG.get(name)) and elsewhere.only not in ("", command):
        return UserError(f"{spelling}: only `engine {elsewhere.only}` takes it")
    return UserError(unknown(spelling, name or spelling.lstrip("-"), "--"))
