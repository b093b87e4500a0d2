"""The page at ``/`` and the files that it is made of. They hold nothing of this server, so they need no key."""

from __future__ import annotations

import functools
import hashlib
from importlib.resources import files

from fastapi import Request
from fastapi.responses import Response

FOLDER, START = "/page/", "index.html"
TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
NAMES = ("api.js", "app.js", "charts.js", "dom.js", "icon.svg", "live.js", "metrics.js", "parts.css", "plan.js",
         "playground.js", "style.css", "tokens.js")  # fmt: skip
PATHS = ("/", *(FOLDER + name for name in NAMES))
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


async def get_page(request: Request) -> Response:
    """One of ``PATHS``; 304 without a body where the browser has it already."""
    path = str(request.scope["route"].path)
    name = START if path == "/" else path.removeprefix(FOLDER)
    body, tag = _read(name)
    headers = {**HEADERS, "ETag": tag}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type=TYPES[name.rpartition(".")[2]])


@functools.cache
def _read(name: str) -> tuple[bytes, str]:
    body = files("engine.server").joinpath("page", name).read_bytes()
    return body, f'"{hashlib.sha256(body).hexdigest()[:16]}"'
