"""One question to a plugin, and its answer. Standard library only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

CHAPTERS = ("contract", "kernels", "fusions", "graphs", "memory", "engine", "plans")
NO_DEVICE = "no device here"
"""How the detail of a check begins that needs the device and has none."""

State = Literal["passed", "failed", "not supported"]


class Wrong(Exception):
    """Raised by the body of a check: the plugin breaks a rule, and the message says which and how."""


class NotSupported(Exception):
    """Raised by the body of a check: there is nothing to check here, and the message says why."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """``detail``: what was compared, what is wrong, or why there was nothing to check."""

    chapter: str
    check: str
    state: State
    detail: str


@dataclass(frozen=True, slots=True)
class Check:
    """``run`` never raises for what a plugin does wrong. ``name`` is unique within its chapter."""

    chapter: str
    name: str
    run: Callable[[], Outcome]

    def __str__(self) -> str:
        return f"{self.chapter}/{self.name}"


def check(chapter: str, name: str, body: Callable[[], str]) -> Check:
    """``body`` returns the detail of a pass; what it raises is the answer otherwise."""

    def run() -> Outcome:
        # The body calls strangers' code, which may raise anything; what it raised is what there is to say.
        try:
            return Outcome(chapter, name, "passed", body())
        except NotSupported as answer:
            return Outcome(chapter, name, "not supported", str(answer))
        except Wrong as answer:
            return Outcome(chapter, name, "failed", str(answer))
        except (Exception, SystemExit) as error:
            return Outcome(chapter, name, "failed", said(error))

    return Check(chapter, name, run)


def said(error: BaseException) -> str:
    """Type and first line of what was raised, and where in the plugin or the kit."""
    where, frame = "", error.__traceback__
    while frame is not None:
        where = f" ({frame.tb_frame.f_code.co_filename}:{frame.tb_lineno})"
        frame = frame.tb_next
    lines = str(error).splitlines()
    return f"{type(error).__name__}{': ' + lines[0] if lines else ''}{where}"
