"""A minute and a half of what ``make soak`` does for twenty."""

from __future__ import annotations

import time

import pytest

from tests.soak.run import soak

SECONDS = 90


@pytest.mark.timeout(1200)
def test_a_saturated_server_keeps_its_word_and_leaks_nothing(capsys):
    seed = int(time.time())
    # Memory of processes that have served for a minute still settles: twenty show whether it grows.
    report = soak(SECONDS, seed, growth=0.05)
    with capsys.disabled():
        print(f"\nseed {seed}\n{report.table()}")
    assert not report.problems, "\n".join(report.problems)
