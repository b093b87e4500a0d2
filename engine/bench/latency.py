"""``engine bench latency``: how long one batch takes."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from engine.bench import trace
from engine.bench.in_process import about, opened
from engine.bench.results import facts, save
from engine.bench.statistics import mean, percentile
from engine.cli.options import Option
from engine.cli.output import say
from engine.cli.settings import read_settings
from engine.config import kinds as k
from engine.generation_bar import generation_bar
from engine.plan_values import Given
from engine.table import BOLD, coloured, lay_out, terminal

if TYPE_CHECKING:
    from engine.llm import LLM

SETTINGS = True
PERCENTILES = (10, 25, 50, 75, 90, 95, 99)

OPTIONS = (
    Option("--input-len", k.COUNT, "tokens of each prompt", 32),
    Option("--output-len", k.COUNT, "tokens of each answer", 128),
    Option("--batch-size", k.COUNT, "prompts at a time", 8),
    Option("--n", k.COUNT, "answers for each prompt", 1),
    Option("--num-iters-warmup", k.LIMIT, "iterations before those that count", 10),
    Option("--num-iters", k.COUNT, "iterations that count", 30),
    Option("--output-json", k.FILE, "write the result here"),
    Option("--disable-tqdm", k.SWITCH, "show no bar"),
    *trace.OPTIONS,
)


def run(words: Sequence[str]) -> int:
    given, asked = read_settings(words, OPTIONS, "bench")
    # An equal prompt would be read once and found after that.
    given = {"cache.enable_prefix_caching": Given(False, "argument")} | given
    with opened(given) as llm:
        for _ in range(asked.num_iters_warmup):
            _iteration(llm, asked)
        if asked.profile:
            with trace.traced(llm, asked.profile_dir) as path:
                _iteration(llm, asked)
            say(f"{path}\n")
            return 0
        latencies = []
        with generation_bar(asked.num_iters, not asked.disable_tqdm, what="Iterations") as advance:
            for _ in range(asked.num_iters):
                latencies.append(_iteration(llm, asked))
                advance(1, asked.batch_size * asked.n * asked.output_len)
        result = _result(asked, latencies) | about(llm)
    say(_report(result))
    if asked.output_json:
        save(asked.output_json, result, "--output-json")
    return 0


def _iteration(llm: LLM, asked: Any) -> float:
    """Seconds."""
    from engine.sampling_params import SamplingParams

    dice = random.Random(0)
    size = llm.get_tokenizer().vocab_size
    prompts = [[dice.randrange(size) for _ in range(asked.input_len)] for _ in range(asked.batch_size)]
    params = SamplingParams(n=asked.n, temperature=1.0, seed=0, ignore_eos=True, max_tokens=asked.output_len)
    begin = time.perf_counter()
    llm.generate(prompts, params, use_tqdm=False)
    return time.perf_counter() - begin


def _result(asked: Any, latencies: list[float]) -> dict[str, Any]:
    ordered = sorted(latencies)
    return {
        "avg_latency": mean(latencies),
        "latencies": latencies,
        "percentiles": {str(share): percentile(ordered, share) for share in PERCENTILES},
        "input_len": asked.input_len,
        "output_len": asked.output_len,
        "batch_size": asked.batch_size,
        "n": asked.n,
    }


def _report(result: dict[str, Any]) -> str:
    width, colour = terminal(sys.stdout)
    size = f"{result['batch_size']} prompts of {result['input_len']} tokens, answers of {result['output_len']}"
    rows = [("Avg latency", f"{result['avg_latency']:.4f} s")]
    rows += [(f"{share}% percentile latency", f"{seconds:.4f} s") for share, seconds in result["percentiles"].items()]
    head = coloured("Latency of a batch", BOLD if colour else "")
    return "\n".join([f"{head}: {size}", *lay_out([*rows, *facts(result)], width)]) + "\n"
