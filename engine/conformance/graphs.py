"""Chapter graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.conformance.subject import Subject


def checks(subject: Subject) -> Iterator[tuple[str, Callable[[], str]]]:
    """Name and body of each check."""
    yield from ()
