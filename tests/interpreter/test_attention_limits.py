"""Attention at every size it may meet: heads, pages, windows, caps, 8-bit caches, and keys split over programs."""

import itertools

import pytest
import torch

from engine.ops import quant
from kernels_triton import attention as module
from kernels_triton import attention_parts as parts
from kernels_triton.attention import attention, attention_quantize_static, choose
from kernels_triton.attention_tiles import FAMILIES, family
from kernels_triton.launch import recording
from tests.interpreter.rows import OPS
from tests.interpreter.test_attention_kernel import poison, world

REFERENCE = OPS["attention"].reference
SCALES = torch.full((1,), 0.7), torch.full((1,), 1.3)
FLOATS = tuple(getattr(torch, name) for name in quant.FLOATS)


def compare(found, given, scales=(), **how):
    wide = [x.double() if x.is_floating_point() else x for x in (*given, *scales)]
    name = str(found.dtype).removeprefix("torch.")
    relative, absolute = OPS["attention"].bound(name, "float64")
    torch.testing.assert_close(found.double(), REFERENCE(*wide, **how), rtol=relative, atol=absolute)


HEADS = [
    (8, 1, None, 0.0, torch.float32, None),
    (24, 3, 4, 2.5, torch.float32, None),
    (80, 16, None, 0.0, torch.float16, None),
    (96, 3, 7, 0.0, torch.bfloat16, None),
    (192, 16, None, 30.0, torch.bfloat16, None),
    (256, 1, 5, 0.0, torch.float16, None),
    (256, 16, None, 0.0, torch.float32, None),
    (8, 3, None, 0.0, torch.float16, FLOATS[0]),
    (80, 16, 6, 1.5, torch.bfloat16, FLOATS[1]),
    (256, 1, None, 0.0, torch.bfloat16, FLOATS[0]),
    (96, 16, None, 0.0, torch.float32, FLOATS[1]),
]


@pytest.mark.parametrize(("dim", "page", "window", "cap", "dtype", "kept"), HEADS, ids=str)
@pytest.mark.parametrize("new", [(4, 1, 7), (1, 1, 1)], ids=["mixed", "decode"])
def test_any_head_page_window_cap_and_type(dim, page, window, cap, dtype, kept, new):
    lengths = [9, 1, 21] if max(new) == 1 else [9, 3, 7]
    given = world(new, lengths, heads=6, kv_heads=2, dim=dim, page=page, dtype=dtype, cache_dtype=kept)
    scales = SCALES if kept else ()
    how = dict(heads=6, kv_heads=2, head_dim=dim, scale=dim**-0.5, window=window, softcap=cap)
    found = attention(*given, *scales, **how)
    compare(found, given, scales, **how)
    assert torch.equal(found, attention(*given, *scales, **how))


CHUNKED = [
    ("gfx1100", 256, torch.bfloat16, None),
    ("gfx1100", 192, torch.float16, None),
    ("gfx1100", 160, torch.bfloat16, FLOATS[0]),
    ("gfx1100", 128, torch.float32, None),
    ("gfx1201", 40, torch.float32, None),
    ("gfx1201", 200, torch.float32, FLOATS[0]),
]
"""Archs whose tiles do not take these heads at once."""


@pytest.mark.parametrize(("arch", "dim", "dtype", "kept"), CHUNKED, ids=str)
@pytest.mark.parametrize("new", [(4, 1, 7), (1, 1, 1), (70, 1, 1)], ids=["mixed", "decode", "prompt"])
def test_heads_taken_a_few_columns_at_a_time_give_the_same(arch, dim, dtype, kept, new, monkeypatch):
    monkeypatch.setattr(module, "arch_of", lambda x: arch)
    given = world(new, [max(new) + 20, 3, 7], heads=6, kv_heads=2, dim=dim, page=3, dtype=dtype, cache_dtype=kept)
    scales = SCALES if kept else ()
    how = dict(heads=6, kv_heads=2, head_dim=dim, scale=dim**-0.5, window=9, softcap=3.0)
    with recording(lambda kernel, grid, values, warps, stages, constants: chunks.append(constants["CHUNK"])):
        chunks: list[int] = []
        attention(*given, *scales, **how)
    assert chunks[0] < dim
    compare(attention(*given, *scales, **how), given, scales, **how)


