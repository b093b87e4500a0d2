"""For whom a request is, in a word that the core may know."""

from __future__ import annotations

from contextvars import ContextVar
from hashlib import blake2s

tenant: ContextVar[str | None] = ContextVar("tenant", default=None)
"""Of the request that the running task answers."""


def tenant_of(caller: int | None, user: str | None) -> str | None:
    """``caller``: the place of the API key. Where none is needed, the ``user`` that the request names counts; ``None``
    stands for all that name none. Neither key nor user can be read from it."""
    if caller is not None:
        return f"key {caller}"
    return None if user is None else f"user {blake2s(user.encode(errors='replace'), digest_size=8).hexdigest()}"
