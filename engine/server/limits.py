"""What clients may take of a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.config import value_of
from engine.errors import RequestError
from engine.sampling_params import CAPS, Caps

if TYPE_CHECKING:
    from engine.plan_values import Given


@dataclass(frozen=True, slots=True)
class Limits:
    """``None``: no limit. ``body_bytes``: of a request. ``prompt_tokens``: of one prompt. ``queued_choices``,
    ``queued_tokens``: while so many wait, no further request is taken. ``idle_seconds``: between two pieces of what a
    client sends or reads. ``request_seconds``: of one request in all."""

    caps: Caps = CAPS
    body_bytes: int = 32 * 2**20
    prompt_tokens: int | None = None
    queued_choices: int | None = None
    queued_tokens: int | None = None
    idle_seconds: float = 60.0
    request_seconds: float | None = None

    def check_prompt(self, tokens: int, name: str) -> None:
        """Raises ``RequestError`` for a prompt of more ``tokens`` than are allowed; ``name``: the field it came in."""
        if self.prompt_tokens is not None and tokens > self.prompt_tokens:
            raise RequestError(
                f"{name} has {tokens} tokens; this server takes at most {self.prompt_tokens} (--max-prompt-length).",
                name,
            )


def callers(given: Mapping[str, Given]) -> int:
    """How many API keys there are; without any, everybody is one caller."""
    return len(value_of(given, "server.api_key") or ("",))


def limits_of(given: Mapping[str, Given]) -> Limits:
    def of(name: str) -> Any:
        return value_of(given, f"server.{name}")

    return Limits(
        caps=Caps(of("max_n"), value_of(given, "model.max_logprobs"), of("max_schema_size")),
        body_bytes=of("max_body_size"),
        prompt_tokens=of("max_prompt_length"),
        queued_choices=of("max_num_queued_reqs"),
        queued_tokens=of("max_num_queued_tokens"),
        idle_seconds=of("idle_timeout"),
        request_seconds=of("request_timeout"),
    )
