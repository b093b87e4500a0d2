"""Decode speed with and without drafts, in turns: ``python benchmarks/drafting.py [--quick]``.

Two engines with the same prompts, greedy. A list that repeats itself is what drafts are for; in a story few come true.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.compare.machine import describe
from engine import LLM, SamplingParams

LIST = "".join(f"{place}. apples, pears, plums and cherries\n" for place in range(1, 9))
TEXTS = {"repeats": "Repeat the list again and again, for {}.\n" + LIST, "story": "Write a long story about {}."}
NAMES = ("Abel", "Ben", "Carl", "Dan", "Emil", "Finn", "Gil", "Hal")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a GGUF file or folder; default: the built-in model")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--tokens", type=int, default=128, help="of each answer")
    parser.add_argument("--drafts", type=int, default=4, help="tokens of a draft")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch-invariant", action="store_true", help="then answers are equal")
    parser.add_argument("--quick", action="store_true", help="three rounds")
    asked = parser.parse_args()
    drafting = {"method": "ngram", "num_speculative_tokens": asked.drafts, "prompt_lookup_min": 2}
    drafting["prompt_lookup_max"] = 4
    common = {"max_model_len": 1024, "max_num_seqs": max(asked.batch), "kv_cache_memory_bytes": "512M"}
    common["batch_invariant"] = asked.batch_invariant
    with ExitStack() as stack:
        engines = {
            "plain": stack.enter_context(LLM(asked.model, async_scheduling=False, **common)),
            "drafts": stack.enter_context(LLM(asked.model, speculative_config=drafting, **common)),
        }
        for kind, text in TEXTS.items():
            for batch in asked.batch:
                prompts = [text.format(NAMES[row % len(NAMES)] + " " * (row // len(NAMES))) for row in range(batch)]
                _compare(engines, kind, prompts, asked.tokens, 3 if asked.quick else asked.rounds)
    machine = describe()
    print(f"{machine['date']}, {machine['processor']}, {machine['cores']} cores")
    return 0


def _compare(engines: dict[str, LLM], kind: str, prompts: list[str], tokens: int, rounds: int) -> None:
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    taken: dict[str, list[float]] = {name: [] for name in engines}
    answers, core = {}, engines["drafts"]._open_core()
    before = core.stats()
    for turn in range(-1, rounds):  # the first warms up
        for name in sorted(engines, reverse=bool(turn % 2)):
            begin = time.perf_counter()
            results = engines[name].generate(prompts, params, use_tqdm=False)
            if turn >= 0:
                taken[name].append(time.perf_counter() - begin)
            answers[name] = [result.outputs[0].token_ids for result in results]
    equal = sum(one == other for one, other in zip(*answers.values(), strict=True))
    after = core.stats()
    true, drafted = sum(after.accepted) - sum(before.accepted), after.draft_tokens - before.draft_tokens
    ratio = statistics.median(plain / drafts for plain, drafts in zip(taken["plain"], taken["drafts"], strict=True))
    speed = {name: len(prompts) * tokens / statistics.median(seconds) for name, seconds in taken.items()}
    print(
        f"{kind}, batch {len(prompts)}: {speed['plain']:.0f} tokens/s without drafts, {speed['drafts']:.0f} with: "
        f"{ratio:.2f} x; {true / max(drafted, 1):.0%} of the drafted tokens came true; "
        f"{equal} of {len(prompts)} answers equal"
    )


if __name__ == "__main__":
    raise SystemExit(main())
