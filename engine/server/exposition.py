"""What ``/metrics`` shows beside the front end's own counters, and how."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.batch import Stats
from engine.generation import CoreInfo
from engine.server.metric_names import ALIAS, CORE_COUNTERS, CORE_GAUGES, PREFIX

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_NAMES = re.compile(rb"^((?:# (?:HELP|TYPE) )?)" + PREFIX.encode(), re.M)
Samples = list[tuple[tuple[str, ...], float]]
"""(values of a family's own labels, number) of each series."""


class CoreCollector(Collector):
    """The core's own numbers, read when somebody looks: gauges, totals since start, and what it is."""

    def __init__(self, info: CoreInfo, labels: dict[str, str], core: Callable[[], Stats]) -> None:
        self.labels, self.core, self.fixed = labels, core, fixed_samples(info)

    def collect(self) -> Iterator[Metric]:
        found = self.fixed | current_samples(self.core())
        for kind, rows in ((GaugeMetricFamily, CORE_GAUGES), (CounterMetricFamily, CORE_COUNTERS)):
            for row in rows:
                family = kind(PREFIX + row.name, row.help, labels=[*self.labels, *row.labels])
                for values, number in found[row.name]:
                    family.add_metric([*self.labels.values(), *values], number)
                yield family


def current_samples(stats: Stats) -> dict[str, Samples]:
    """What changes while the core runs, by name."""
    reasons = {"capacity": stats.waiting - stats.deferred, "deferred": stats.deferred}
    return {
        "num_requests_running": _one(stats.running),
        "num_requests_waiting": _one(stats.waiting),
        "num_requests_waiting_by_reason": _each(reasons),
        "kv_cache_usage_perc": _one(stats.kv_usage),
        "num_preemptions": _one(stats.preemptions),
        "prefix_cache_queries": _one(stats.prefix_queries),
        "prefix_cache_hits": _one(stats.prefix_hits),
        "graph_steps": _each({kind: stats.steps.get(kind, 0) for kind in ("FULL", "PIECEWISE", "NONE")}),
        "graph_padding_tokens": _one(stats.padding),
        "spec_decode_num_drafts": _one(stats.drafts),
        "spec_decode_num_draft_tokens": _one(stats.draft_tokens),
        "spec_decode_num_accepted_tokens": _one(sum(stats.accepted)),
        "spec_decode_num_accepted_tokens_per_pos": _each(
            {str(place): number for place, number in enumerate(stats.accepted or [0])}
        ),
    }


def fixed_samples(info: CoreInfo) -> dict[str, Samples]:
    """What was decided at the start, by name."""
    rows, level = info.plan, f"-O{info.level}"
    plan = (info.platform, str(rows.get("arch", "")), level, info.compile_mode, info.graph_mode, info.plan_hash)
    calls: Counter[tuple[str, str]] = Counter()
    for row in rows.get("kernels", ()):
        calls[row["op"], row["chosen"]] += row["count"]
    places = {row["rule"]: int(row["matched"]) for row in rows.get("fusions", ())}
    decided = [_decided(rows, f"cache.{name}") for name in ("enable_prefix_caching", "gpu_memory_utilization")]
    blocks = str(info.num_blocks)
    cache = (str(info.block_size), _decided(rows, "cache.kv_cache_dtype"), *decided,
             _decided(rows, "cache.kv_cache_memory_bytes"), blocks, blocks)  # fmt: skip
    return {
        "compiled_functions": _each({"built": info.built, "cache": info.loaded}),
        "plan_info": [(plan, 1)],
        "kernel_info": [((*who, str(count)), 1) for who, count in calls.items()],
        "fusion_info": [((rule, str(count > 0).lower(), str(count)), 1) for rule, count in places.items()],
        "cache_config_info": [(cache, 1)],
    }


def _decided(plan: Mapping[str, Any], key: str) -> str:
    row = plan.get("decisions", {}).get(key)
    return "" if row is None else str(row["value"])


def _one(value: float) -> Samples:
    return [((), value)]


def _each(values: Mapping[str, float]) -> Samples:
    return [((name,), value) for name, value in values.items()]


def expose(registry: CollectorRegistry) -> bytes:
    """Every family under both prefixes with the same samples, read and written once."""
    own = generate_latest(_Current(registry))
    return own + _NAMES.sub(rb"\1" + ALIAS.encode(), own)


class _Current:
    """What a registry collects without the times at which series began."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry

    def collect(self) -> Iterator[Metric]:
        for family in self.registry.collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family
