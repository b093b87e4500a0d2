"""Latents of odd sizes over several pages, padding as graphs need it, splits, and what must never be read."""

import pytest
import torch

from engine.ops.compare import same_bits
from kernels_triton import mla_attention as module
from kernels_triton.launch import recording
from kernels_triton.mla_attention import mla_attention
from tests.interpreter.rows import OPS

REFERENCE = OPS["mla_attention"].reference
BOUNDS = {torch.float32: (1e-4, 2e-5), torch.float16: (1e-2, 5e-3), torch.bfloat16: (5e-2, 2e-2)}


def world(new, lengths, page, heads, nope, rope, kv_rank, value, dtype=torch.float32):
    """A step of requests with these new tokens, NaN wherever no request has a token; and attributes."""
    torch.manual_seed(5)
    width = -(-max(lengths) // page)
    pool = len(lengths) * width
    blocks = torch.randperm(pool).to(torch.int32).view(len(lengths), width)
    cache = torch.full((pool, page, kv_rank + rope), float("nan"), dtype=dtype)
    for table, length in zip(blocks.tolist(), lengths, strict=True):
        for place in range(length):
            cache[table[place // page], place % page] = torch.randn(kv_rank + rope).to(dtype)
    starts = torch.tensor([0, *torch.tensor(new).cumsum(0).tolist()], dtype=torch.int32)
    q_nope, q_rope = (torch.randn(sum(new), heads * n).to(dtype) for n in (nope, rope))
    up = (torch.randn(heads * (nope + value), kv_rank) / kv_rank**0.5).to(dtype)
    tensors = q_nope, q_rope, cache, up, blocks, starts, torch.tensor(lengths, dtype=torch.int32)
    sizes = dict(heads=heads, nope=nope, rope=rope, kv_rank=kv_rank, value=value)
    return tensors, {**sizes, "scale": (nope + rope) ** -0.5}


SHAPES = [(1, 8, 4, 16, 8), (3, 12, 6, 20, 10), (5, 5, 18, 33, 7), (17, 8, 2, 16, 9), (2, 16, 16, 160, 16)]
"""heads, nope, rope, kv_rank, value"""


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_prompts_and_decodes_over_several_pages_match_the_reference(shape, dtype):
    tensors, sizes = world([7, 1, 19, 1], [7, 23, 40, 1], 3, *shape, dtype=dtype)
    relative, absolute = BOUNDS[dtype]
    found = mla_attention(*tensors, **sizes)
    wanted = REFERENCE(*(x.double() if x.is_floating_point() else x for x in tensors), **sizes)
    torch.testing.assert_close(found.double(), wanted, rtol=relative, atol=absolute)
    assert same_bits(found, mla_attention(*tensors, **sizes))


@pytest.mark.parametrize(("arch", "dtype"), [("gfx1100", torch.bfloat16), ("gfx1201", torch.float32)], ids=str)
@pytest.mark.parametrize("shape", [(2, 16, 50, 200, 16), (3, 8, 64, 512, 8)], ids=str)
def test_latents_taken_a_few_columns_at_a_time_give_the_same(shape, arch, dtype, monkeypatch):
    monkeypatch.setattr(module, "arch_of", lambda x: arch)
    tensors, sizes = world([3, 1], [9, 20], 3, *shape, dtype=dtype)
    relative, absolute = BOUNDS[dtype]
    wanted = REFERENCE(*(x.double() if x.is_floating_point() else x for x in tensors), **sizes)
    torch.testing.assert_close(mla_attention(*tensors, **sizes).double(), wanted, rtol=relative, atol=absolute)
    (given,) = constants(tensors, sizes)
    assert given["LOOP"] and given["CHUNK"] < (64 if dtype == torch.float32 else shape[3])


def constants(tensors, sizes):
    """Of what is launched, in order."""
    found = []
    with recording(lambda kernel, grid, values, warps, stages, constants: found.append(constants)):
        mla_attention(*tensors, **sizes)
    return found


def test_padded_requests_and_rows_behind_the_last_one_give_zeros():
    tensors, sizes = world([2, 1, 0, 0], [5, 9, 0, 0], 4, 3, 8, 4, 16, 8)
    wanted = mla_attention(*tensors, **sizes)
    padded = [torch.cat((x, torch.full((6, x.shape[1]), float("nan")))) for x in tensors[:2]]
    found = mla_attention(*padded, *tensors[2:], **sizes)
    torch.testing.assert_close(found[:3], wanted, rtol=1e-6, atol=1e-6)
    assert not found[3:].any()


def kernels(tensors, sizes):
    """Names of what is launched, in order."""
    names = []
    with recording(lambda kernel, *rest: names.append(kernel.__name__)):
        mla_attention(*tensors, **sizes)
    return names


def test_long_decodes_are_split_and_merged_in_order():
    tensors, sizes = world([1, 1, 0], [1100, 3, 0], 64, 3, 8, 4, 16, 8)
    assert kernels(tensors, sizes) == ["mla_kernel", "merge_kernel"]
    padded = [torch.cat((x, torch.full((1, x.shape[1]), float("nan")))) for x in tensors[:2]]
    found = mla_attention(*padded, *tensors[2:], **sizes)
    torch.testing.assert_close(found[:2], REFERENCE(*tensors, **sizes), rtol=1e-4, atol=2e-5)
    assert not found[2:].any()
    assert same_bits(found, mla_attention(*padded, *tensors[2:], **sizes))


def test_prompts_are_not_split():
    assert kernels(*world([40], [600], 64, 3, 8, 4, 16, 8)) == ["mla_kernel"]
