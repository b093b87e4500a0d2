"""What ``/metrics`` shows beside the front end's own counters, and how."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.batch import Stats
from engine.generation import CoreInfo
from engine.server.metric_names import ALIAS, PREFIX

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_STEPS = "Steps by the kind of graph they replayed; NONE ran call by call."
_FUNCTIONS = "Functions that pieces were compiled into, built at this start or taken from the cache."


class CoreCollector(Collector):
    """The core's own numbers, read when somebody looks: gauges, totals since start, and what it is."""

    def __init__(self, info: CoreInfo, labels: dict[str, str], core: Callable[[], Stats]) -> None:
        self.labels, self.core, self.info = labels, core, info
        self.plan = {
            "platform": info.platform,
            "level": f"-O{info.level}",
            "compile_mode": info.compile_mode,
            "graph_mode": info.graph_mode,
            "plan_hash": info.plan_hash,
        }
        blocks = str(info.num_blocks)
        self.cache = {"block_size": str(info.block_size), "num_blocks": blocks, "num_gpu_blocks": blocks}

    def collect(self) -> Iterator[Metric]:
        stats = self.core()
        labels = list(self.labels)
        steps = CounterMetricFamily(PREFIX + "graph_steps", _STEPS, labels=[*labels, "kind"])
        functions = GaugeMetricFamily(PREFIX + "compiled_functions", _FUNCTIONS, labels=[*labels, "source"])
        yield self._gauge("num_requests_running", "Requests in the current batch.", stats.running)
        yield self._gauge("num_requests_waiting", "Requests that wait for their turn.", stats.waiting)
        yield self._gauge("kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1.", stats.kv_usage)
        yield self._counter("num_preemptions", "Requests put back to make room.", stats.preemptions)
        yield self._counter("prefix_cache_queries", "Tokens looked up in the prefix cache.", stats.prefix_queries)
        yield self._counter("prefix_cache_hits", "Tokens found in the prefix cache.", stats.prefix_hits)
        for kind in ("FULL", "PIECEWISE", "NONE"):
            steps.add_metric([*self.labels.values(), kind], stats.steps.get(kind, 0))
        yield steps
        yield self._counter("graph_padding_tokens", "Tokens computed for nobody, to fill a graph.", stats.padding)
        for source, count in (("built", self.info.built), ("cache", self.info.loaded)):
            functions.add_metric([*self.labels.values(), source], count)
        yield functions
        yield self._gauge("plan_info", "What was decided at start-up.", 1, self.plan)
        yield self._gauge("cache_config_info", "The KV cache.", 1, self.cache)

    def _gauge(self, name: str, text: str, value: float, more: dict[str, str] | None = None) -> Metric:
        labels = self.labels | (more or {})
        family = GaugeMetricFamily(PREFIX + name, text, labels=list(labels))
        family.add_metric(list(labels.values()), value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(PREFIX + name, text, labels=list(self.labels))
        family.add_metric(list(self.labels.values()), value)
        return family


def expose(registry: CollectorRegistry) -> bytes:
    """Every family under both prefixes with the same samples, read once."""
    return generate_latest(_Twice(registry.collect()))


class _Twice:
    def __init__(self, families: Iterable[Metric]) -> None:
        self.families = list(families)

    def collect(self) -> Iterator[Metric]:
        for prefix in (PREFIX, ALIAS):
            for family in self.families:
                copy = Metric(family.name.replace(PREFIX, prefix, 1), family.documentation, family.type)
                copy.samples = [
                    sample._replace(name=sample.name.replace(PREFIX, prefix, 1))
                    for sample in family.samples
                    if not sample.name.endswith("_created")
                ]
                yield copy
