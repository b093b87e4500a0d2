"""The row of latent attention that calls FlashInfer, over a stand-in of it: against the op, captured and not."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

import kernels_cuda.library
from engine.graphs.preparing import prepare_alone
from engine.ops import OPS
from engine.ops.compare import specs_of
from engine.plan.kernels import call_facts
from kernels_cuda import steps, workspace
from kernels_cuda.manifest import KERNELS
from kernels_cuda.mla_attention import mla_attention, prepare
from platforms.cuda.targets import TARGETS
from tests.library_stand_ins import install_flashinfer

OP = OPS["mla_attention"]
ROW = next(row for row in KERNELS if row.op == "mla_attention" and row.name == "flashinfer")
SIZES = {"heads": 2, "nope": 16, "rope": 64, "kv_rank": 512, "value": 24, "scale": 0.1}
PAGE, WIDTH, BLOCKS = 16, 3, 12


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


@pytest.mark.parametrize(
    ("new", "lengths", "pad"),
    [
        ([5, 1, 17], [9, 33, 17], 0),
        ([1, 1], [9, 48], 0),
        ([5, 0, 1], [9, 0, 33], 2),
        ([0], [0], 2),
    ],
)
def test_a_step_gives_what_the_reference_gives(new, lengths, pad):
    tensors = given(new, lengths, pad)
    facts = {**SIZES, **call_facts(specs_of(tensors))}
    assert ROW.needs(TARGETS["sm_90"], facts) and ROW.accepts(TARGETS["sm_90"], facts)
    prepare_alone(ROW, OP.tensors, tensors, SIZES)
    same(mla_attention(*tensors, **SIZES), tensors)


def test_what_is_captured_reads_buffers_that_stay():
    first = given([1, 1, 1], [0, 0, 0])

    def host(tensors: tuple[Any, ...]) -> dict[str, Any]:
        return {name: x if x.is_floating_point() else x.numpy() for name, x in zip(OP.tensors, tensors, strict=True)}

    buffers = [x.clone() for x in first]
    prepare(host(first), SIZES, True)
    mla_attention(*buffers, **SIZES)
    for seed, (new, lengths) in enumerate([([1, 1, 0], [9, 33, 0]), ([1, 1, 1], [1, 48, 16])]):
        step = given(new, lengths, pad=new.count(0), seed=seed + 1)
        for buffer, x in zip(buffers, step, strict=True):
            buffer.copy_(x)
        prepare(host(step), SIZES, True)
        same(mla_attention(*buffers, **SIZES), step)
    (wrapper,) = sys.modules["flashinfer.mla"].BatchMLAPagedAttentionWrapper.made
    assert wrapper.graph and wrapper.plans == 3


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"heads": 128}, True),
        ({"heads": 20}, False),
        ({"kv_rank": 256}, False),
        ({"rope": 32}, False),
        ({"max_num_batched_tokens": 8192, "heads": 128}, True),
        ({"max_num_batched_tokens": 16384, "heads": 128}, False),
        ({"mode": "STOCK_TORCH_COMPILE"}, False),
    ],
    ids=str,
)
def test_limits_at_their_edges(change, expected):
    tensors = given([1], [3])
    facts = {**SIZES, **call_facts(specs_of(tensors)), **change}
    assert bool(ROW.accepts(TARGETS["sm_90"], facts)) is expected
    wide = call_facts(specs_of((tensors[0].float(), *tensors[1:])))
    assert not ROW.accepts(TARGETS["sm_90"], {**facts, **wide})
