"""``engine bench throughput``: how much is done of many prompts that are there at once."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from engine.bench import samples, trace
from engine.bench.in_process import about, opened
from engine.bench.results import facts, save
from engine.bench.samples import Sample, make_samples
from engine.cli.options import Option
from engine.cli.output import say
from engine.cli.settings import read_settings
from engine.config import kinds as k
from engine.config.sources import value_of
from engine.config.values import Kind, choice
from engine.errors import UserError
from engine.table import BOLD, coloured, lay_out, terminal

if TYPE_CHECKING:
    from engine.llm import LLM
    from engine.sampling_params import SamplingParams

SETTINGS = True
BACKEND = Kind("WHICH", choice("engine", "engine-chat", also={"vllm": "engine", "vllm-chat": "engine-chat"}))

OPTIONS = (
    Option("--backend", BACKEND, "engine, or engine-chat: each prompt in the model's chat template", "engine"),
    *(row for row in samples.OPTIONS if row.flag != "--seed"),
    Option("--n", k.COUNT, "answers for each prompt", 1),
    Option("--async-engine", k.SWITCH, "measure the core in a process of its own, as a server runs it"),
    Option("--output-json", k.FILE, "write the result here"),
    Option("--disable-tqdm", k.SWITCH, "show no bar"),
    *trace.OPTIONS,
)


def run(words: Sequence[str]) -> int:
    given, asked = read_settings(words, OPTIONS, "bench")
    if asked.async_engine and (asked.profile or asked.backend != "engine"):
        raise UserError("--async-engine measures prompts as they are, without --profile or --backend engine-chat")
    asked.seed = value_of(given, "model.seed") or 0
    if asked.async_engine:
        from engine.bench.async_engine import measure

        return _tell(asked, measure(given, asked))
    with opened(given) as llm:
        found = make_samples(asked, llm.get_tokenizer())
        if asked.profile:
            with trace.traced(llm, asked.profile_dir) as path:
                _answers(llm, asked, found)
            say(f"{path}\n")
            return 0
        begin = time.perf_counter()
        read, made = _answers(llm, asked, found)
        return _tell(asked, figures(asked, time.perf_counter() - begin, len(found), read, made) | about(llm))


def _tell(asked: Any, result: dict[str, Any]) -> int:
    say(_report(result))
    if asked.output_json:
        save(asked.output_json, result, "--output-json")
    return 0


def _answers(llm: LLM, asked: Any, found: Sequence[Sample]) -> tuple[int, int]:
    """Tokens of all prompts, and of all answers."""
    params = [sampling(asked, sample) for sample in found]
    if asked.backend == "engine-chat":
        talks = [[{"role": "user", "content": sample.prompt}] for sample in found]
        results = llm.chat(talks, params, use_tqdm=not asked.disable_tqdm)
    else:
        results = llm.generate([sample.prompt for sample in found], params, use_tqdm=not asked.disable_tqdm)
    made = sum(len(answer.token_ids) for result in results for answer in result.outputs)
    return sum(len(result.prompt_token_ids) for result in results), made


def sampling(asked: Any, sample: Sample) -> SamplingParams:
    from engine.sampling_params import SamplingParams

    return SamplingParams(n=asked.n, temperature=1.0, ignore_eos=True, max_tokens=sample.output_len)


def figures(asked: Any, seconds: float, count: int, read: int, made: int) -> dict[str, Any]:
    return {
        "elapsed_time": seconds,
        "num_requests": count,
        "total_num_tokens": read + made,
        "requests_per_second": count / seconds,
        "tokens_per_second": (read + made) / seconds,
        "total_prompt_tokens": read,
        "total_output_tokens": made,
        "output_tokens_per_second": made / seconds,
        "dataset_name": asked.dataset_name,
        "seed": asked.seed,
    }


def _report(result: dict[str, Any]) -> str:
    width, colour = terminal(sys.stdout)
    rows = [
        ("Requests", f"{result['requests_per_second']:.2f} requests/s"),
        ("Tokens", f"{result['tokens_per_second']:.2f} total tokens/s"),
        ("Output tokens", f"{result['output_tokens_per_second']:.2f} output tokens/s"),
        ("Total prompt tokens", str(result["total_prompt_tokens"])),
        ("Total output tokens", str(result["total_output_tokens"])),
        ("Duration", f"{result['elapsed_time']:.2f} s"),
    ]
    head = coloured("Throughput", BOLD if colour else "")
    return "\n".join([f"{head}: {result['num_requests']} requests", *lay_out([*rows, *facts(result)], width)]) + "\n"