@pytest.mark.parametrize("group", [1, 17, 71])
def test_a_group_of_any_size_shares_its_keys(group):
    given = world([2, 1], [5, 9], heads=group, kv_heads=1, dim=16, page=4, dtype=torch.float16)
    compare(attention(*given, **(how := one(group, 16))), given, **how)
    given = world([1, 1], [5, 9], heads=group, kv_heads=1, dim=16, page=4, dtype=torch.float16)
    compare(attention(*given, **how), given, **how)


def one(heads, dim, **more):
    return dict(heads=heads, kv_heads=1, head_dim=dim, scale=dim**-0.5, window=None, softcap=0.0) | more


@pytest.fixture
def short(monkeypatch):
    """Splits of 64 keys."""
    monkeypatch.setattr(parts, "SPAN", 64)


SPLIT = [
    (torch.float32, None, None, 0.0),
    (torch.float16, None, 40, 0.0),
    (torch.bfloat16, None, None, 2.0),
    (torch.bfloat16, FLOATS[0], 100, 0.0),
    (torch.float16, FLOATS[1], None, 1.5),
]


@pytest.mark.parametrize(("dtype", "kept", "window", "cap"), SPLIT, ids=str)
def test_split_keys_give_what_the_whole_gives(dtype, kept, window, cap, short, monkeypatch):
    lengths = [200, 1, 64, 65, 130]
    given = world([1] * 5, lengths, heads=4, kv_heads=2, dim=24, page=16, dtype=dtype, cache_dtype=kept)
    q, cache, blocks, starts, places = given
    scales = SCALES if kept else ()
    how = dict(heads=4, kv_heads=2, head_dim=24, scale=0.2, window=window, softcap=cap)
    dirty = (q, cache if kept else poison(cache, blocks, places, 16), blocks, starts, places)
    launched = launches(monkeypatch)
    found = attention(*dirty, *scales, **how)
    assert launched == ["attention_kernel", "merge_kernel"]
    compare(found, given, scales, **how)
    assert torch.equal(found, attention(*dirty, *scales, **how))


def launches(monkeypatch):
    """Names of kernels, as they are started."""
    names, launch = [], module.launch

    def noted(kernel, *values, **how):
        names.append(kernel.__name__)
        launch(kernel, *values, **how)

    for one in (module, parts):
        monkeypatch.setattr(one, "launch", noted)
    return names


