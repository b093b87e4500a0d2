"""Whether a core still runs, told through memory that it shares with its front ends: asking costs nothing."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable

BEAT_SECONDS = 1.0
SILENT_SECONDS = 4.0
_BEAT, _STEP = 0, 1


class Pulse:
    """Made by the front end, handed to the core's process as it starts. A thread of the core writes the time, whatever
    its loop computes; the loop writes when it began its present turn. Times are of the monotonic clock, which all
    processes of a machine share."""

    def __init__(self) -> None:
        self._times = multiprocessing.get_context("spawn").RawArray("d", [time.monotonic(), 0.0])

    def start(self) -> None:
        """Beat from now on, in the core."""
        threading.Thread(target=self._beat, name="pulse", daemon=True).start()

    def turn(self) -> None:
        """The loop begins to work: another turn, or the first after a rest."""
        self._times[_STEP] = time.monotonic()

    def rest(self) -> None:
        """The loop waits for work."""
        self._times[_STEP] = 0.0

    def trouble(self, patience: float, clock: Callable[[], float] = time.monotonic) -> str | None:
        """Why the core is not fit to serve, if so. ``patience``: seconds that one turn may take."""
        now, begun = clock(), self._times[_STEP]
        if now - self._times[_BEAT] > SILENT_SECONDS:
            return f"The engine core has not run for {now - self._times[_BEAT]:.0f} s."
        if begun and now - begun > patience:
            return f"The engine core has been busy with one step for {now - begun:.0f} s."
        return None

    def _beat(self) -> None:
        while True:
            self._times[_BEAT] = time.monotonic()
            time.sleep(BEAT_SECONDS)
