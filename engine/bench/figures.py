"""From outcomes of requests to the figures that users know."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from engine.bench.load import Outcome
from engine.bench.statistics import summary


def figures(
    outcomes: Sequence[Outcome],
    seconds: float,
    metrics: Sequence[str],
    percentiles: Sequence[float],
    objectives: Mapping[str, float],
) -> dict[str, Any]:
    """Fields of a result. ``seconds``: from the first request to the end of the last. ``objectives``: milliseconds by
    metric; ``request_goodput`` counts what met all of them, and is ``None`` without any."""
    done = [one for one in outcomes if not one.error]
    read, made = sum(one.prompt_tokens for one in done), sum(one.output_tokens for one in done)
    good = [one for one in done if _meets(one, objectives)]
    found: dict[str, Any] = {
        "duration": seconds,
        "completed": len(done),
        "failed": len(outcomes) - len(done),
        "total_input_tokens": read,
        "total_output_tokens": made,
        "request_throughput": len(done) / seconds,
        "request_goodput": len(good) / seconds if objectives else None,
        "output_throughput": made / seconds,
        "total_token_throughput": (read + made) / seconds,
        **_busiest(done),
    }
    for name in metrics:
        found |= summary(f"{name}_ms", [1e3 * value for value in values(done, name)], percentiles)
    return found


def values(outcomes: Sequence[Outcome], metric: str) -> list[float]:
    """Seconds of ``ttft``, ``tpot``, ``itl`` or ``e2el``; of ``itl`` every one of every request."""
    if metric == "itl":
        return [value for one in outcomes for value in one.itls]
    if metric == "tpot":
        return [value for one in outcomes if (value := one.tpot) is not None]
    return [one.ttft if metric == "ttft" else one.latency for one in outcomes]


def per_second(outcomes: Sequence[Outcome]) -> tuple[list[int], list[int]]:
    """(events with text, requests under way) in each second from the first request on."""
    if not outcomes:
        return [], []
    begin = min(one.start for one in outcomes)
    size = 1 + math.floor(max(one.start + one.latency for one in outcomes) - begin)
    events, requests = [0] * size, [0] * size
    for one in outcomes:
        moment = one.start - begin
        for second in range(math.floor(moment), math.floor(moment + one.latency) + 1):
            requests[second] += 1
        moment += one.ttft
        for gap in (0.0, *one.itls):
            moment += gap
            events[min(math.floor(moment), size - 1)] += 1
    return events, requests


def details(outcomes: Sequence[Outcome]) -> dict[str, list[Any]]:
    """What each request did, in their order."""
    return {
        "input_lens": [one.prompt_tokens for one in outcomes],
        "output_lens": [one.output_tokens for one in outcomes],
        "ttfts": [one.ttft for one in outcomes],
        "itls": [one.itls for one in outcomes],
        "start_times": [one.start for one in outcomes],
        "generated_texts": [one.text for one in outcomes],
        "errors": [one.error for one in outcomes],
    }


def _busiest(done: Sequence[Outcome]) -> dict[str, float]:
    events, requests = per_second(done)
    return {
        "max_output_tokens_per_s": float(max(events, default=0)),
        "max_concurrent_requests": max(requests, default=0),
    }


def _meets(one: Outcome, objectives: Mapping[str, float]) -> bool:
    found = {"ttft": one.ttft, "tpot": one.tpot or 0.0, "e2el": one.latency}
    return all(1e3 * found[name] <= most for name, most in objectives.items())
