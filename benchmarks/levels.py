"""Start-up and decode speed of each level beside ``-O0``, in turns on this machine: ``python benchmarks/levels.py``."""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

PROMPT = "The history of the world is long, and"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--levels", default="0,1,2")
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    from engine import LLM, SamplingParams

    levels = [int(level) for level in asked.levels.split(",")]
    params = SamplingParams(temperature=0, max_tokens=asked.tokens, ignore_eos=True)
    engines: dict[int, Any] = {}
    for level in levels:
        begin = time.perf_counter()
        engines[level] = LLM(optimization_level=level)
        phases = dict(engines[level]._open_core().info.phases)
        spent = ", ".join(f"{name} {phases.get(name, 0):.2f}" for name in ("compile", "capture", "warm up"))
        print(f"-O{level}: started in {time.perf_counter() - begin:.1f} s ({spent}); the first start imports torch")
    for batch in map(int, asked.batches.split(",")):
        speeds: dict[int, list[float]] = {level: [] for level in levels}
        for _ in range(asked.rounds):
            for level, engine in engines.items():
                begin = time.perf_counter()
                engine.generate([PROMPT] * batch, params, use_tqdm=False)
                speeds[level].append(batch * asked.tokens / (time.perf_counter() - begin))
        for level, found in speeds.items():
            ratio = statistics.median(a / b for a, b in zip(found, speeds[levels[0]], strict=True))
            steps = engines[level]._open_core().stats().steps
            speed = f"{ratio:.2f} of -O{levels[0]} ({statistics.median(found):.1f} tokens/s)"
            print(f"batch {batch} -O{level}: {speed}, {steps}")


if __name__ == "__main__":
    main()
