"""With an API key set, every path answers 401 without it, known or not, except the few below."""

from __future__ import annotations

import hmac

from starlette.types import ASGIApp, Receive, Scope, Send

from engine.server.errors import error_response
from engine.server.site import PATHS

OPEN_PATHS = frozenset({"/health", "/ready", "/metrics", *PATHS})


class ApiKeyMiddleware:
    """Compares ``Authorization: Bearer KEY`` in constant time, before anything of the body is read. ``scope["caller"]``
    is the place of the key that matches."""

    def __init__(self, app: ASGIApp, api_keys: list[str]) -> None:
        self.app = app
        self.keys = [key.encode() for key in api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = self._caller(scope) if scope["type"] != "lifespan" else None
        if caller is not None or scope["type"] == "lifespan" or self._open(scope):
            await self.app({**scope, "caller": caller}, receive, send)
            return
        message = "A valid API key is needed: send the header 'Authorization: Bearer KEY'."
        response = error_response(401, message, None, {"WWW-Authenticate": "Bearer"})
        await response(scope, receive, send)

    def _open(self, scope: Scope) -> bool:
        path: str = scope["path"]
        return path in OPEN_PATHS or path.removeprefix(scope.get("root_path") or "") in OPEN_PATHS

    def _caller(self, scope: Scope) -> int | None:
        for name, value in scope["headers"]:
            if name == b"authorization":
                scheme, _, given = value.partition(b" ")
                matches = [hmac.compare_digest(given.strip(), key) for key in self.keys]
                return matches.index(True) if scheme.lower() == b"bearer" and any(matches) else None
        return None
