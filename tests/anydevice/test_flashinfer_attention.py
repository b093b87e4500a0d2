"""Rows of paged attention that call FlashInfer, over stand-ins of it: against the op, captured and not."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import kernels_cuda.library
from engine.bind import load_target, workspace_of
from engine.graphs.preparing import prepare_alone
from engine.ops import OPS
from engine.ops.compare import specs_of
from engine.plan.kernels import call_facts
from kernels_cuda import steps, workspace
from kernels_cuda.manifest import KERNELS
from platforms.cuda.targets import TARGETS
from tests.device.prepared import check_steps
from tests.library_stand_ins import install_flashinfer

_zeros = torch.zeros
OP = OPS["attention"]
ROWS = {row.name: row for row in KERNELS if row.op == "attention" and row.name.startswith("flashinfer")}
DEVICE = {"flashinfer": "sm_80", "flashinfer_xqa": "sm_90", "flashinfer_trtllm": "sm_100"}
HEADS, GROUPS, DIM, PAGE, WIDTH, BLOCKS = 4, 2, 64, 16, 3, 12


@pytest.fixture(autouse=True)
def library(monkeypatch):
    install_flashinfer(monkeypatch)
    yield
    kernels_cuda.library.function.cache_clear()
    workspace.zeroed.cache_clear()
    steps.forget()


def attributes(**more: Any) -> dict[str, Any]:
    sizes = {"heads": HEADS, "kv_heads": GROUPS, "head_dim": DIM, "scale": 0.2, "window": None, "softcap": 0.0}
    return {**sizes, **more}


def given(new: list[int], lengths: list[int], pad: int = 0, stored: bool = False, seed: int = 0) -> tuple[Any, ...]:
    """Inputs of the op. ``pad``: rows of nobody at the end."""
    rng = torch.Generator().manual_seed(seed)
    starts = torch.tensor([0, *torch.tensor(new).cumsum(0).tolist()], dtype=torch.int32)
    q = torch.randn((int(starts[-1]) + pad, HEADS * DIM), generator=rng).bfloat16()
    cache = torch.randn((2, BLOCKS, PAGE, GROUPS, DIM), generator=rng)
    cache = cache.to(torch.float8_e4m3fn if stored else torch.bfloat16)
    blocks = torch.randperm(BLOCKS, generator=rng)[: len(new) * WIDTH].to(torch.int32).view(-1, WIDTH)
    scales = (torch.tensor([0.5]), torch.tensor([1.5])) if stored else ()
    return q, cache, blocks, starts, torch.tensor(lengths, dtype=torch.int32), *scales


def run(name: str, tensors: tuple[Any, ...], **more: Any) -> Any:
    prepare_alone(ROWS[name], OP.tensors, tensors, attributes(**more))
    return load_target(ROWS[name].target)(*tensors, **attributes(**more))


def same(found: Any, tensors: tuple[Any, ...], **more: Any) -> None:
    assert found.dtype == torch.bfloat16 and found.is_contiguous()
    expected = OP.reference(*tensors, **attributes(**more))
    torch.testing.assert_close(found.double(), expected.double(), rtol=3e-2, atol=2e-2)


BATCHES = {
    "mixed": ([5, 1, 17], [9, 33, 17], 0),
    "decode": ([1, 1, 1], [9, 33, 48], 0),
    "padded rows": ([5, 1], [9, 33], 3),
    "requests of nobody": ([5, 0, 1], [9, 0, 33], 1),
    "nothing": ([0, 0], [0, 0], 2),
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("window", [None, 7])
def test_a_step_gives_what_the_reference_gives(name, batch, window):
    new, lengths, pad = BATCHES[batch]
    tensors = given(new, lengths, pad)
    facts = {**attributes(window=window), **call_facts(specs_of(tensors))}
    for verdict in (ROWS[name].needs(TARGETS[DEVICE[name]], facts), ROWS[name].accepts(TARGETS[DEVICE[name]], facts)):
        assert verdict, verdict.reason
    same(run(name, tensors, window=window), tensors, window=window)
    assert bool(sys.modules["flashinfer.decode"].single) is (batch == "decode" and name != "flashinfer")


@pytest.mark.parametrize("name", ["flashinfer", "flashinfer_xqa"])
@pytest.mark.parametrize("batch", ["mixed", "decode"])
def test_a_stored_cache_is_read_with_its_scales(name, batch):
    new, lengths, pad = BATCHES[batch]
    tensors = given(new, lengths, pad, stored=True)
    facts = {**attributes(), **call_facts(specs_of(tensors))}
    assert ROWS[name].accepts(TARGETS["sm_90"], facts)
    before = tensors[0].clone()
    same(run(name, tensors), tensors)
    assert torch.equal(tensors[0], before)


@pytest.mark.parametrize("name", ROWS)
def test_a_row_says_what_it_keeps_to_work_in(name, monkeypatch):
    """What steps that are planned and steps that are not leave on the device, schedules aside: one is in the library,
    one is of graphs."""
    made = {}
    monkeypatch.setattr(torch, "zeros", lambda *size, **more: made.setdefault(len(made), _zeros(*size, **more)))
    decode, prompt = given([1, 1, 1], [9, 33, 48]), given([5, 1], [9, 33])
    run(name, prompt)
    run(name, decode)
    kept = sum(tensor.nbytes for tensor in made.values() if tensor.nbytes >= 1 << 20)
    said = workspace_of(ROWS[name], attributes(), specs_of(decode))
    assert kept > 0 and kept <= said <= kept + 2 * workspace.INTEGERS + workspace.COUNTERS


def test_scores_are_capped():
    tensors = given([5, 1], [9, 33])
    same(run("flashinfer", tensors, softcap=1.5), tensors, softcap=1.5)


def test_H_FUS_08_queries_of_a_packed_projection():
    for name in ROWS:
        tensors = given([1, 1], [9, 33])
        wide = torch.randn(2, 3 * HEADS * DIM).bfloat16()
        wide[:, : HEADS * DIM] = tensors[0]
        found = run(name, (wide[:, : HEADS * DIM], *tensors[1:]))
        same(found, tensors)


@pytest.mark.parametrize("name", ROWS)
def test_what_is_captured_reads_buffers_that_stay(name):
    """A replay runs what was recorded over the same tensors; only ``prepare`` is called in between."""
    prepare, function = load_target(ROWS[name].prepare), load_target(ROWS[name].target)
    first = given([1, 1, 1, 1], [0, 0, 0, 0])

    def host(tensors: tuple[Any, ...]) -> dict[str, Any]:
        return {
            "q": tensors[0][:0],
            "cache": tensors[1],
            **dict(zip(("blocks", "starts", "lengths"), (x.numpy() for x in tensors[2:5]), strict=True)),
        }

    buffers = [x.clone() for x in first]
    prepare(host(first), attributes(), True)
    kept = steps.current(steps.key_of(*_key(name, first)), 4)
    function(*buffers, **attributes())
    for seed, (new, lengths) in enumerate([([1, 1, 0, 0], [9, 33, 0, 0]), ([1, 1, 1, 1], [1, 2, 48, 16])]):
        step = given(new, lengths, pad=new.count(0), seed=seed + 1)
        for buffer, x in zip(buffers, step, strict=True):
            buffer.copy_(x)
        prepare(host(step), attributes(), True)
        now = steps.current(steps.key_of(*_key(name, step)), 4)
        assert now.wrapper is kept.wrapper and now.lengths is kept.lengths and now.absent is kept.absent
        found = function(*buffers, **attributes())
        same(found, step)
    if name == "flashinfer":
        (wrapper,) = sys.modules["flashinfer.prefill"].BatchPrefillWithPagedKVCacheWrapper.made
        assert wrapper.graph and wrapper.plans == 3


def _key(name: str, tensors: tuple[Any, ...]) -> tuple[Any, ...]:
    kind = {"flashinfer": "planned", "flashinfer_xqa": "decode", "flashinfer_trtllm": "context"}[name]
    return kind, tensors[1], torch.bfloat16, attributes()


def test_graphs_of_all_sizes_share_one_schedule_and_steps_beside_them_do_not():
    prepare = load_target(ROWS["flashinfer"].prepare)
    for requests in (1, 2, 4):
        tensors = given([1] * requests, [3] * requests)
        names = ("q", "cache", "blocks", "starts", "lengths")
        inputs = dict(zip(names, (*tensors[:2], *(x.numpy() for x in tensors[2:])), strict=True))
        prepare(inputs, attributes(), True)
        prepare(inputs, attributes(), False)
    made = sys.modules["flashinfer.prefill"].BatchPrefillWithPagedKVCacheWrapper.made
    graphs = [wrapper for wrapper in made if wrapper.graph]
    assert len(graphs) == 3 and len({id(wrapper.integers) for wrapper in graphs}) == 1
    assert len(made) == 4 and len({id(wrapper.floats) for wrapper in made}) == 1


def test_a_graph_of_longer_steps_is_refused():
    tensors = given([2, 1], [3, 3])
    inputs = {"q": tensors[0], "cache": tensors[1], "blocks": tensors[2].numpy(), "starts": tensors[3].numpy()}
    with pytest.raises(ValueError, match="one new token per request"):
        load_target(ROWS["flashinfer"].prepare)({**inputs, "lengths": tensors[4].numpy()}, attributes(), True)


def test_a_step_that_nobody_prepared_is_told():
    tensors = given([1, 1], [3, 3])
    with pytest.raises(RuntimeError, match="a step of 2 requests: nothing was prepared"):
        load_target(ROWS["flashinfer"].target)(*tensors, **attributes())
    run("flashinfer", tensors)
    with pytest.raises(RuntimeError, match="a step of 1 requests: 2 requests were prepared"):
        load_target(ROWS["flashinfer"].target)(*given([1], [3]), **attributes())


def test_what_a_device_would_check_passes_here():
    """The steps of the device tier, over the stand-ins."""
    runtime: Any = SimpleNamespace(
        device=torch.device("cpu"), compute=nullcontext, fetch=lambda x: SimpleNamespace(wait=lambda: x)
    )
    for row in [row for row in KERNELS if row.prepare]:
        runtime.profile = TARGETS[DEVICE[row.name]]
        check_steps(row, runtime)
