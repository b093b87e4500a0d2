"""What happened between two looks at ``/metrics``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from engine.top.scrape import Scrape

HALF, MOST = 0.5, 0.95


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Seconds; ``None``: nothing was observed."""

    p50: float | None
    p95: float | None


@dataclass(frozen=True, slots=True)
class Reading:
    """``seconds`` between the two; rates are per second of these. ``kv_usage`` and ``prefix_hit_rate``: 0 to 1, the
    latter ``None`` if nothing was looked up. ``preemptions`` and ``preemptions_total``: in between, and ever; so with
    ``refused``, the requests that were not let in.
    ``plan``: what was decided; ``kernels``: (op, kernel, calls); ``fusions``: the active ones with their places."""

    model: str
    seconds: float
    running: int
    waiting: int
    deferred: int
    generation_rate: float
    prompt_rate: float
    request_rate: float
    kv_usage: float
    prefix_hit_rate: float | None
    preemptions: int
    preemptions_total: int
    refused: int
    refused_total: int
    ttft: Quantiles
    itl: Quantiles
    e2e: Quantiles
    plan: Mapping[str, str]
    kernels: tuple[tuple[str, str, int], ...]
    fusions: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def compare(old: Scrape, new: Scrape) -> Reading:
    """``old`` and ``new`` of one server; where a counter went down, it was started anew in between."""
    seconds = max(new.at - old.at, 1e-9)

    def grown(name: str) -> float:
        before, now = old.total(name), new.total(name)
        return now - before if now >= before else now

    queries, hits = grown("prefix_cache_queries_total"), grown("prefix_cache_hits_total")
    running = new.labels("num_requests_running")
    plans = new.labels("plan_info")
    active = [labels for labels in new.labels("fusion_info") if labels["active"] == "true"]
    return Reading(
        model=running[0].get("model_name", "") if running else "",
        seconds=seconds,
        running=int(new.total("num_requests_running")),
        waiting=int(new.total("num_requests_waiting")),
        deferred=int(new.total("num_requests_waiting_by_reason", reason="deferred")),
        generation_rate=grown("generation_tokens_total") / seconds,
        prompt_rate=grown("prompt_tokens_total") / seconds,
        request_rate=grown("request_success_total") / seconds,
        kv_usage=new.total("kv_cache_usage_perc") / max(len(new.labels("kv_cache_usage_perc")), 1),
        prefix_hit_rate=hits / queries if queries else None,
        preemptions=int(grown("num_preemptions_total")),
        preemptions_total=int(new.total("num_preemptions_total")),
        refused=int(grown("admission_rejections_total")),
        refused_total=int(new.total("admission_rejections_total")),
        ttft=_quantiles(old, new, "time_to_first_token_seconds"),
        itl=_quantiles(old, new, "inter_token_latency_seconds"),
        e2e=_quantiles(old, new, "e2e_request_latency_seconds"),
        plan={name: value for name, value in plans[0].items() if name not in ("engine", "model_name")} if plans else {},
        kernels=tuple((row["op"], row["kernel"], int(row["calls"])) for row in new.labels("kernel_info")),
        fusions={labels["fusion"]: int(labels["places"]) for labels in active},
    )


def quantile(share: float, buckets: Mapping[float, float]) -> float | None:
    """The value below which ``share`` of the observations lie, as PromQL estimates it: evenly spread within a bucket,
    and at most the last bound that is finite. ``buckets``: ascending upper bound → observations up to it."""
    total = max(buckets.values(), default=0.0)
    if total <= 0:
        return None
    wanted, bound, below = share * total, 0.0, 0.0
    for upper, count in buckets.items():
        if count >= wanted and count > below:
            return bound if upper == float("inf") else bound + (upper - bound) * (wanted - below) / (count - below)
        bound, below = upper, count
    return bound


def _quantiles(old: Scrape, new: Scrape, name: str) -> Quantiles:
    before, now = old.buckets(name), new.buckets(name)
    grown = {bound: count - before.get(bound, 0.0) for bound, count in now.items()}
    if any(count < 0 for count in grown.values()):
        grown = now
    return Quantiles(quantile(HALF, grown), quantile(MOST, grown))
