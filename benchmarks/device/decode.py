"""Decode of a model with random weights at one level, in a process of its own: ``python -m benchmarks.device.decode``.
Prints one JSON object."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.device.timing import copy_bandwidth
from engine.batch import Request
from engine.config.sources import from_keywords
from engine.core import EngineCore
from engine.sampling_params import SamplingParams

PROMPT, LENGTH = 16, 1024
"""Tokens that a request begins with, and those that it may have."""

SAID = "decode: "
"""Before each line about progress."""

SHAPES: dict[str, dict[str, int]] = {
    "8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
           "num_key_value_heads": 8, "vocab_size": 128256},
    "1b": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
           "num_key_value_heads": 8, "vocab_size": 128256},
    "tiny": {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8,
             "num_key_value_heads": 4, "vocab_size": 1024},
}  # fmt: skip
"""Llama 3.1 8B, Llama 3.2 1B, and one for a look at this program."""


def write_config(folder: Path, shape: str, dtype: str) -> None:
    fixed = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5}
    rest = {"rope_theta": 500000.0, "max_position_embeddings": 8192, "tie_word_embeddings": False, "torch_dtype": dtype}
    (folder / "config.json").write_text(json.dumps({**fixed, **rest, **SHAPES[shape]}))


def floor_bytes(core: EngineCore, batch: int, length: int) -> int:
    """What a step cannot do without reading: every weight but the rows of the embedding that nobody asked for, and the
    keys and values of ``length`` tokens of each request."""
    program = core.plan.program
    tables = {call.inputs[1] for call in program.calls if call.op == "embedding"}
    shared = {name for call in program.calls if call.op != "embedding" for name in call.inputs}
    constants, unread = core._worker.runner.executor.constants, {*program.caches, *(tables - shared)}
    total = sum(tensor.nbytes for name, tensor in constants.items() if name not in unread)
    for cache in program.caches.values():
        size = 2 if cache.dtype in ("bfloat16", "float16") else 4
        total += batch * length * cache.heads * sum(cache.dims) * size
    return total


def steps(core: EngineCore, batch: int, count: int) -> tuple[float, int]:
    """Median seconds of a step in which every request decodes, and the tokens of a request halfway."""
    params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
    for number in range(batch):
        core.add(Request(f"{batch}.{count}.{number}", [3 + (number + at) % 500 for at in range(PROMPT)], params, 0.0))
    spent = []
    while core.has_unfinished():
        begin = time.perf_counter()
        outputs = core.step()
        spent.append((time.perf_counter() - begin, sum(len(output.tokens) for output in outputs)))
    return statistics.median(one for one, tokens in spent if tokens == batch), PROMPT + count // 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--platform", default="auto")
    parser.add_argument("--shape", choices=SHAPES, default="8b")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--level", type=int, default=2)
    parser.add_argument("--batches", default="1,32,256")
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--copy-bytes", type=int, default=1 << 30)
    asked = parser.parse_args()
    batches = [int(word) for word in asked.batches.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        write_config(Path(folder), asked.shape, asked.dtype)
        given = from_keywords(
            model=folder,
            load_format="dummy",
            platform=asked.platform,
            dtype=asked.dtype,
            optimization_level=asked.level,
            max_model_len=LENGTH,
            max_num_seqs=max(batches),
        )
        begin = time.perf_counter()
        core = EngineCore(given)
        started = time.perf_counter() - begin
        try:
            copied = copy_bandwidth(core._worker.runtime, asked.copy_bytes)
            found: list[dict[str, Any]] = []
            print(f"{SAID}started in {started:.1f} s", file=sys.stderr, flush=True)
            for batch in batches:
                steps(core, batch, 4)
                spent, length = steps(core, batch, asked.steps)
                needed = floor_bytes(core, batch, length)
                found.append({"batch": batch, "seconds": spent, "bytes": needed, "share": needed / copied / spent})
                print(f"{SAID}batch {batch}: {1e3 * spent:.2f} ms a step", file=sys.stderr, flush=True)
            info = core.info
            print(
                json.dumps(
                    {
                        "shape": asked.shape,
                        "level": asked.level,
                        "platform": info.platform,
                        "product": core.plan.profile.product,
                        "graph_mode": info.graph_mode,
                        "kv_cache_dtype": core.plan["cache.kv_cache_dtype"],
                        "start_seconds": started,
                        "phases": dict(info.phases),
                        "copy_bytes_per_second": copied,
                        "decode": found,
                        "steps": dict(core.stats().steps),
                    }
                )
            )
        finally:
            core.close()


if __name__ == "__main__":
    main()
