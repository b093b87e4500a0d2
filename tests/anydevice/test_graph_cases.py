"""Failures that users met with graphs elsewhere, against an engine that serves: replay gives what steps give."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import LLM
from engine.batch import Batch
from engine.core import EngineCore
from engine.errors import UserError
from engine.memory import activation_bytes
from engine.ops.compare import same_bits
from platforms.contract import DeviceError
from platforms.discovery import select
from tests.checkpoints import hf_config, random_weights, write_hf
from tests.core_requests import finish, prompt, request
from tests.word_tokenizer import write_word_tokenizer

SIZE = 16
PAGE_BYTES = 2 * SIZE * 2 * (16 + 16) * 4
MODES = ("PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graphs")
    config = hf_config()
    write_hf(folder, config, random_weights(config, seed=5))
    write_word_tokenizer(folder, config["vocab_size"])
    return folder


@contextmanager
def opened(model: Path, mode: str, sizes: list[int] | None = None, **more: Any) -> Iterator[EngineCore]:
    wish: dict[str, Any] = {"compilation_config": {"cudagraph_mode": mode}} if mode != "-O0" else {}
    if sizes:
        wish["compilation_config"]["cudagraph_capture_sizes"] = sizes
    settings = {
        "dtype": "float32", "kv_cache_dtype": "float32", "block_size": SIZE, "max_model_len": 64,
        "max_num_batched_tokens": 64, "max_num_seqs": 8,
        "kv_cache_memory_bytes": 40 * PAGE_BYTES, "optimization_level": 0 if mode == "-O0" else 2, **wish, **more,
    }  # fmt: skip
    with LLM(model=str(model), **settings) as llm:
        yield llm._open_core()


def generate(core: EngineCore, lengths: list[int], count: int = 6, tag: str = "r") -> dict[str, list[int]]:
    for at, length in enumerate(lengths):
        core.add(request(f"{tag}{at}", prompt(at, length), count))
    return {name: tokens for name, (tokens, _) in finish(core).items()}


def guard(core: EngineCore) -> None:
    """From now on every step asserts that it leaves blocks alone that none of its requests owns."""
    runner, caches = core._worker.runner, core._worker.runner.executor.constants
    names, inner = list(core.plan.program.caches), core._worker.runner.submit

    def submit(batch: Batch) -> Any:
        owned = {block for work in batch.work for block in work.blocks[0]}
        others = torch.tensor(sorted(set(range(core.info.num_blocks)) - owned))
        before = {name: caches[name][:, others].clone() for name in names}
        handle = inner(batch)
        assert all(same_bits(before[name], caches[name][:, others]) for name in names)
        return handle

    runner.submit = submit  # type: ignore[method-assign]


@pytest.mark.parametrize("mode", MODES)
def test_H_GRF_01_padded_rows_reach_no_block_of_anybody(model: Path, mode: str) -> None:
    with opened(model, "-O0") as plain, opened(model, mode, [1, 2, 4, 8]) as core:
        guard(core)
        for count in (3, 5, 6, 7):
            lengths = [3 + at for at in range(count)]
            assert generate(core, lengths) == generate(plain, lengths)
        ran = core.stats().steps
        assert ran["FULL"] + ran["PIECEWISE"] > 0 and core.stats().padding > 0


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "FULL_DECODE_ONLY"])
def test_H_GRF_02_nothing_is_left_of_a_larger_batch(model: Path, mode: str) -> None:
    with opened(model, mode, [8, 64]) as core:
        generate(core, [40, 37, 33, 30, 29, 28, 27, 26], 4, "big")
        found = generate(core, [2, 3, 4, 5, 6])
    with opened(model, mode, [8, 64]) as fresh, opened(model, "-O0") as plain:
        assert generate(fresh, [2, 3, 4, 5, 6]) == found == generate(plain, [2, 3, 4, 5, 6])


def test_H_GRF_03_a_replay_sees_the_lengths_of_its_own_step(model: Path) -> None:
    with opened(model, "-O0") as plain, opened(model, "FULL", [1, 64]) as core:
        for length in (5, 37, 12):
            assert generate(core, [length]) == generate(plain, [length])
        assert core.stats().steps["FULL"] > 15 and not core.stats().steps["PIECEWISE"]


@pytest.mark.parametrize("mode", MODES)
def test_H_GRF_05_a_prompt_that_comes_while_another_decodes(model: Path, mode: str) -> None:
    """A chunk of 64 beside one decoding request, in an engine that captured sizes for decoding."""
    more = {"max_model_len": 512, "max_num_batched_tokens": 65, "kv_cache_memory_bytes": 60 * PAGE_BYTES}

    def run(core: EngineCore) -> dict[str, list[int]]:
        tokens: dict[str, list[int]] = {}
        core.add(request("first", prompt(1, 4), 12))
        for turn in range(200):
            if turn == 3:
                core.add(request("late", prompt(2, 300), 4))
            for output in core.step():
                tokens.setdefault(output.request_id, []).extend(output.tokens)
            if turn > 3 and not core.has_unfinished():
                break
        return tokens

    with (
        opened(model, "-O0", **more) as plain,
        opened(model, mode, [1, 2, 4, *([] if mode == "FULL_DECODE_ONLY" else [65])], **more) as core,
    ):
        assert run(core) == run(plain)
        steps = core.stats().steps
        assert (steps["NONE"] > 0) == (mode == "FULL_DECODE_ONLY")


class Small:
    """Graphs of the device that is here, which has room for none above ``most`` tokens."""

    name = "small"

    def __init__(self, most: int) -> None:
        self._inner, self._most = select("auto").plugin.open(0).graphs(), most

    def new_pool(self) -> Any:
        return self._inner.new_pool()

    def capture(self, work: Any, pool: Any) -> Any:
        tokens = [len(value) for value in work.values if value is not None and value.dtype == torch.int64]
        if max(tokens, default=0) > self._most:
            raise DeviceError("out of memory: 12 MiB asked for, 3 MiB free")
        return self._inner.capture(work, pool)


def without_room(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    runtime = type(select("auto").plugin.open(0))
    small = Small(most)
    monkeypatch.setattr(runtime, "graphs", lambda self: small)


def test_H_GRF_04_a_capture_that_runs_out_of_memory_leaves_fewer_sizes(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    without_room(monkeypatch, 4)
    with caplog.at_level(logging.WARNING), opened(model, "-O0", optimization_level=2) as core:
        plan = core.plan
        assert plan["compilation.graph_mode"] == "FULL_AND_PIECEWISE"
        assert max(plan["compilation.capture_sizes"]) == 4
        assert "out of memory: 12 MiB" in plan.decisions["compilation.capture_sizes"].reason
        assert {key.tokens for key in core._worker.runner.executor.graphs.captured} <= {1, 2, 3, 4}
        generate(core, [5, 6, 7])
        assert core.stats().steps["FULL"] > 0


def test_H_GRF_04_what_was_planned_for_graphs_holds_them_in_every_start(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks, activations and graphs fit into the share, memory being all they are limited by."""
    runtime = type(select("auto").plugin.open(0))
    little = replace(select("auto").plugin.open(0).memory(), available=12 * 2**20)
    monkeypatch.setattr(runtime, "memory", lambda self: little)
    more = {"optimization_level": 2, "kv_cache_memory_bytes": None, "gpu_memory_utilization": 0.98, "max_num_seqs": 512}
    for _ in range(5):
        with opened(model, "-O0", max_num_batched_tokens=512, **more) as core:
            graphs, program = core._worker.runner.executor.graphs, core.plan.program
            taken = core.info.num_blocks * PAGE_BYTES + activation_bytes(program, 512, 512) + graphs.nbytes
            assert not graphs.failed and taken <= 0.98 * little.available
            assert core.info.num_blocks < 512 * 4, "memory is what limits them"
            generate(core, [5])
            assert core.stats().steps["FULL"] == 5


