"""Decode speed with and without structured output, in turns: ``python benchmarks/structured.py [--quick]``.

One engine, one batch, the same prompts and the same number of tokens. Free rows ignore the end token; held rows answer
a schema whose array never ends by itself. Tokens are drawn in both, or best in both.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.compare.machine import describe
from engine import LLM, SamplingParams, StructuredOutputsParams

SHARE = 0.10
LONG = 10_000  # items; no answer here gets that far
ITEM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
}
SCHEMA = {"type": "array", "items": ITEM, "minItems": LONG}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a GGUF file or folder; default: the built-in model")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=128, help="of each answer")
    parser.add_argument("--level", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="half the tokens, three rounds")
    asked = parser.parse_args()
    tokens, rounds = (asked.tokens // 2, 3) if asked.quick else (asked.tokens, asked.rounds)
    worst = 0.0
    with LLM(asked.model, optimization_level=asked.level, max_model_len=2048, max_num_seqs=asked.batch) as llm:
        for name, temperature in (("best token", 0.0), ("drawn, temperature 1", 1.0)):
            common = {"temperature": temperature, "max_tokens": tokens, "ignore_eos": True, "seed": 1}
            kinds = {
                "free": SamplingParams(**common),
                "held": SamplingParams(**common, structured_outputs=StructuredOutputsParams(json=SCHEMA)),
            }
            for params in kinds.values():
                _seconds_per_step(llm, asked.batch, params)
            taken: dict[str, list[float]] = {kind: [] for kind in kinds}
            for turn in range(rounds):
                for kind in sorted(kinds, reverse=bool(turn % 2)):
                    taken[kind].append(_seconds_per_step(llm, asked.batch, kinds[kind]))
            ratio = statistics.median(held / free for held, free in zip(taken["held"], taken["free"], strict=True))
            worst = max(worst, ratio - 1)
            free, held = (1000 * statistics.median(taken[kind]) for kind in ("free", "held"))
            print(f"{name}, batch {asked.batch}: {free:.2f} ms per step free, {held:.2f} held: {ratio - 1:+.1%}")
    machine = describe()
    print(f"{machine['date']}, {machine['processor']}, {machine['cores']} cores; goal: at most {SHARE:.0%} more")
    return 0 if worst <= SHARE else 1


def _seconds_per_step(llm: LLM, batch: int, params: SamplingParams) -> float:
    begin = time.perf_counter()
    results = llm.generate([f"Story {row}: people" for row in range(batch)], params, use_tqdm=False)
    seconds = time.perf_counter() - begin
    counts = {len(result.outputs[0].token_ids) for result in results}
    assert counts == {params.max_tokens}, counts
    return seconds / max(counts)


if __name__ == "__main__":
    raise SystemExit(main())
