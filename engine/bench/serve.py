"""``engine bench serve``: any server that speaks the OpenAI API, under a load. Imports no torch."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Sequence
from typing import Any

from engine.bench.arrivals import arrivals, ramp
from engine.bench.backends import BACKENDS
from engine.bench.figures import details, figures
from engine.bench.load import Load, Outcome
from engine.bench.samples import Sample, make_samples
from engine.bench.serve_options import OPTIONS, SAMPLING, check
from engine.bench.serve_report import report, write
from engine.bench.server_facts import acceptance, cards, draft_counters, peak_memory, plan_of
from engine.bench.tokens import tokenizer_for_server
from engine.cli.options import read_options
from engine.cli.output import say
from engine.endpoint import Endpoint, EndpointError
from engine.errors import UserError
from engine.generation_bar import generation_bar

READY_PAUSE = 1.0
MOST_REASONS = 3


def run(words: Sequence[str]) -> int:
    """0 when at least one request was answered, 1 when none was."""
    asked = read_options(words, OPTIONS, "engine bench serve")
    check(asked)
    return asyncio.run(_run(asked))


async def _run(asked: Any) -> int:
    url = asked.base_url or f"http://{f'[{asked.host}]' if ':' in asked.host else asked.host}:{asked.port}"
    key = os.environ.get("OPENAI_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with Endpoint(url, headers | dict(asked.header), asked.insecure) as endpoint:
        listed = await _ready(endpoint, asked.ready_check_timeout_sec)
        model, root = _model(asked, listed, url)
        tokenizer, origin = tokenizer_for_server(asked.tokenizer, root, asked.model or model)
        samples = make_samples(asked, tokenizer)
        result = _head(asked, model, origin, len(samples)) | dict(asked.metadata)
        before = await draft_counters(endpoint)
        outcomes, seconds = await _measure(asked, endpoint, model, samples)
        result |= figures(
            outcomes, seconds, asked.percentile_metrics, asked.metric_percentiles, dict(asked.goodput)
        )
        result |= acceptance(before, await draft_counters(endpoint)) | await plan_of(endpoint)
        result["peak_memory_bytes"] = peak_memory(endpoint)
    if asked.save_detailed:
        result |= details(outcomes)
    reasons = _reasons(outcomes)
    if result["completed"]:
        say(report(asked, result, outcomes))
    for text, count in reasons[:MOST_REASONS]:
        say(f"{count} failed: {text}\n")
    write(asked, result)
    if not result["completed"]:
        say(f"every one of {len(outcomes)} requests to {url} failed\n")
        return 1
    return 0


async def _ready(endpoint: Endpoint, patience: float) -> list[dict[str, Any]] | None:
    """The models that the server lists, waiting up to ``patience`` seconds for it. Raises ``UserError``."""
    until = time.monotonic() + patience
    while True:
        try:
            found = await cards(endpoint)
            if found is not None or time.monotonic() >= until:
                return found
        except EndpointError as error:
            if time.monotonic() >= until:
                waited = f" within {patience:g} s" if patience else ""
                hint = "start it (engine serve), or say where it is: --host, --port, --base-url"
                raise UserError(f"{error}{waited}; {hint}") from error
        await asyncio.sleep(min(READY_PAUSE, max(0.0, until - time.monotonic())))


def _model(asked: Any, listed: list[dict[str, Any]] | None, url: str) -> tuple[str, object]:
    """(what requests name, the folder or file that the server says it is)."""
    rows = {str(row.get("id")): row for row in listed or ()}
    name = asked.served_model_name or asked.model or next(iter(rows), None)
    if name is None:
        raise UserError(f"{url} lists no models; name one: --model NAME")
    if rows and name not in rows:
        raise UserError(f"{url} has no model {name}; it has {', '.join(rows)}")
    return name, rows.get(name, {}).get("root")


async def _measure(
    asked: Any, endpoint: Endpoint, model: str, samples: list[Sample]
) -> tuple[list[Outcome], float]:
    backend = BACKENDS[asked.backend]
    path, common = asked.endpoint or backend.path, _common(asked, model, backend.streams)
    if asked.num_warmups:
        some = (samples * (1 + asked.num_warmups // len(samples)))[: asked.num_warmups]
        await Load(endpoint, backend, path, common).run(some, [0.0] * len(some), asked.max_concurrency)
    if asked.ramp_up_strategy:
        rates = asked.ramp_up_start_rps, asked.ramp_up_end_rps
        at = ramp(len(samples), asked.ramp_up_strategy, *rates, asked.burstiness, asked.seed)
    else:
        at = arrivals(len(samples), asked.request_rate, asked.burstiness, asked.seed)
    if asked.profile:
        await _post(endpoint, "/start_profile")
    # What was made so far stays, and a pause to look through it would be counted as the server's.
    gc.collect()
    gc.freeze()
    with generation_bar(len(samples), not asked.disable_tqdm) as advance:
        begin = time.perf_counter()
        load = Load(endpoint, backend, path, common, advance, asked.request_id_prefix)
        outcomes = await load.run(samples, at, asked.max_concurrency)
        seconds = time.perf_counter() - begin
    if asked.profile:
        await _post(endpoint, "/stop_profile")
    return outcomes, seconds


def _common(asked: Any, model: str, streams: bool) -> dict[str, Any]:
    """Fields of every body."""
    common: dict[str, Any] = {"model": model}
    if streams:
        common |= {"stream": True, "stream_options": {"include_usage": True}}
        common |= {name: value for name in SAMPLING if (value := getattr(asked, name)) is not None}
        ignore = asked.dataset_name == "random" if asked.ignore_eos is None else asked.ignore_eos
        common |= {"ignore_eos": True} if ignore else {}
        if asked.logprobs is not None:
            chat = asked.backend == "openai-chat"
            common |= {"logprobs": True, "top_logprobs": asked.logprobs} if chat else {"logprobs": asked.logprobs}
    return common | (asked.extra_body or {})


async def _post(endpoint: Endpoint, path: str) -> None:
    answer = await endpoint.ask("POST", path)
    if answer.status != 200:
        raise UserError(
            f"--profile: POST {endpoint.url}{path} gave {answer.status}; this server writes no traces. `engine bench "
            "latency --profile` and `throughput --profile` write one without a server"
        )


def _head(asked: Any, model: str, tokenizer: str, count: int) -> dict[str, Any]:
    found = {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": asked.backend,
        "backend": asked.backend,
        "label": asked.label,
        "model_id": model,
        "tokenizer_id": tokenizer,
        "dataset_name": asked.dataset_name,
        "seed": asked.seed,
        "num_prompts": count,
        "request_rate": "inf" if asked.request_rate == float("inf") else asked.request_rate,
        "burstiness": asked.burstiness,
        "max_concurrency": asked.max_concurrency,
    }
    if asked.ramp_up_strategy:
        names = ("ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps")
        found |= {name: getattr(asked, name) for name in names}
    return found


def _reasons(outcomes: Sequence[Outcome]) -> list[tuple[str, int]]:
    from collections import Counter

    return Counter(one.error for one in outcomes if one.error).most_common()
