"""The metrics of ``/metrics`` under the names users know, each as ``engine:NAME`` and as ``vllm:NAME``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

PREFIX, ALIAS = "engine:", "vllm:"
LABELS = ("model_name", "engine")

TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
        160.0, 640.0, 2560.0)  # fmt: skip
BETWEEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
LATENCY = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
           960.0, 1920.0, 7680.0)  # fmt: skip
ITERATION = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
CHOICES = (1, 2, 5, 10, 20)
PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)


class Refusal(StrEnum):
    """Which limit a request that was not let in would have passed."""

    QUEUED_REQUESTS = "queued_requests"
    QUEUED_TOKENS = "queued_tokens"
    RATE = "rate"
    GRAMMARS = "grammars"


@dataclass(frozen=True, slots=True)
class Name:
    """One family. ``buckets``: upper bounds of a histogram; ``()`` means 1, 2, 5, 10, ... up to the model's context.
    ``labels``: beside ``LABELS``."""

    name: str
    help: str
    buckets: Sequence[float] = ()
    labels: tuple[str, ...] = ()


COUNTERS = (
    Name("prompt_tokens", "Prompt tokens of answered requests; the sum of their usage."),
    Name("prompt_tokens_by_source", "Prompt tokens by where their cache came from.", labels=("source",)),
    Name("prompt_tokens_cached", "Prompt tokens that came out of the prefix cache."),
    Name("prompt_tokens_cached_by_source", "Prompt tokens out of a cache by where it lies.", labels=("source",)),
    Name("generation_tokens", "Generated tokens; the sum of the requests' usage."),
    Name("request_success", "HTTP requests by how they ended, each counted once whatever its prompts and choices.",
         labels=("finished_reason",)),
    Name("admission_rejections", "HTTP requests that got 429 or 503 since the queue was full, their key came too often "
         "or too many forms of answers were being compiled.", labels=("reason",)),
)  # fmt: skip
HISTOGRAMS = (
    Name("time_to_first_token_seconds", "From a request's arrival to its first token.", TTFT),
    Name("inter_token_latency_seconds", "Between two pieces of news of one choice.", BETWEEN),
    Name("request_time_per_output_token_seconds", "Decode time per token, of finished requests.", BETWEEN),
    Name("e2e_request_latency_seconds", "From a request's arrival to its end.", LATENCY),
    Name("request_queue_time_seconds", "From arrival to the first step.", LATENCY),
    Name("request_prefill_time_seconds", "From the first step to the first token.", LATENCY),
    Name("request_decode_time_seconds", "From the first token to the last.", LATENCY),
    Name("request_inference_time_seconds", "From the first step to the last token.", LATENCY),
    Name("request_prompt_tokens", "Prompt tokens per finished request."),
    Name("request_prefill_kv_computed_tokens", "Prompt tokens that were computed, not cached."),
    Name("request_generation_tokens", "Generated tokens per finished request."),
    Name("request_max_num_generation_tokens", "Generated tokens of a request's longest choice."),
    Name("request_params_n", "Choices asked for.", CHOICES),
    Name("request_params_max_tokens", "Tokens asked for, at most."),
    Name("request_num_preemptions", "Preemptions per finished request.", PREEMPTIONS),
    Name("iteration_tokens_total", "Tokens per step of the engine.", ITERATION),
)
"""What each front end counts itself; several of them are added up."""

CORE_GAUGES = (
    Name("num_requests_running", "Requests in the current batch."),
    Name("num_requests_waiting", "Requests that wait for their turn."),
    Name("num_requests_waiting_by_reason", "Requests that wait: for capacity, or for a grammar (deferred).",
         labels=("reason",)),
    Name("kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1."),
    Name("compiled_functions", "Functions that pieces were compiled into, built at this start or taken from the cache.",
         labels=("source",)),
    Name("plan_info", "What was decided at start-up.",
         labels=("platform", "arch", "level", "compile_mode", "graph_mode", "plan_hash")),
    Name("kernel_info", "Who computes the calls of an op.", labels=("op", "kernel", "calls")),
    Name("fusion_info", "Every fusion; an active one was found in some places of the program.",
         labels=("fusion", "active", "places")),
    Name("cache_config_info", "The KV cache.",
         labels=("block_size", "cache_dtype", "enable_prefix_caching", "gpu_memory_utilization",
                 "kv_cache_memory_bytes", "num_blocks", "num_gpu_blocks")),
)  # fmt: skip
CORE_COUNTERS = (
    Name("num_preemptions", "Requests put back to make room."),
    Name("prefix_cache_queries", "Tokens looked up in the prefix cache."),
    Name("prefix_cache_hits", "Tokens found in the prefix cache."),
    Name("graph_steps", "Steps by the kind of graph they replayed; NONE ran call by call.", labels=("kind",)),
    Name("graph_padding_tokens", "Tokens computed for nobody, to fill a graph."),
    Name("spec_decode_num_drafts", "Drafts that were verified."),
    Name("spec_decode_num_draft_tokens", "Tokens of drafts."),
    Name("spec_decode_num_accepted_tokens", "Tokens of drafts that came true."),
    Name("spec_decode_num_accepted_tokens_per_pos", "Tokens of drafts that came true by their place in it, from 0.",
         labels=("position",)),
)  # fmt: skip
"""What the core says of itself, the same whichever front end is asked."""


def token_buckets(limit: int) -> list[int]:
    """1, 2, 5, 10, 20, 50, ... up to ``limit``, at least ``[1]``."""
    buckets, power = [], 1
    while power <= limit:
        buckets += [digit * power for digit in (1, 2, 5) if digit * power <= limit]
        power *= 10
    return buckets or [1]
