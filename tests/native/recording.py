"""``python -m tests.native.recording FOLDER``: steps of a small model with the built-in one's structure, as its engine
runs them, written for ``driver.cpp``: a prefill, and decodes of each of ``BATCHES`` that graphs replay.

A recording has every native call of a step, from its inputs to logits, and what lay in each buffer before and after."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

BATCHES = (1, 8)
PREFILL = 70
CONTEXT = 100
"""Tokens of the prompt of a request that decodes."""
SIZES = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "num_hidden_layers": 2,
    "vocab_size": 1600,
    "tie_word_embeddings": True,
}
PAGE = 4096
TENSORS, NUMBERS, REALS = 12, 16, 4
Step = list[tuple[str, Sequence[Any], Sequence[int], Sequence[float]]]


class Steps:
    """``wanted``: names of what is still to be recorded, by what kind of step it is."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.wanted = folder, {"NONE": {PREFILL}, "FULL": set(BATCHES)}
        self.parts: dict[int, Step] = {}
        self.calls: Step | None = None
        self.before: dict[tuple[int, int], bytes] = {}
        self.keep: list[Any] = []

    def add(self, calls: Step) -> None:
        """About to run."""
        assert self.calls is not None
        self.calls += calls
        for _, tensors, _, _ in calls:
            for span in (span_of(x) for x in tensors if x is not None and x.numel()):
                if span not in self.before:
                    self.before[span] = read(*span)
        self.keep += [tensor for _, tensors, _, _ in calls for tensor in tensors]

    def record(self, name: str, run: Callable[[], Any]) -> Any:
        self.calls, self.before, self.keep = [], {}, []
        logits = run()
        (self.folder / f"{name}.replay").write_bytes(packed(self.calls, self.before, logits))
        self.calls = None
        return logits


def span_of(tensor: Any) -> tuple[int, int]:
    """Addresses from its first byte to behind its last one."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def read(start: int, end: int) -> bytes:
    import ctypes

    return ctypes.string_at(start, end - start)


def packed(calls: Step, before: dict[tuple[int, int], bytes], logits: Any) -> bytes:
    """The file. Spans that overlap are one buffer; a byte is as it was when it was first seen."""
    buffers: list[list[int]] = []
    for start, end in sorted(before):
        if buffers and start < buffers[-1][1]:
            buffers[-1][1] = max(end, buffers[-1][1])
        else:
            buffers.append([start, end])
    first = [bytearray(end - start) for start, end in buffers]

    def place(tensor: Any) -> tuple[int, int]:
        if tensor is None or not tensor.numel():
            return -1, 0
        start = tensor.data_ptr()
        at = next(at for at, (low, high) in enumerate(buffers) if low <= start < high)
        return at, start - buffers[at][0]

    for (start, _), found in reversed(before.items()):
        at = next(at for at, (low, high) in enumerate(buffers) if low <= start < high)
        first[at][start - buffers[at][0] : start - buffers[at][0] + len(found)] = found
    parts = [struct.pack("=8s3q", b"replay 1", len(buffers), len(calls), 1)]
    parts += [struct.pack("=2q", end - start, start % PAGE) for start, end in buffers]
    for symbol, tensors, sizes, reals in calls:
        places = [*map(place, tensors), *[(-1, 0)] * (TENSORS - len(tensors))]
        numbers = [*map(int, sizes), *[0] * (NUMBERS - len(sizes))]
        given = [*map(float, reals), *[0.0] * (REALS - len(reals))]
        flat = [number for pair in places for number in pair]
        parts.append(struct.pack(f"=64s{2 * TENSORS}q{NUMBERS}q{REALS}d", symbol.encode(), *flat, *numbers, *given))
    parts.append(struct.pack("=3q", *place(logits), logits.numel()))
    return b"".join([*parts, *first, *(read(start, end) for start, end in buffers)])


def watched(steps: Steps) -> ExitStack:
    """While it is open, steps are recorded as they run."""
    from engine.graphs.executor import Executor
    from kernels_cpu.record import Immediate
    from platforms.cpu import graphs

    flush, add, replay, run = graphs._Capture._flush, Immediate.add, graphs.ReplayGraph.replay, Executor.run

    def flushed(self: Any) -> Any:
        calls = list(self._recorder.calls)
        part = flush(self)
        if part is not None:
            steps.parts[id(part)] = calls
        return part

    def added(self: Any, *call: Any) -> None:
        if steps.calls is not None:
            steps.add([call])
        add(self, *call)

    def replayed(self: Any) -> None:
        if steps.calls is None:
            return replay(self)
        # What is no native call runs, and what it makes is there before the calls that read it.
        for part in self._parts:
            steps.add(steps.parts.get(id(part), []))
            part()

    def ran(self: Any, arrays: Any, shape: Any, *more: Any) -> Any:
        key = self._dispatcher.pick(shape)
        wanted = steps.wanted.get(key.kind, set())
        if shape.tokens not in wanted:
            return run(self, arrays, shape, *more)
        wanted.remove(shape.tokens)
        name = f"decode-{shape.tokens}" if key.kind == "FULL" else "prefill"
        return steps.record(name, lambda: run(self, arrays, shape, *more))

    stack = ExitStack()
    for owner, name, made in (
        (graphs._Capture, "_flush", flushed),
        (Immediate, "add", added),
        (graphs.ReplayGraph, "replay", replayed),
        (Executor, "run", ran),
    ):
        stack.enter_context(patch.object(owner, name, made))
    return stack


def main(folder: Path) -> None:
    from engine import LLM, SamplingParams
    from tests.block_files import write_blocks

    folder.mkdir(parents=True, exist_ok=True)
    write_blocks(folder / "model", lambda name: "Q8_0" if "embed" in name else "Q4_1", **SIZES)
    steps = Steps(folder)
    settings = {
        "max_model_len": 256,
        "max_num_seqs": 8,
        "kv_cache_memory_bytes": 4 << 20,
        "enable_prefix_caching": False,
    }
    compilation = {"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": list(BATCHES)}
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    with watched(steps), LLM(str(folder / "model"), platform="cpu", compilation_config=compilation, **settings) as llm:
        for count, length in ((1, PREFILL), *((batch, CONTEXT) for batch in BATCHES)):
            prompts = [[(3 + 7 * at + 31 * n) % 1500 + 3 for at in range(length)] for n in range(count)]
            llm.generate(prompts, params, use_tqdm=False)
    left = [f"{kind} {tokens}" for kind, more in steps.wanted.items() for tokens in sorted(more)]
    if left:
        sys.exit(f"no step of these kinds and tokens ran: {', '.join(left)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
