"""From command line, environment, file and Python arguments to one set of values, each with its origin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.config.assignments import Assignments
from engine.config.command_line import read
from engine.config.environment import read_environment
from engine.config.fields import BY_KEY
from engine.errors import UserError
from engine.plan_values import Given


@dataclass(frozen=True, slots=True)
class Collected:
    """``given``: canonical key → value and origin, for what somebody asked for and nothing else. ``warnings``: lines
    for the log. ``switches``: flags of the subcommand itself that were given, with their values."""

    given: dict[str, Given]
    warnings: tuple[str, ...] = ()
    switches: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def collect(
    words: Sequence[str], environ: Mapping[str, str], command: str = "serve", switches: Sequence[str] = ()
) -> Collected:
    """All sources of a subcommand: command line over environment over the file that ``--config`` names. The order of
    ``words`` never matters, save that the last of several equal flags counts. Raises ``UserError`` for whatever is
    wrong in any source, overruled or not."""
    line = read(words, command, switches)
    environment, warnings = read_environment(environ)
    sources = [environment, line.values]
    if line.config is not None:
        from engine.config.file import read_file

        sources.insert(0, read_file(line.config))
    said = [text for source in sources for text in source.warnings]
    return Collected(merge(*sources), (*warnings, *dict.fromkeys(said)), line.switches)


def from_keywords(**keywords: Any) -> dict[str, Given]:
    """What a Python caller passes: canonical keys' last parts, names of flags, or sections with a mapping, as in
    ``LLM(model=…, optimization_level=2, compilation_config={"mode": 0})``. ``None`` is no value; what is accepted
    without effect is logged. Raises ``UserError``, for a setting of the server too, since no server is started."""
    values = Assignments("argument")
    for name, value in keywords.items():
        values.assign_path(name, value, name)
    given = merge(values)
    if values.warnings:
        from logging import getLogger

        for text in values.warnings:
            getLogger("engine").warning("%s", text)
    for key in given:
        if key.startswith("server."):
            name = key.rpartition(".")[2]
            raise UserError(f"{name}: a setting of the server, and none is started here; leave it out, or run "
                            f"`engine serve {BY_KEY[key].flag}`")
    return given


def from_environment(environ: Mapping[str, str]) -> dict[str, Given]:
    """The environment alone, for a Python caller to lay its arguments over: ``from_environment(e) | from_keywords(…)``
    """
    return merge(read_environment(environ)[0])


def merge(*sources: Assignments) -> dict[str, Given]:
    """Later sources win, setting by setting; a list's ``+=`` and a mapping's entries add to what lies below."""
    result: dict[str, Given] = {}
    for source in sources:
        result = source.given(result)
    return result


def value_of(given: Mapping[str, Given], key: str) -> Any:
    """What was asked for, else the field's default, which is ``None`` where the plan decides."""
    return given[key].value if key in given else BY_KEY[key].default
