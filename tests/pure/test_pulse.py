"""What a core shows of itself, at given times."""

from __future__ import annotations

import time

import pytest

from engine.pulse import BEAT_SECONDS, SILENT_SECONDS, Pulse


def test_silence_shows_within_five_seconds() -> None:
    assert BEAT_SECONDS + SILENT_SECONDS <= 5
    pulse, now = Pulse(), time.monotonic()
    assert pulse.trouble(30, lambda: now + SILENT_SECONDS - 0.5) is None
    assert "has not run for 5 s" in str(pulse.trouble(30, lambda: now + 5))


@pytest.mark.parametrize("patience", [2.0, 30.0])
def test_a_step_may_take_as_long_as_it_is_given(patience: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.pulse.SILENT_SECONDS", 1000.0)
    pulse, now = Pulse(), time.monotonic()
    pulse.turn()
    assert pulse.trouble(patience, lambda: now + patience - 0.5) is None
    assert "one step" in str(pulse.trouble(patience, lambda: now + patience + 1))
    pulse.turn()
    assert pulse.trouble(patience) is None
    pulse.rest()
    assert pulse.trouble(patience, lambda: now + patience + 1) is None
