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
from engine.server.metric_names import COUNTERS, HISTOGRAMS, LABELS, PREFIX, token_buckets

COMPLETED = (FinishReason.STOP, FinishReason.LENGTH)
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
        self.counters = {
            row.name: Counter(PREFIX + row.name, row.help, LABELS, registry=self.registry).labels(**labels)
            for row in COUNTERS
        }
        self.histograms = {
            row.name: Histogram(
                PREFIX + row.name, row.help, LABELS, registry=self.registry, buckets=row.buckets or buckets
            ).labels(**labels)
            for row in HISTOGRAMS
        }
        success = Counter(
            PREFIX + "request_success",
            "HTTP requests by how they ended, each counted once whatever its prompts and choices.",
            (*LABELS, "finished_reason"),
            registry=self.registry,
        )
        self.requests = {reason: success.labels(**labels, finished_reason=reason.value) for reason in FinishReason}
        self.shown = self.registry if folder is None else registry_of_all(folder)
        self.shown.register(CoreCollector(info, labels, core))

    def begin(self, params: SamplingParams, prompts: list[int], arrival: float) -> Record:
        """Follow one HTTP request; ``prompts``: lengths; ``arrival``: monotonic clock."""
        return Record(self, params, prompts, arrival)

    def text(self) -> bytes:
        """The text format of Prometheus."""
        return expose(self.shown)

    @_contained
    def step(self, tokens: int) -> None:
        """Count a step of the core."""
        self.histograms["iteration_tokens_total"].observe(tokens)

    def note_fault(self, error: Exception) -> None:
        if not self.faulty:
            self.faulty = True
            logger.warning("Metrics are incomplete from now on: %s: %s", type(error).__name__, error)


class Record:
    """One HTTP request. ``delta`` for each piece of news, then ``end`` once; ``took`` once per choice, before or
    after that."""

    def __init__(self, metrics: Metrics, params: SamplingParams, prompts: list[int], arrival: float) -> None:
        self.metrics, self.params, self.prompts, self.start = metrics, params, prompts, arrival
        self.seen: set[int] = set()
        self.cached: dict[int, int] = {}
        self.tokens: dict[int, int] = {}
        self.latest: dict[int, float] = {}
        self.times: list[Times] = []
        self.completed = False

    @_contained
    def delta(self, place: int, choice: int, delta: Delta) -> None:
        """``place``: which prompt; ``choice``: index over all prompts."""
        now, count, counters = time.monotonic(), len(delta.token_ids), self.metrics.counters
        histograms = self.metrics.histograms
        if place not in self.seen:
            self.seen.add(place)
            counters["prompt_tokens"].inc(self.prompts[place])
        if delta.index == 0 and (new := delta.cached_tokens - self.cached.get(place, 0)) > 0:
            self.cached[place] = delta.cached_tokens
            counters["prompt_tokens_cached"].inc(new)
        if count:
            counters["generation_tokens"].inc(count)
            if not self.tokens:
                histograms["time_to_first_token_seconds"].observe(now - self.start)
            if choice in self.latest:
                histograms["inter_token_latency_seconds"].observe(now - self.latest[choice])
            self.latest[choice] = now
            self.tokens[choice] = self.tokens.get(choice, 0) + count

    @_contained
    def took(self, times: Times) -> None:
        """The core has ended a choice."""
        self.times.append(times)
        self._observe_phases()

    @_contained
    def end(self, outcome: FinishReason | None) -> None:
        """``None``: the request was refused and counts nowhere."""
        if outcome is None:
            return
        self.metrics.requests[outcome].inc()
        if outcome in COMPLETED:
            self._complete()
            self.completed = True
            self._observe_phases()

    def _complete(self) -> None:
        room = self.metrics.max_model_len - max(self.prompts)
        self._observe(
            {
                "e2e_request_latency_seconds": time.monotonic() - self.start,
                "request_prompt_tokens": sum(self.prompts),
                "request_generation_tokens": sum(self.tokens.values()),
                "request_max_num_generation_tokens": max(self.tokens.values(), default=0),
                "request_params_n": self.params.n,
                "request_params_max_tokens": room if self.params.max_tokens is None else self.params.max_tokens,
            }
        )

    def _observe_phases(self) -> None:
        """Once the text is complete and the core has ended every choice."""
        if not self.completed or len(self.times) < len(self.prompts) * self.params.n:
            return
        scheduled = _least(times.scheduled for times in self.times)
        first = _least(times.first_token for times in self.times)
        last = max((times.last_token for times in self.times if times.last_token is not None), default=None)
        spans = (
            ("request_queue_time_seconds", min(times.arrival for times in self.times), scheduled),
            ("request_prefill_time_seconds", scheduled, first),
            ("request_decode_time_seconds", first, last),
            ("request_inference_time_seconds", scheduled, last),
        )
        observed = {name: end - start for name, start, end in spans if start is not None and end is not None}
        longest = max(self.tokens.values(), default=0)
        if longest > 1 and "request_decode_time_seconds" in observed:
            per_token = observed["request_decode_time_seconds"] / (longest - 1)
            observed["request_time_per_output_token_seconds"] = per_token
        self._observe(observed | {"request_num_preemptions": sum(times.preemptions for times in self.times)})

    def _observe(self, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.metrics.histograms[name].observe(max(0.0, value))


def _least(values: Any) -> float | None:
    return min((value for value in values if value is not None), default=None)
