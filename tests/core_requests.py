"""Requests of a core that a test steps by hand."""

from __future__ import annotations

from engine.batch import Output, Request
from engine.core import EngineCore
from engine.sampling_params import SamplingParams


def request(name: str, prompt: list[int], count: int = 6, **params: object) -> Request:
    return Request(name, prompt, SamplingParams(**{"temperature": 0, "max_tokens": count, **params}), 0.0)


def finish(core: EngineCore) -> dict[str, tuple[list[int], Output]]:
    """Tokens and last output of every request, by id."""
    tokens: dict[str, list[int]] = {}
    last: dict[str, Output] = {}
    while core.has_unfinished():
        for output in core.step():
            tokens.setdefault(output.request_id, []).extend(output.tokens)
            last[output.request_id] = output
    return {name: (tokens[name], last[name]) for name in tokens}


def prompt(seed: int, length: int) -> list[int]:
    return [3 + (seed * 31 + at * 7) % 70 for at in range(length)]
