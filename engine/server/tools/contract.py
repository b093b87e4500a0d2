"""What the server asks of a format in which models write calls of tools. A new one is a file beside this one and a row
of ``PARSERS``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Text(NamedTuple):
    """A part of the answer that is no call."""

    text: str


class Begin(NamedTuple):
    """A call of ``name`` begins."""

    name: str


class Arguments(NamedTuple):
    """More of the JSON object that is the arguments of the latest call, as the model wrote it."""

    text: str


class End(NamedTuple):
    """The latest call is over. ``raw``: all that was written of it; ``whole``: its arguments are a JSON object."""

    whole: bool
    raw: str


Event = Text | Begin | Arguments | End


class Reader(Protocol):
    """Of one answer. However the text is cut, the joined events say the same, a call that is not whole being worth its
    ``raw`` text: where it shows before anything was told of it, that is what is told."""

    def feed(self, text: str) -> list[Event]:
        """What can be told now that ``text`` has come. What may become a call is held back until it is one, or not."""

    def finish(self) -> list[Event]:
        """The answer is over: the rest."""


class ToolParser(Protocol):
    """``markers``: names of rules, each with a text that may be a special token. These texts reach the reader even
    where special tokens are left out of answers."""

    @property
    def name(self) -> str: ...

    @property
    def markers(self) -> tuple[tuple[str, str], ...]: ...

    def fits(self, template: str) -> bool:
        """Whether a chat template teaches this format."""

    def reader(self) -> Reader: ...

    def grammar(self, tools: Sequence[str], several: bool, otherwise: str | None) -> str:
        """In Lark, from ``start``: a call of one of ``tools``, or with ``several`` any number of calls from one on.

        Rules that it may use: ``schema_0``, … are the arguments of the tools; for a marker named ``x``, ``x`` is it,
        ``to_x`` any text up to and with it, ``NO_X`` any text without it. ``otherwise``: a rule for answers without a
        call, ``"text"`` for any text, beside calls too, or ``None`` where there must be one.
        """
