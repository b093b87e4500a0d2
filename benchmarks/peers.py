"""The engine and transformers (eager, float32) in turns on the same weights: decode at several batch sizes.

``python benchmarks/peers.py [--batches 1,8,16] [--rounds 3] [--threads N] [--json FILE]``. Each round runs every engine
once per batch; quoted are ratios of medians. Tokens per second count all generated tokens, the prompt's step included.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

NEW_TOKENS = {1: 96, 8: 64, 16: 48}
PROMPT = 16


def prompts(batch: int) -> list[list[int]]:
    draw = random.Random(batch)
    return [[draw.randrange(1000, 40000) for _ in range(PROMPT)] for _ in range(batch)]


def engine_decode() -> Callable[[int, int], None]:
    from engine import LLM, SamplingParams

    llm = LLM(max_model_len=1024, enable_prefix_caching=False)

    def run(batch: int, tokens: int) -> None:
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        found = llm.generate(prompts(batch), params, use_tqdm=False)
        assert all(len(result.outputs[0].token_ids) == tokens for result in found)

    return run


def transformers_decode() -> Callable[[int, int], None]:
    import torch

    from tests.reference_model import reference_model

    model = reference_model()

    def run(batch: int, tokens: int) -> None:
        with torch.inference_mode():
            ids = torch.tensor(prompts(batch))
            found = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                do_sample=False,
                pad_token_id=0,
            )
        assert found.shape[1] == PROMPT + tokens

    return run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", default="1,8,16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    runs = {"engine": engine_decode(), "transformers": transformers_decode()}
    import torch

    rows = []
    for batch in map(int, options.batches.split(",")):
        tokens = NEW_TOKENS.get(batch, 48)
        speeds: dict[str, list[float]] = {name: [] for name in runs}
        for run in runs.values():
            run(batch, 2)
        for _ in range(options.rounds):
            for name, run in runs.items():
                begin = time.perf_counter()
                run(batch, tokens)
                speeds[name].append(batch * tokens / (time.perf_counter() - begin))
        medians = {name: statistics.median(found) for name, found in speeds.items()}
        ratio = medians["engine"] / medians["transformers"]
        rows.append(
            {"case": "decode", "batch": batch, "ratio": round(ratio, 2), **{n: round(v, 1) for n, v in medians.items()}}
        )
        said = ", ".join(f"{name} {speed:.1f} tok/s" for name, speed in medians.items())
        print(f"decode, batch {batch:2}: {said}, ratio {ratio:.2f}", flush=True)
    if options.json:
        options.json.write_text(
            json.dumps({"threads": torch.get_num_threads(), "cores": os.cpu_count(), "rows": rows}, indent=1)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
