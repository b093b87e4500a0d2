"""Rows of latent attention that call FlashInfer, over stand-ins of it: against the op, captured and not."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

import kernels_cuda.library
from engine.bind import load_target
from engine.graphs.preparing import prepare_alone
from engine.ops import OPS
from engine.ops.compare import specs_of
from engine.plan.kernels import call_facts
from kernels_cuda import steps, workspace
from kernels_cuda.manifest import KERNELS
from platforms.cuda.targets import TARGETS
from tests.library_stand_ins import install_flashinfer

OP = OPS["mla_attention"]
ROWS = {row.name: row for row in KERNELS if row.op == "mla_attention" and row.name.startswith("flashinfer")}
DEVICE = {"flashinfer": "sm_90", "flashinfer_trtllm": "sm_100"}
SIZES = {"heads": 2, "nope": 16, "rope": 64, "kv_rank": 512, "value": 24, "scale": 0.1}
PAGE, WIDTH, BLOCKS = 32, 3, 12


@pytest.fixture(autouse=True)
def library(monkeypatch):
    install_flashinfer(monkeypatch)
    yield
    kernels_cuda.library.function.cache_clear()
    workspace.zeroed.cache_clear()
    steps.forget()


def given(new: list[int], lengths: list[int], pad: int = 0, seed: int = 0) -> tuple[Any, ...]:
    rng = torch.Generator().manual_seed(seed)
    starts = torch.tensor([0, *torch.tensor(new).cumsum(0).tolist()], dtype=torch.int32)
    rows = int(starts[-1]) + pad
    q_nope, q_rope = (torch.randn((rows, 2 * n), generator=rng).bfloat16() for n in (16, 64))
    cache = torch.randn((BLOCKS, PAGE, 576), generator=rng).bfloat16()
    up = (torch.randn((2 * 40, 512), generator=rng) / 512**0.5).bfloat16()
    blocks = torch.randperm(BLOCKS, generator=rng)[: len(new) * WIDTH].to(torch.int32).view(-1, WIDTH)
    return q_nope, q_rope, cache, up, blocks, starts, torch.tensor(lengths, dtype=torch.int32)


def same(found: Any, tensors: tuple[Any, ...]) -> None:
    expected = OP.reference(*tensors, **SIZES)
    torch.testing.assert_close(found.double(), expected.double(), rtol=5e-2, atol=2e-2)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize(
    ("new", "lengths", "pad"),
    [
        ([5, 1, 17], [9, 65, 17], 0),
        ([1, 1], [9, 96], 0),
        ([1, 1], [9, 96], 3),
        ([5, 0, 1], [9, 0, 65], 2),
        ([0], [0], 2),
    ],
)
def test_a_step_gives_what_the_reference_gives(name, new, lengths, pad):
    tensors, row = given(new, lengths, pad), ROWS[name]
    facts, profile = {**SIZES, **call_facts(specs_of(tensors))}, TARGETS[DEVICE[name]]
    for verdict in (row.needs(profile, facts), row.accepts(profile, facts)):
        assert verdict, verdict.reason
    prepare_alone(row, OP.tensors, tensors, SIZES)
    same(load_target(row.target)(*tensors, **SIZES), tensors)
    single, made = (
        sys.modules["flashinfer.mla"].single,
        sys.modules["flashinfer.mla"].BatchMLAPagedAttentionWrapper.made,
    )
    assert bool(single) is (new == [1, 1] and name == "flashinfer_trtllm")
    assert bool(made) is (any(new) and not single)


@pytest.mark.parametrize("name", ROWS)
def test_H_FUS_08_queries_of_a_packed_projection(name):
    tensors, row = given([1, 1], [9, 65]), ROWS[name]
    wide = torch.randn(2, 2 * (16 + 64)).bfloat16()
    wide[:, :32], wide[:, 32:] = tensors[:2]
    prepare_alone(row, OP.tensors, tensors, SIZES)
    same(load_target(row.target)(wide[:, :32], wide[:, 32:], *tensors[2:], **SIZES), tensors)


@pytest.mark.parametrize("name", ROWS)
def test_what_is_captured_reads_buffers_that_stay(name):
    prepare, mla_attention = load_target(ROWS[name].prepare), load_target(ROWS[name].target)
    first = given([1, 1, 1], [0, 0, 0])

    def host(tensors: tuple[Any, ...]) -> dict[str, Any]:
        return {name: x if x.is_floating_point() else x.numpy() for name, x in zip(OP.tensors, tensors, strict=True)}

    buffers = [x.clone() for x in first]
    prepare(host(first), SIZES, True)
    mla_attention(*buffers, **SIZES)
    for seed, (new, lengths) in enumerate([([1, 1, 0], [9, 65, 0]), ([1, 1, 1], [1, 96, 32])]):
        step = given(new, lengths, pad=new.count(0), seed=seed + 1)
        for buffer, x in zip(buffers, step, strict=True):
            buffer.copy_(x)
        prepare(host(step), SIZES, True)
        same(mla_attention(*buffers, **SIZES), step)
    made = sys.modules["flashinfer.mla"].BatchMLAPagedAttentionWrapper.made
    assert [(wrapper.graph, wrapper.plans) for wrapper in made] == [(True, 3)] * (name == "flashinfer")


BOTH, WRAPPER = {"flashinfer", "flashinfer_trtllm"}, {"flashinfer"}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, BOTH),
        ({"heads": 128}, BOTH),
        ({"heads": 20}, set()),
        ({"heads": 96}, set()),
        ({"kv_rank": 256}, set()),
        ({"rope": 32}, set()),
        ({"max_num_batched_tokens": 8192, "heads": 128}, BOTH),
        ({"max_num_batched_tokens": 16384, "heads": 128}, set()),
        ({"mode": "STOCK_TORCH_COMPILE"}, set()),
        ({"page": 16}, WRAPPER),
        ({"page": 64}, BOTH),
        ({"page": 128}, set()),
        ({"dtype": torch.float16}, WRAPPER),
        ({"dtype": torch.float32}, set()),
    ],
    ids=str,
)
def test_limits_at_their_edges(change, expected):
    change = dict(change)
    page, kind = change.pop("page", PAGE), change.pop("dtype", torch.bfloat16)
    tensors = given([1], [3])
    tensors = (*(x.to(kind) for x in tensors[:2]), torch.empty((BLOCKS, page, 576)).to(kind), tensors[3].to(kind))
    facts = {**SIZES, **call_facts(specs_of((*tensors, *given([1], [3])[4:]))), **change}
    assert {name for name in ROWS if ROWS[name].accepts(TARGETS["sm_100"], facts)} == expected
    mixed = call_facts(specs_of((tensors[0].double(), *given([1], [3])[1:])))
    assert not [name for name in ROWS if ROWS[name].accepts(TARGETS["sm_100"], {**facts, **mixed})]


def test_precompiled_kernels_are_for_two_architectures_and_lead_there():
    assert {target for target in TARGETS if ROWS["flashinfer_trtllm"].needs(TARGETS[target], {})} == {
        "sm_100",
        "sm_103",
    }
    assert ROWS["flashinfer_trtllm"].priority > ROWS["flashinfer"].priority
    assert all(row.prepare and row.graph_batches == "single" and not row.batch_invariant for row in ROWS.values())