def test_an_explicit_size_that_cannot_be_captured_ends_the_start(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_room(monkeypatch, 4)
    with pytest.raises(UserError, match=r"(?s)capture.sizes.*8.*out of memory: 12 MiB"), opened(model, "FULL", [1, 8]):
        pass


def test_an_explicit_mode_that_cannot_be_captured_ends_the_start(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_room(monkeypatch, 0)
    with pytest.raises(UserError, match=r"(?s)graph.mode.*FULL.*out of memory: 12 MiB"), opened(model, "FULL"):
        pass


def test_a_default_mode_without_any_graph_says_why(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_room(monkeypatch, 0)
    with opened(model, "-O0", optimization_level=2) as core:
        decision = core.plan.decisions["compilation.graph_mode"]
        assert decision.value == "NONE" and "out of memory: 12 MiB" in decision.reason
        assert core.info.graph_mode == "NONE"
        generate(core, [5])
        assert core.stats().steps["FULL"] == core.stats().steps["PIECEWISE"] == 0


def test_H_GRF_07_memory_of_graphs_that_are_off_holds_blocks(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = type(select("auto").plugin.open(0))
    fixed = select("auto").plugin.open(0).memory()
    monkeypatch.setattr(runtime, "memory", lambda self: fixed)
    blocks = {}
    for mode in ("NONE", "FULL_AND_PIECEWISE"):
        share = 12 * 2**20 / fixed.available
        more = {"kv_cache_memory_bytes": None, "gpu_memory_utilization": share, "max_num_seqs": 512}
        with opened(model, mode, max_num_batched_tokens=512, **more) as core:
            blocks[mode] = core.info.num_blocks
            words = dict((label, reason) for label, _, reason in core.info.summary)["KV blocks"]
            assert ("of graphs" in words) == (mode != "NONE")
    assert blocks["NONE"] > blocks["FULL_AND_PIECEWISE"], blocks


def test_steps_of_different_sizes_run_programs_and_graphs_of_their_own(model: Path) -> None:
    """A fusion held to small steps, and ranges that a user ends, under graphs of both kinds."""
    wish = {"pass_config": {"rope_kvcache_max_tokens": 4}, "compile_ranges_endpoints": [20]}
    wish |= {"cudagraph_mode": "FULL_AND_PIECEWISE", "cudagraph_capture_sizes": [1, 4, 8, 30]}
    with opened(model, "-O0") as plain, opened(model, "-O0", optimization_level=2, compilation_config=wish) as core:
        ranges = [(one.start, one.end) for one in core.plan.ranges]
        assert ranges == [(1, 4), (5, 20), (21, 64)]
        guard(core)
        for lengths in ([3, 4, 5], [30], [2, 40, 1, 1, 1]):
            assert generate(core, lengths) == generate(plain, lengths)
        steps = core.stats().steps
        assert steps["FULL"] and steps["PIECEWISE"] and steps["NONE"]
