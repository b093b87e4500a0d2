"""How many requests one key may start."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, MutableSequence

from starlette.types import ASGIApp, Receive, Scope, Send

from engine.server.errors import error_response
from engine.server.metric_names import Refusal

SECONDS = 60.0


class RateLimit:
    """``limit`` requests per minute for each caller, all at once if it likes. ``due``: when the requests that each has
    made are paid off, by the monotonic clock; several processes may share it. Two of them that count in the same
    microsecond may count as one."""

    def __init__(self, limit: int, due: MutableSequence[float], clock: Callable[[], float] = time.monotonic) -> None:
        self.limit, self.due, self.clock = limit, due, clock

    def refused(self, caller: int) -> float:
        """Seconds until the caller may try again; 0 takes the request."""
        now, step = self.clock(), SECONDS / self.limit
        due = max(self.due[caller], now)
        if due + step - now > SECONDS * (1 + 1e-9):
            return due + step - now - SECONDS
        self.due[caller] = due + step
        return 0.0


class RateMiddleware:
    """Applies to what does work: every POST once there is a model (``loaded``). ``scope["caller"]`` says whose it is.
    ``refused``: told of each that came too soon."""

    def __init__(
        self, app: ASGIApp, rate: RateLimit, refused: Callable[[Refusal], None], loaded: Callable[[], bool]
    ) -> None:
        self.app, self.rate, self.refused, self.loaded = app, rate, refused, loaded

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        counts = scope.get("method") == "POST" and self.loaded()
        wait = self.rate.refused(scope.get("caller") or 0) if counts else 0.0
        if not wait:
            await self.app(scope, receive, send)
            return
        self.refused(Refusal.RATE)
        message = (
            f"More than {self.rate.limit} requests in a minute (--max-requests-per-minute); try again in {wait:.0f} s."
        )
        headers = {"Retry-After": str(math.ceil(wait))}
        await error_response(429, message, None, headers)(scope, receive, send)
