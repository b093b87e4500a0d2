"""What operators are told of preemptions."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from engine.sequence import Sequence

INTERVAL = 10.0  # seconds
WINDOW, SHARE = 200, 0.05
REMEDY = "raise --gpu-memory-utilization or --kv-cache-memory-bytes, or lower --max-num-seqs"

logger = logging.getLogger("engine")


class PreemptionLog:
    """Counts preemptions and warns of them, at most once in ``INTERVAL`` seconds of ``clock``; and once if among the
    last ``WINDOW`` requests that ended more were preempted than ``SHARE`` of so many."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.total = 0
        self._clock = clock
        self._last = float("-inf")
        self._window: deque[bool] = deque(maxlen=WINDOW)
        self._hit = 0
        self._told = False

    def preempted(self, seq: Sequence) -> None:
        self.total += 1
        now = self._clock()
        if now - self._last < INTERVAL:
            return
        self._last = now
        logger.warning(
            "KV cache is full: preempted request %s; its %d tokens will be computed again (recompute mode). "
            "Preemptions so far: %d. This costs latency: %s.",
            seq.id,
            len(seq.tokens),
            self.total,
            REMEDY,
        )

    def ended(self, seq: Sequence) -> None:
        """A request has ended, however."""
        if len(self._window) == WINDOW:
            self._hit -= self._window[0]
        self._window.append(seq.preemptions > 0)
        self._hit += self._window[-1]
        if self._told or self._hit <= SHARE * WINDOW:
            return
        self._told = True
        logger.warning(
            "Of the last %d requests %d were preempted (%.0f %%) and in part computed again. The KV cache is too small "
            "for what runs at once: %s.",
            len(self._window),
            self._hit,
            100 * self._hit / len(self._window),
            REMEDY,
        )
