"""The exceptions a user can see."""

from __future__ import annotations


class UserError(Exception):
    """Something asked for cannot be done; the CLI prints the message and exits with code 2.

    The message says what was asked, what was found, and what to do.
    """


class RequestError(Exception):
    """One request is invalid; the server answers 400 (or ``status``) with an OpenAI error object.

    ``param`` names the offending field, as in the request body, or is ``None``. ``retry_after``: seconds after which
    the same request may be served.
    """

    def __init__(
        self, message: str, param: str | None = None, status: int = 400, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.message, self.param, self.status, self.retry_after = message, param, status, retry_after


class EngineDeadError(Exception):
    """The engine core has ended; in-flight requests cannot be answered."""
