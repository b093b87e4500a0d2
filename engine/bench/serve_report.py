"""What ``engine bench serve`` prints and writes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from engine.bench.load import Outcome
from engine.bench.results import facts, save
from engine.table import BOLD, coloured, lay_out, terminal

TITLES = {
    "ttft": "time to first token",
    "tpot": "time per output token, without the first",
    "itl": "time between tokens",
    "e2el": "time of a request",
}


def report(asked: Any, result: dict[str, Any], outcomes: Sequence[Outcome]) -> str:
    width, colour = terminal(sys.stdout)
    shares = [f"p{share:g}" for share in asked.metric_percentiles]
    cells = [["", "mean", "median", "std", *shares]]
    for name in asked.percentile_metrics:
        kinds = ("mean", "median", "std", *shares)
        cells.append([f"{name.upper()} (ms)", *(f"{result[f'{kind}_{name}_ms']:.2f}" for kind in kinds)])
    latencies = "\n".join(lay_out(cells, width)) + "\n"
    title = coloured("Serving benchmark", BOLD if colour else "")
    text = "\n".join([title, *lay_out(list(_rows(asked, result)), width)]) + f"\n\n{latencies}"
    if asked.plot if asked.plot is not None else sys.stdout.isatty():
        from engine.bench.plot import draw

        text += draw(outcomes, {name: TITLES[name] for name in asked.percentile_metrics}, width, colour)
    return text


def _rows(asked: Any, result: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "Successful requests", f"{result['completed']} of {result['num_prompts']}"
    if asked.max_concurrency:
        yield "Maximum request concurrency", str(asked.max_concurrency)
    if asked.ramp_up_strategy:
        yield "Request rate", f"{asked.ramp_up_start_rps:g} to {asked.ramp_up_end_rps:g}/s, {asked.ramp_up_strategy}"
    elif asked.request_rate != float("inf"):
        yield "Request rate", f"{asked.request_rate:g}/s"
    yield "Benchmark duration", f"{result['duration']:.2f} s"
    yield "Total input tokens", str(result["total_input_tokens"])
    yield "Total generated tokens", str(result["total_output_tokens"])
    yield "Request throughput", f"{result['request_throughput']:.2f} requests/s"
    if result["request_goodput"] is not None:
        said = ", ".join(f"{name} ≤ {most:g} ms" for name, most in asked.goodput)
        yield "Request goodput", f"{result['request_goodput']:.2f} requests/s with {said}"
    yield "Output token throughput", f"{result['output_throughput']:.2f} tokens/s"
    yield "Peak output token throughput", f"{result['max_output_tokens_per_s']:.0f} tokens/s in one second"
    yield "Total token throughput", f"{result['total_token_throughput']:.2f} tokens/s"
    yield "Peak concurrent requests", str(result["max_concurrent_requests"])
    if "spec_decode_acceptance_rate" in result:
        rate, length = result["spec_decode_acceptance_rate"], result["spec_decode_acceptance_length"]
        yield "Drafts", f"{rate:.1f} % of their tokens accepted, {length:.2f} tokens a step"
    yield from facts(result)


def write(asked: Any, result: dict[str, Any]) -> None:
    """Raises ``UserError`` for a file that cannot be written."""
    if asked.output_json:
        save(asked.output_json, result, "--output-json")
    if asked.save_result or asked.append_result or asked.save_detailed:
        path = os.path.join(asked.result_dir or "", asked.result_filename or _name(asked, result))
        save(path, result, "--result-dir" if asked.result_dir else "--save-result", append=asked.append_result)


def _name(asked: Any, result: dict[str, Any]) -> str:
    rate = f"{result['request_rate']}qps"
    if asked.ramp_up_strategy:
        rate = f"ramp-up-{asked.ramp_up_strategy}-{asked.ramp_up_start_rps:g}qps-{asked.ramp_up_end_rps:g}qps"
    most = f"-concurrency{asked.max_concurrency}" if asked.max_concurrency else ""
    model = result["model_id"].rstrip("/").rpartition("/")[2]
    return f"{asked.label or asked.backend}-{rate}{most}-{model}-{result['date']}.json"
