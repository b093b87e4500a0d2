"""A probe's ladder: rungs climbed until one finds something. One that hangs or breaks is a line of evidence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import monotonic

from platforms.accelerator import Rung
from platforms.bounded import Bounded, NoAnswer
from platforms.machine import Machine, printable

SECONDS = 1.7
"""For all rungs together: a probe may take 2 s."""
LIBRARY_SECONDS = 1.2
"""For a management library. It can need longer where nobody keeps the driver awake; files then have to do."""

Step = tuple[str, Callable[[Machine], Rung]]


def climb(machine: Machine, steps: Sequence[Step]) -> Rung:
    """What the first rung found that has a device or a problem to report, with the evidence of all up to it."""
    end = monotonic() + SECONDS
    evidence: list[str] = []
    for name, step in steps:
        found = _in_time(name, step, machine, min(LIBRARY_SECONDS, end - monotonic()))
        evidence += found.evidence
        if found.devices or found.problems:
            return Rung(found.devices, tuple(evidence), found.problems)
    return Rung((), tuple(evidence), ())


def asked_of_the_container(environ: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Evidence: a container's start-up, and nobody else, reads ``name``, and gives no device for these words."""
    text = environ.get(name)
    if text is None or text.strip().lower() not in ("", "none", "void"):
        return ()
    return (f"{name}={printable(text)}: whoever started this container asked for no device",)


def _in_time(name: str, step: Callable[[Machine], Rung], machine: Machine, seconds: float) -> Rung:
    try:
        return Bounded(lambda: step(machine)).result(seconds)
    except NoAnswer:
        return Rung(evidence=(f"{name}: no answer in {max(seconds, 0):.1f} s",))
    except (Exception, SystemExit) as error:
        return Rung(evidence=(f"{name}: {type(error).__name__}: {printable(str(error), 200)}",))
