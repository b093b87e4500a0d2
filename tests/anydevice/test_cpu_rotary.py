"""What the host's compiled kernels do to queries, keys and values before attention."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.fusion import RULES, all_ops
from engine.ops.compare import same_bits
from engine.ops.paged import read, stored
from kernels_cpu.library import library, open_library
from kernels_cpu.native import rotary
from platforms.cpu.plugin import CpuPlugin

OPS = all_ops(RULES)
KEPT = ["float32", "float16", "bfloat16", "float8_e4m3fn", "int8"]


@pytest.fixture(autouse=True, scope="module")
def opened():
    before = torch.get_num_threads()
    runtime = CpuPlugin().open(0)
    assert "kernel.cxx" in runtime.profile.features, runtime.profile.evidence
    yield runtime
    open_library(library().path, runtime.profile.limits["threads"], None)
    torch.set_num_threads(before)


def table(tokens: int, width: int) -> torch.Tensor:
    angles = torch.rand((tokens, width // 2)) * 6.28
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


def parts(tokens: int, heads: int, kv_heads: int, dim: int) -> tuple[torch.Tensor, ...]:
    """q, k and v as columns of one product."""
    wide = torch.randn(tokens, (heads + 2 * kv_heads) * dim)
    return wide.split([heads * dim, kv_heads * dim, kv_heads * dim], dim=-1)


def poisoned(blocks: int, page: int, kv_heads: int, dim: int, kept: str) -> torch.Tensor:
    return stored(torch.full((2, blocks, page, kv_heads, dim), torch.nan), getattr(torch, kept))


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize(
    ("dim", "turned"), [(2, 2), (8, 4), (24, 24), (64, 64), (80, 32), (96, 96), (112, 12), (256, 256)]
)
@pytest.mark.parametrize("tokens", [1, 3, 130])
def test_fused_writes_are_those_of_the_parts_bitwise_and_near_to_the_reference(kept, dim, turned, tokens):
    torch.manual_seed(dim + tokens)
    q, k, v = parts(tokens, 3, 2, dim)
    angles, slots = table(tokens, turned), torch.randperm(tokens * 2 + 8)[:tokens]
    slots[tokens // 2] = -1
    caches = [poisoned(tokens // 2 + 4, 4, 2, dim, kept) for _ in range(3)]
    scales = (torch.tensor([0.25]), torch.tensor([0.5])) if kept.startswith("float8") else ()
    turned_q, turned_k = rotary.rotary(q, k, angles, head_dim=dim)
    rotary.kv_write(turned_k, v, caches[0], slots, *scales, head_dim=dim)
    fused, _ = rotary.rotary_kv_write(q, k, angles, v, caches[1], slots, *scales, head_dim=dim)
    expected, _ = OPS["rotary_kv_write"].reference(q, k, angles, v, caches[2], slots, *scales, head_dim=dim)
    assert same_bits(turned_q, fused) and same_bits(turned_q, expected)
    assert same_bits(caches[0], caches[1]) and same_bits(caches[0], caches[2])


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("dim", [8, 24, 64, 128])
def test_heads_are_normalised_first(kept, dim):
    q, k, v = parts(7, 4, 2, dim)
    weights, angles, slots = (torch.randn(dim), torch.randn(dim)), table(7, dim), torch.tensor([3, -1, 0, 9, 4, 7, 11])
    caches = [poisoned(3, 4, 2, dim, kept) for _ in range(3)]
    settings: dict[str, Any] = {"eps": 1e-6, "head_dim": dim}
    own_q, own_k = rotary.qk_norm_rotary(q, weights[0], k, weights[1], angles, **settings)
    rotary.kv_write(own_k, v, caches[0], slots, head_dim=dim)
    given = (q, weights[0], k, weights[1], angles, v)
    fused, _ = rotary.qk_norm_rotary_kv_write(*given, caches[1], slots, **settings)
    assert same_bits(own_q, fused) and same_bits(caches[0], caches[1])
    exact, _ = OPS["qk_norm_rotary_kv_write"].reference(*(x.double() for x in given), caches[2], slots, **settings)
    torch.testing.assert_close(fused.double(), exact, rtol=1e-5, atol=1e-5)
    step = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 8e-3, "float8_e4m3fn": 0.13, "int8": 0.02}[kept]
    written = [read(cache.flatten(1, 2)[:, slots[slots >= 0]], torch.float64) for cache in caches[1:]]
    largest = float(written[1].abs().max())
    torch.testing.assert_close(*written, rtol=step, atol=step * (largest if kept == "int8" else 0.05))


@pytest.mark.parametrize("kept", ["float8_e4m3fn", "float16", "bfloat16"])
def test_values_of_every_kind_are_rounded_as_torch_rounds_them(kept):
    """Every half-way point between neighbours, what lies beyond the largest, the smallest, zeros and NaN."""
    dtype = getattr(torch, kept)
    raw = torch.arange(256, dtype=torch.uint8).view(dtype) if dtype.itemsize == 1 else None
    if raw is None:
        raw = torch.arange(65536).to(torch.int32).to(torch.uint16).view(dtype)
    exact = raw.float()[raw.float().isfinite()].unique()
    between = (exact[1:] + exact[:-1]) / 2
    x = torch.cat((exact, between, between.nextafter(exact[1:]), between.nextafter(exact[:-1])))
    x = torch.cat((x, torch.tensor([0.0, -0.0, 1e-30, -1e-30, 1e30, -1e30, torch.inf, -torch.inf])))
    x = x[: len(x) // 64 * 64].view(-1, 64)
    one = torch.ones(1)
    scales = (one, one) if dtype.itemsize == 1 else ()
    caches = [torch.zeros(2, 1, len(x), 1, 64).to(dtype) for _ in range(2)]
    slots = torch.arange(len(x))
    rotary.kv_write(x, -x, caches[0], slots, *scales, head_dim=64)
    OPS["kv_write"].reference(x, -x, caches[1], slots, *scales, head_dim=64)
    assert same_bits(*caches)
    nan = torch.full((1, 64), torch.nan)
    rotary.kv_write(nan, nan, caches[0], slots[:1], *scales, head_dim=64)
    assert caches[0][:, 0, 0].float().isnan().all()


def test_a_head_that_holds_nan_is_nan_and_its_neighbours_are_not():
    k = torch.randn(2, 3 * 16)
    k[0, 20] = torch.nan
    cache = poisoned(1, 2, 3, 16, "int8")
    rotary.kv_write(k, k, cache, torch.tensor([0, 1]), head_dim=16)
    found = read(cache, torch.float32)[0, 0]
    assert found[0, 1].isnan().all() and found[0, [0, 2]].isfinite().all() and found[1].isfinite().all()


@pytest.mark.parametrize("frequencies", [(1.0,), tuple(10000 ** (-i / 32) for i in range(32)), (0.5,) * 19])
def test_the_table_is_cosines_and_sines_of_products_in_float32(frequencies):
    positions = torch.cat((torch.arange(300), torch.tensor([4095, 8191, 65537, 131071, 1048575])))
    found = rotary.rotary_table(positions, frequencies=frequencies, factor=1.25)
    angles = (positions.float()[:, None] * torch.tensor(frequencies)).double()
    exact = torch.cat((angles.cos(), angles.sin()), dim=-1) * 1.25
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=2.5e-7)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_any_number_of_threads_gives_the_same_bits(threads):
    torch.manual_seed(0)
    q, k, v = parts(61, 9, 3, 64)
    angles, slots, cache = table(61, 64), torch.randperm(64)[:61], torch.zeros(2, 4, 16, 3, 64)
    expected, kept = OPS["rotary_kv_write"].reference(q, k, angles, v, cache.clone(), slots, head_dim=64)
    open_library(library().path, threads, None)
    found, _ = rotary.rotary_kv_write(q, k, angles, v, cache, slots, head_dim=64)
    assert same_bits(found, expected) and same_bits(cache, kept)
