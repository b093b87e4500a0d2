"""Prometheus metrics of one server. A fault in here is logged once and never reaches a request."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram

from engine.batch import FinishReason, Stats, Times
from engine.generation import CoreInfo, Delta
from engine.sampling_params import SamplingParams
from engine.server.exposition import CoreCollector, expose
from engine.server.metric_files import registry_of_all
from engine.server.metric_names import COUNTERS, HISTOGRAMS, LABELS, PREFIX, Refusal, token_buckets

COMPLETED = (FinishReason.STOP, FinishReason.LENGTH)
COMPUTED, CACHED, HERE = "local_compute", "local_cache_hit", "device"
VALUES = {
    "prompt_tokens_by_source": (COMPUTED, CACHED),
    "prompt_tokens_cached_by_source": (HERE,),
    "request_success": tuple(FinishReason),
    "admission_rejections": tuple(Refusal),
}
"""Values of a counter's own label; all of them are shown from the start."""
F = TypeVar("F", bound=Callable[..., None])
logger = logging.getLogger("engine.server")


def _contained(method: F) -> F:
    """The first exception becomes one WARNING, later ones are dropped: numbers are worth less than answers."""

    @functools.wraps(method)
    def call(self: Any, *args: Any) -> None:
        try:
            method(self, *args)
        except Exception as error:
            self.metrics.note_fault(error)

    return call  # type: ignore[return-value]


class Metrics:
    """``core``: gives the latest ``Stats``. Request and token counters are the front end's own, or those of all front
    ends that count in ``folder``."""

    def __init__(
        self, info: CoreInfo, model_name: str, core: Callable[[], Stats], folder: str | None = None
    ) -> None:
        self.metrics, self.max_model_len, self.faulty = self, info.max_model_len, False
        self.registry = CollectorRegistry(auto_describe=False)
        labels = {"model_name": model_name, "engine": "0"}
        buckets = token_buckets(info.max_model_len)
        self.histograms = {
            row.name: Histogram(
                PREFIX + row.name, row.help, LABELS, registry=self.registry, buckets=row.buckets or buckets
            ).labels(**labels)
            for row in HISTOGRAMS
        }
        self.counters = {}
        for row in COUNTERS:
            family = Counter(PREFIX + row.name, row.help, (*LABELS, *row.labels), registry=self.registry)
            for value in VALUES.get(row.name, ("",)):
                self.counters[row.name, value] = family.labels(*labels.values(), *([value] if row.labels else []))
        self.shown = self.registry if folder is None else registry_of_all(folder)
        self.shown.register(CoreCollector(info, labels, core))

    def begin(
        self,
        params: SamplingParams,
        prompts: list[int],
        arrival: float,
        on_done: Callable[[Record], None] = lambda record: None,
    ) -> Record:
        """Follow one HTTP request; ``prompts``: lengths; ``arrival``: monotonic clock. ``on_done`` is told once it has
        ended and the core has told its times, or at once if it failed; never if it was refused."""
        return Record(self, params, prompts, arrival, on_done)

    def count(self, name: str, number: float, value: str = "") -> None:
        """Add to a counter; ``value``: of its own label."""
        self.counters[name, value].inc(number)

    def text(self) -> bytes:
        """The text format of Prometheus."""
        return expose(self.shown)

    @_contained
    def step(self, tokens: int) -> None:
        """Count a step of the core."""
        self.histograms["iteration_tokens_total"].observe(tokens)

    @_contained
    def refused(self, reason: Refusal) -> None:
        """Count a request that was not let in."""
        self.count("admission_rejections", 1, reason)

    def note_fault(self, error: Exception) -> None:
        if not self.faulty:
            self.faulty = True
            logger.warning("Metrics are incomplete from now on: %s: %s", type(error).__name__, error)


