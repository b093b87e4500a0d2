"""Milliseconds per decode step by op: ``python benchmarks/profile_step.py [--batch 8] [--tokens 64]``."""

from __future__ import annotations

import argparse
import collections
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    from benchmarks.compare.cases import prompts
    from engine import LLM, SamplingParams

    spent: collections.Counter[str] = collections.Counter()

    def timed(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def run(*tensors: Any, **attributes: Any) -> Any:
            begin = time.perf_counter()
            result = function(*tensors, **attributes)
            spent[name] += time.perf_counter() - begin
            return result

        return run

    with LLM(max_model_len=1024, enable_prefix_caching=False, optimization_level=0) as llm:
        work = llm._core._worker.runner.executor._step(0)  # type: ignore[union-attr]
        params = SamplingParams(temperature=0, max_tokens=options.tokens, ignore_eos=True)
        llm.generate(prompts(options.batch), params, use_tqdm=False)
        work.calls = [replace(placed, function=timed(placed.function, placed.call.op)) for placed in work.calls]
        begin = time.perf_counter()
        llm.generate(prompts(options.batch), params, use_tqdm=False)
        whole = time.perf_counter() - begin
    print(f"batch {options.batch}: {1e3 * whole / options.tokens:.1f} ms a step, of which")
    for name, seconds in [*spent.most_common(), ("everything else", whole - sum(spent.values()))]:
        print(f"  {name:16} {1e3 * seconds / options.tokens:6.2f} ms  {100 * seconds / whole:4.1f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