def test_a_request_split_or_not_depends_on_no_neighbour_and_no_wider_table(short):
    given = world([1] * 3, [150, 90, 40], heads=2, kv_heads=1, dim=16, page=16, dtype=torch.float16)
    q, cache, blocks, starts, lengths = given
    how = one(2, 16)
    whole = attention(*given, **how)
    order = torch.tensor([2, 0, 1])
    turned = attention(q[order], cache, blocks[order], starts, lengths[order], **how)
    assert torch.equal(turned, whole[order])
    wide = torch.full((3, 40), 2**30, dtype=torch.int32)
    for at, length in enumerate(lengths.tolist()):
        wide[at, : -(-length // 16)] = blocks[at, : -(-length // 16)]
    assert torch.equal(attention(q, cache, wide, starts, lengths, **how), whole), "empty splits count for nothing"


def test_padding_of_split_steps_is_zero(short):
    q, cache, blocks, starts, lengths = world([1, 1], [100, 70], heads=2, kv_heads=1, dim=16, page=16)
    padded = attention(
        torch.cat((q, torch.full((3, 32), float("nan")))),
        cache,
        torch.cat((blocks, torch.full((3, blocks.shape[1]), 2**30, dtype=torch.int32))),
        torch.cat((starts, starts[-1:].expand(3))),
        torch.cat((lengths, torch.zeros(3, dtype=torch.int32))),
        **one(2, 16),
    )
    assert torch.equal(padded[:2], attention(q, cache, blocks, starts, lengths, **one(2, 16)))
    assert not padded[2:].any()


def test_split_results_are_rounded_before_they_are_quantised(short):
    given = world([1, 1], [100, 70], heads=2, kv_heads=1, dim=16, page=16, dtype=torch.bfloat16)
    scale = torch.full((1,), 0.004)
    found = attention_quantize_static(*given, scale, storage="int8", **one(2, 16))
    wanted = OPS["quantize_static"].reference(attention(*given, **one(2, 16)), scale, storage="int8")
    assert torch.equal(found, wanted)


def test_a_score_that_is_no_number_stays_one(short):
    q, *rest = world([1, 1], [100, 70], heads=2, kv_heads=1, dim=16, page=16)
    q[0, 0] = float("nan")
    found = attention(q, *rest, **one(2, 16))
    assert found[0, :16].isnan().all() and not found[1].isnan().any()


@pytest.mark.parametrize("arch", ["", *FAMILIES])
def test_splits_follow_from_shapes_and_bound_the_workspace(arch):
    sizes = family(arch)
    counts = (1, 7, 64, 1024)
    for requests, bound, heads in itertools.product(counts, (16, 512, 513, 131072), (1, 8)):
        found = choose(sizes, torch.bfloat16, 128, 4, heads, requests, requests, bound)
        assert found.splits == 1 or found.splits * requests <= parts.PARTIALS
        assert found.splits * found.span >= bound or found.splits == 1
        assert not found.span % found.tile.keys
        assert found.splits == 1 or requests * heads < parts.FILL * sizes.units
    assert choose(sizes, torch.bfloat16, 128, 4, 8, 5, 4, 131072).splits == 1, "steps with prompts are whole"
    assert choose(sizes, torch.bfloat16, 128, 4, 8, 1, 1, 131072).splits == 256


@pytest.mark.parametrize("flavour", FLOATS)
def test_H_QNT_10_what_is_written_in_8_bits_is_read_back_within_one_step(flavour):
    from kernels_triton.rotary import kv_write

    dim, page, tokens = 16, 4, 12
    k, v = (torch.randn(tokens, dim) for _ in range(2))
    cache = torch.zeros(2, 3, page, 1, dim).to(flavour)
    k_scale, v_scale = k.abs().max()[None] / 200, v.abs().max()[None] / 200
    kv_write(k, v, cache, torch.arange(tokens), k_scale, v_scale, head_dim=dim)
    for kept, x, scale in zip(cache, (k, v), (k_scale, v_scale), strict=True):
        torch.testing.assert_close(kept.view(tokens, dim).float() * scale, x, rtol=2**-4, atol=2**-9 * float(scale))
    blocks, lengths = torch.arange(3, dtype=torch.int32)[None], torch.tensor([tokens], dtype=torch.int32)
    starts = torch.tensor([0, 1], dtype=torch.int32)
    alone = torch.zeros(1, dim)
    found = attention(alone, cache, blocks, starts, lengths, k_scale, v_scale, **one(1, dim))
    torch.testing.assert_close(found[0], cache[1].view(tokens, dim).float().mean(0) * v_scale, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("flavour", FLOATS)
def test_what_lies_beyond_8_bits_is_stored_as_the_largest_value(flavour):
    from kernels_triton.rotary import kv_write

    cache = torch.zeros(2, 1, 2, 1, 4).to(flavour)
    k = torch.tensor([[1e6, -1e6, 1.0, 0.0], [500.0, -500.0, 448.0, 240.0]])
    wanted = cache.clone()
    kv_write(k, -k, cache, torch.arange(2), head_dim=4)
    OPS["kv_write"].reference(k, -k, wanted, torch.arange(2), head_dim=4)
    assert torch.equal(cache.view(torch.uint8), wanted.view(torch.uint8))
    assert float(cache.float().max()) == torch.finfo(flavour).max


@pytest.mark.parametrize("cap", [1e-2, 0.5, 3.0, 50.0, 1e5, 1e30])
def test_a_cap_of_any_size_costs_no_more_than_float32(cap):
    given = world((4, 1, 7), [9, 3, 7], heads=4, kv_heads=2, dim=24, page=16, dtype=torch.float32)
    how = dict(heads=4, kv_heads=2, head_dim=24, scale=24**-0.5, window=None, softcap=cap)
    found = attention(*given, **how)
    exact = REFERENCE(*(x.double() if x.is_floating_point() else x for x in given), **how)
    assert (found.double() - exact).abs().max() < 2e-6
