"""Rotation and cache writes: partial rotation, odd heads, slots of -1, caches of another type or layout."""

import pytest
import torch

from kernels_triton import mla, norm, rotary
from tests.interpreter.rows import OPS

TOKENS, HEADS, KV_HEADS, PAGE = 4, 3, 2, 4


def world(dim, width, *, dtype=torch.float32, cache_dtype=None):
    """q, k, v, table, cache, slots."""
    q, k, v = (torch.randn(TOKENS, count * dim).to(dtype) for count in (HEADS, KV_HEADS, KV_HEADS))
    angles = torch.rand(TOKENS, width // 2) * 6.28
    cache = torch.randn(2, 5, PAGE, KV_HEADS, dim).to(cache_dtype or dtype)
    return q, k, v, torch.cat((angles.cos(), angles.sin()), -1), cache, torch.tensor([17, -1, 3, 0])


@pytest.mark.parametrize(("dim", "width"), [(8, 4), (80, 32), (6, 6), (20, 2)])
def test_only_the_first_columns_of_a_head_may_turn(dim, width):
    q, k, v, table, cache, slots = world(dim, width)
    weights = torch.randn(dim), torch.randn(dim)
    given, wanted = cache.clone(), cache.clone()
    reference = OPS["qk_norm_rotary_kv_write"].reference
    truth, _ = reference(q, weights[0], k, weights[1], table, v, wanted, slots, eps=1e-6, head_dim=dim)
    found, written = rotary.qk_norm_rotary_kv_write(
        q, weights[0], k, weights[1], table, v, given, slots, eps=1e-6, head_dim=dim
    )
    torch.testing.assert_close(found, truth, rtol=2e-5, atol=1e-5)
    torch.testing.assert_close(given, wanted, rtol=2e-5, atol=1e-5)
    assert written is given


def test_slots_of_minus_one_write_nothing():
    q, k, v, table, cache, slots = world(8, 8)
    before, none = cache.clone(), torch.full_like(slots, -1)
    rotary.kv_write(k, v, cache, none, head_dim=8)
    rotary.rotary_kv_write(q, k, table, v, cache, none, head_dim=8)
    assert torch.equal(cache, before)
    latents = cache.flatten(3)[0].contiguous()
    before = latents.clone()
    mla.mla_write(torch.randn(TOKENS, 8), torch.randn(TOKENS, 8), latents, none)
    mla.rotary_mla_write(q, torch.randn(TOKENS, 8), table, torch.randn(TOKENS, 8), latents, none, head_dim=8)
    assert torch.equal(latents, before)


@pytest.mark.parametrize("cache_dtype", [torch.bfloat16, torch.float16])
def test_a_cache_of_another_type_is_written_in_its_own(cache_dtype):
    q, k, v, table, cache, slots = world(8, 8, cache_dtype=cache_dtype)
    wanted, given = cache.clone(), cache.clone()
    OPS["kv_write"].reference(k, v, wanted, slots, head_dim=8)
    rotary.kv_write(k, v, given, slots, head_dim=8)
    assert torch.equal(given, wanted)
    OPS["rotary_kv_write"].reference(q, k, table, v, wanted, slots, head_dim=8)
    rotary.rotary_kv_write(q, k, table, v, given, slots, head_dim=8)
    torch.testing.assert_close(given, wanted, rtol=2**-7, atol=1e-6)


def test_a_cache_may_be_a_slice_of_one_for_all_layers():
    _, k, v, _, cache, slots = world(8, 8)
    layers = torch.zeros(*cache.shape[:2], 3, *cache.shape[2:])
    layers[:, :, 1] = cache
    rotary.kv_write(k, v, layers[:, :, 1], slots, head_dim=8)
    OPS["kv_write"].reference(k, v, cache, slots, head_dim=8)
    assert torch.equal(layers[:, :, 1], cache)
    assert not layers[:, :, 0].any() and not layers[:, :, 2].any()


def test_H_FUS_03_norm_weights_of_another_type_than_the_activations():
    q, k, _, table, _, _ = world(16, 16, dtype=torch.bfloat16)
    weights = torch.randn(16), torch.randn(16)
    how = dict(eps=1e-6, head_dim=16)
    found = rotary.qk_norm_rotary(q, weights[0], k, weights[1], table, **how)
    wanted = OPS["qk_norm_rotary"].reference(q, weights[0], k, weights[1], table, **how)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == torch.bfloat16
        torch.testing.assert_close(one, other, rtol=2**-6, atol=2**-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_H_FUS_01_a_head_is_rounded_between_its_norm_and_its_turn(dtype):
    q, k, _, table, _, _ = world(16, 16, dtype=dtype)
    weights = [torch.randn(16).to(dtype) for _ in range(2)]
    found = rotary.qk_norm_rotary(q, weights[0], k, weights[1], table, eps=1e-6, head_dim=16)
    normed = [norm.rms_norm(x, weight, eps=1e-6) for x, weight in zip((q, k), weights, strict=True)]
    for one, other in zip(found, rotary.rotary(*normed, table, head_dim=16), strict=True):
        assert float((one == other).float().mean()) > 0.98


def test_a_key_of_several_heads_lies_behind_the_latent():
    q, k, _, table, _, slots = world(8, 8)
    latent, given = torch.randn(TOKENS, 5), torch.randn(5, PAGE, 5 + 2 * 8)
    wanted = given.clone()
    truth, _ = OPS["rotary_mla_write"].reference(q, k, table, latent, wanted, slots, head_dim=8)
    found, _ = mla.rotary_mla_write(q, k, table, latent, given, slots, head_dim=8)
    torch.testing.assert_close((found, given), (truth, wanted), rtol=2e-5, atol=1e-5)
