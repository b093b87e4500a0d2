"""What a person reads of work that takes a while, where it is counted in something else than bytes."""

from __future__ import annotations

import itertools
import logging

import pytest

from engine.weights.progress import progress


@pytest.mark.parametrize(
    ("unit", "total", "part", "said"),
    [
        ("graphs", 4, 1, ["capturing: 1 of 4 graphs (25 %)", "capturing: 4 graphs in"]),
        ("", 4_000_000_000, 1_000_000_000, ["capturing: 1.00 GB of 4.00 GB (25 %)", "capturing: 4.00 GB in"]),
    ],
)
def test_lines_name_what_is_counted(
    caplog: pytest.LogCaptureFixture, unit: str, total: int, part: int, said: list[str]
) -> None:
    seconds = itertools.count(0, 4)
    with caplog.at_level(logging.INFO), progress("capturing", total, lambda: next(seconds), unit) as advance:
        for _ in range(4):
            advance(part)
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == said[0] and lines[-1].startswith(said[1])
