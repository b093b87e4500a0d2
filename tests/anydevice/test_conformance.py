"""The active platform passes its own kit, every chapter of it."""

from engine.conformance import CHAPTERS, checks
from engine.conformance.pytest import conformance
from platforms.discovery import select

NAME = select("auto").plugin.name

test_conformance = conformance(NAME)


def test_every_chapter_asks_something_and_every_name_is_unique():
    found = checks(NAME)
    assert {row.chapter for row in found} == set(CHAPTERS)
    names = [str(row) for row in found]
    assert len(set(names)) == len(names)
    assert not any(set(name) & set(" \t\n") for name in names)
