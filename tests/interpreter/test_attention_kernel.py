"""Steps that mix prompts and decodes, odd sizes, padding as graphs need it, and what must never be read."""

import pytest
import torch

from kernels_triton.attention import attention, attention_quantize_static
from tests.interpreter.rows import OPS

REFERENCE = OPS["attention"].reference


def world(new, lengths, *, heads, kv_heads, dim, page, dtype=torch.float32, cache_dtype=None):
    """A step of requests with these new tokens: q, cache, blocks, starts, lengths."""
    width = -(-max(lengths) // page)
    pool = len(lengths) * width
    blocks = torch.randperm(pool).to(torch.int32).view(len(lengths), width)
    cache = torch.randn(2, pool, page, kv_heads, dim).to(cache_dtype or dtype)
    starts = torch.tensor([0, *torch.tensor(new).cumsum(0).tolist()], dtype=torch.int32)
    q = torch.randn(sum(new), heads * dim).to(dtype)
    return q, cache, blocks, starts, torch.tensor(lengths, dtype=torch.int32)


def poison(cache, blocks, lengths, page):
    """NaN wherever no request has a token."""
    dirty = torch.full_like(cache, float("nan"))
    for table, length in zip(blocks.tolist(), lengths.tolist(), strict=True):
        for place in range(length):
            at = table[place // page], place % page
            dirty[:, at[0], at[1]] = cache[:, at[0], at[1]]
    return dirty


SHAPES = [
    (4, 2, 8, 4, None),
    (4, 2, 8, 4, 5),
    (3, 1, 12, 3, None),
    (7, 1, 16, 16, 1),
    (2, 2, 40, 1, None),
    (34, 2, 8, 2, 20),
]


@pytest.mark.parametrize(("heads", "kv_heads", "dim", "page", "window"), SHAPES)
def test_prompts_and_decodes_in_one_step_ignore_what_lies_past_each_length(heads, kv_heads, dim, page, window):
    given = world([1, 1, 6, 4, 1], [37, 1, 6, 9, 3], heads=heads, kv_heads=kv_heads, dim=dim, page=page)
    q, cache, blocks, starts, lengths = given
    how = dict(heads=heads, kv_heads=kv_heads, head_dim=dim, scale=0.3, window=window)
    truth = REFERENCE(q.double(), cache.double(), blocks, starts, lengths, **how)
    found = attention(q, poison(cache, blocks, lengths, page), blocks, starts, lengths, **how)
    torch.testing.assert_close(found.double(), truth, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("dim", [64, 80, 160])
def test_prompts_take_the_tile_of_their_head(dim):
    given = world([70, 1, 5], [75, 40, 5], heads=2, kv_heads=1, dim=dim, page=16, dtype=torch.float16)
    how = dict(heads=2, kv_heads=1, head_dim=dim, scale=dim**-0.5, window=50)
    truth = REFERENCE(*(x.double() if x.is_floating_point() else x for x in given), **how)
    relative, absolute = OPS["attention"].bound("float16", "float64")
    torch.testing.assert_close(attention(*given, **how).double(), truth, rtol=relative, atol=absolute)


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_decodes_alone_take_the_small_tile(dtype, window):
    q, cache, blocks, starts, lengths = world([1] * 4, [70, 9, 33, 1], heads=4, kv_heads=2, dim=16, page=4, dtype=dtype)
    how = dict(heads=4, kv_heads=2, head_dim=16, scale=0.3, window=window)
    truth = REFERENCE(q.double(), cache.double(), blocks, starts, lengths, **how)
    found = attention(q, cache, blocks, starts, lengths, **how)
    relative, absolute = OPS["attention"].bound(str(dtype).removeprefix("torch."), "float64")
    torch.testing.assert_close(found.double(), truth, rtol=relative, atol=absolute)


def test_padded_requests_and_tokens_give_zeros_and_change_nothing():
    q, cache, blocks, starts, lengths = world([3, 1], [5, 9], heads=2, kv_heads=1, dim=8, page=4)
    how = dict(heads=2, kv_heads=1, head_dim=8, scale=0.3, window=None)
    plain = attention(q, cache, blocks, starts, lengths, **how)
    for tokens, requests in ((6, 2), (4, 5), (9, 4)):
        more = torch.full((requests - 2, blocks.shape[1]), 2**30, dtype=torch.int32)
        padded = attention(
            torch.cat((q, torch.full((tokens - 4, 16), float("nan")))),
            cache,
            torch.cat((blocks, more)),
            torch.cat((starts, starts[-1:].expand(requests - 2))),
            torch.cat((lengths, torch.zeros(requests - 2, dtype=torch.int32))),
            **how,
        )
        assert torch.equal(padded[:4], plain)
        assert not padded[4:].any()


def test_block_numbers_behind_the_last_token_are_not_followed():
    q, cache, blocks, starts, lengths = world([2, 1], [3, 14], heads=2, kv_heads=2, dim=8, page=4)
    how = dict(heads=2, kv_heads=2, head_dim=8, scale=0.3, window=None)
    plain = attention(q, cache, blocks, starts, lengths, **how)
    wide = torch.full((2, 9), 2**30, dtype=torch.int32)
    wide[0, :1], wide[1, :4] = blocks[0, :1], blocks[1]
    assert torch.equal(attention(q, cache, wide, starts, lengths, **how), plain)


def test_a_cache_of_another_type_than_the_queries_is_read_in_float32():
    given = world([5, 1], [5, 7], heads=2, kv_heads=1, dim=8, page=4, dtype=torch.float32, cache_dtype=torch.bfloat16)
    how = dict(heads=2, kv_heads=1, head_dim=8, scale=0.3, window=None)
    truth = REFERENCE(*(x.double() if x.is_floating_point() else x for x in given), **how)
    torch.testing.assert_close(attention(*given, **how).double(), truth, rtol=1e-4, atol=2e-5)


def test_queries_and_cache_may_be_views_of_something_larger():
    q, cache, blocks, starts, lengths = world([2, 1], [6, 5], heads=2, kv_heads=1, dim=8, page=4)
    how = dict(heads=2, kv_heads=1, head_dim=8, scale=0.3, window=None)
    packed = torch.full((3, 48), float("nan"))
    packed[:, 16:32] = q
    layers = torch.full((*cache.shape[:2], 3, *cache.shape[2:]), float("nan"))
    layers[:, :, 1] = cache
    plain = attention(q, cache, blocks, starts, lengths, **how)
    assert torch.equal(attention(packed[:, 16:32], layers[:, :, 1], blocks, starts, lengths, **how), plain)


@pytest.mark.parametrize("storage", ["int8", "float8_e4m3fn"])
def test_H_FUS_01_a_result_is_rounded_before_it_is_quantised(storage):
    given = world([5, 1, 4], [9, 20, 4], heads=4, kv_heads=2, dim=16, page=4, dtype=torch.bfloat16)
    how = dict(heads=4, kv_heads=2, head_dim=16, scale=0.3, window=None)
    scale = torch.full((1,), 0.004)
    found = attention_quantize_static(*given, scale, storage=storage, **how)
    wanted = OPS["quantize_static"].reference(attention(*given, **how), scale, storage=storage)
    assert torch.equal(found.view(torch.uint8), wanted.view(torch.uint8))