class Record:
    """One HTTP request. ``delta`` for each piece of news, then ``end`` once; ``took`` once per choice, before or
    after that. ``tokens``: generated so far by choice; ``cached``: prompt tokens out of the prefix cache by prompt."""

    def __init__(
        self,
        metrics: Metrics,
        params: SamplingParams,
        prompts: list[int],
        arrival: float,
        on_done: Callable[[Record], None],
    ) -> None:
        self.metrics, self.params, self.prompts, self.start, self.on_done = metrics, params, prompts, arrival, on_done
        self.seen: set[int] = set()
        self.cached: dict[int, int] = {}
        self.tokens: dict[int, int] = {}
        self.latest: dict[int, float] = {}
        self.times: list[Times] = []
        self.first: float | None = None
        self.finish = arrival
        self.outcome: FinishReason | None = None

    @_contained
    def delta(self, place: int, choice: int, delta: Delta) -> None:
        """``place``: which prompt; ``choice``: index over all prompts."""
        now, count, histograms = time.monotonic(), len(delta.token_ids), self.metrics.histograms
        if place not in self.seen:
            self.seen.add(place)
            self.metrics.count("prompt_tokens", self.prompts[place])
        if delta.index == 0 and place not in self.cached:
            self._settle(place, delta.cached_tokens)
        if count:
            self.metrics.count("generation_tokens", count)
            if self.first is None:
                self.first = now
                histograms["time_to_first_token_seconds"].observe(now - self.start)
            if choice in self.latest:
                histograms["inter_token_latency_seconds"].observe(now - self.latest[choice])
            self.latest[choice] = now
            self.tokens[choice] = self.tokens.get(choice, 0) + count

    @_contained
    def took(self, times: Times) -> None:
        """The core has ended a choice."""
        self.times.append(times)
        self._finish()

    @_contained
    def end(self, outcome: FinishReason | None) -> None:
        """``None``: the request was refused and counts nowhere."""
        if outcome is None:
            return
        self.outcome, self.finish = outcome, time.monotonic()
        self.metrics.count("request_success", 1, outcome)
        for place in self.seen - self.cached.keys():
            self._settle(place, 0)
        if outcome in COMPLETED:
            self._complete()
        self._finish()

    def phases(self) -> dict[str, float]:
        """Seconds of queue, prefill, decode and inference, as far as the core went; nothing before it has told."""
        if not self.times:
            return {}
        scheduled = _least(times.scheduled for times in self.times)
        first = _least(times.first_token for times in self.times)
        last = max((times.last_token for times in self.times if times.last_token is not None), default=None)
        spans = (
            ("queue", min(times.arrival for times in self.times), scheduled),
            ("prefill", scheduled, first),
            ("decode", first, last),
            ("inference", scheduled, last),
        )
        return {name: max(0.0, end - start) for name, start, end in spans if start is not None and end is not None}

    def _settle(self, place: int, cached: int) -> None:
        """Say where the prompt tokens came from."""
        self.cached[place] = cached
        self.metrics.count("prompt_tokens_cached", cached)
        self.metrics.count("prompt_tokens_cached_by_source", cached, HERE)
        self.metrics.count("prompt_tokens_by_source", cached, CACHED)
        self.metrics.count("prompt_tokens_by_source", max(0, self.prompts[place] - cached), COMPUTED)

    def _complete(self) -> None:
        room = self.metrics.max_model_len - max(self.prompts)
        self._observe(
            {
                "e2e_request_latency_seconds": self.finish - self.start,
                "request_prompt_tokens": sum(self.prompts),
                "request_prefill_kv_computed_tokens": sum(self.prompts) - sum(self.cached.values()),
                "request_generation_tokens": sum(self.tokens.values()),
                "request_max_num_generation_tokens": max(self.tokens.values(), default=0),
                "request_params_n": self.params.n,
                "request_params_max_tokens": room if self.params.max_tokens is None else self.params.max_tokens,
            }
        )

    def _finish(self) -> None:
        """Once it has ended and, unless it failed, the core has ended every choice."""
        told = len(self.times) == len(self.prompts) * self.params.n
        if self.outcome is None or not (told or self.outcome is FinishReason.ERROR):
            return
        if self.outcome in COMPLETED:
            phases = self.phases()
            observed = {f"request_{name}_time_seconds": seconds for name, seconds in phases.items()}
            longest = max(self.tokens.values(), default=0)
            if longest > 1 and "decode" in phases:
                observed["request_time_per_output_token_seconds"] = phases["decode"] / (longest - 1)
            self._observe(observed | {"request_num_preemptions": sum(times.preemptions for times in self.times)})
        on_done, self.on_done = self.on_done, lambda record: None
        on_done(self)

    def _observe(self, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.metrics.histograms[name].observe(max(0.0, value))


def _least(values: Any) -> float | None:
    return min((value for value in values if value is not None), default=None)
