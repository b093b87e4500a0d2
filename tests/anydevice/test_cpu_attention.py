"""Attention of the host's compiled kernels over paged caches, beside float64; whatever lies in slots that are not a
request's own is NaN."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch

from engine.ops import OPS
from engine.ops.compare import same_bits
from engine.ops.paged import stored
from kernels_cpu.library import library, open_library
from kernels_cpu.native.attention import MOST_PARTS, SPAN, alike, amx_bf16, attention
from kernels_cpu.predicates import TILES_BF16
from platforms.cpu.plugin import CpuPlugin


@pytest.fixture(autouse=True, scope="module")
def opened():
    before = torch.get_num_threads()
    runtime = CpuPlugin().open(0)
    assert "kernel.cxx" in runtime.profile.features, runtime.profile.evidence
    yield runtime
    open_library(library().path, runtime.profile.limits["threads"], None)
    torch.set_num_threads(before)


@dataclass(frozen=True, slots=True)
class Step:
    """Tensors of one call, and its attributes."""

    tensors: tuple[torch.Tensor, ...]
    attributes: dict[str, object]

    def run(self) -> torch.Tensor:
        return attention(*self.tensors, **self.attributes)

    def truth(self) -> torch.Tensor:
        given = [x.double() if x.is_floating_point() else x for x in self.tensors]
        return OPS["attention"].reference(*given, **self.attributes)

    def alone(self, request: int) -> Step:
        """The call that has this request only, in blocks and rows of its own."""
        q, cache, blocks, starts, lengths, *scales = self.tensors
        rows = slice(int(starts[request]), int(starts[request + 1]))
        own = blocks[request : request + 1, : -(-int(lengths[request]) // cache.shape[2])]
        moved = torch.arange(own.shape[1], dtype=torch.int32).flip(0)[None]
        kept = cache[:, own[0].long()].flip(1).contiguous()
        start = torch.tensor([0, rows.stop - rows.start], dtype=torch.int32)
        tensors = (q[rows].clone(), kept, moved, start, lengths[request : request + 1].clone(), *scales)
        return Step(tensors, self.attributes)


def step(
    requests: list[tuple[int, int]],
    heads: int = 4,
    kv_heads: int = 2,
    dim: int = 16,
    page: int = 16,
    kept: str = "float32",
    window: int | None = None,
    softcap: float = 0.0,
    padding: int = 0,
    seed: int = 0,
) -> Step:
    """``requests``: new tokens and length of each."""
    rng = torch.Generator().manual_seed(seed)
    needed = [-(-length // page) for _, length in requests]
    total, width = sum(needed) + 3, max(needed) + 2
    order = torch.randperm(total, generator=rng).to(torch.int32)
    dtype = getattr(torch, kept)
    cache = stored(torch.full((2, total, page, kv_heads, dim), torch.nan), dtype)
    blocks = torch.full((len(requests) + padding, width), int(order[-1]), dtype=torch.int32)
    at = 0
    for row, ((_, length), count) in enumerate(zip(requests, needed, strict=True)):
        own = order[at : at + count]
        at += count
        blocks[row, :count] = own
        values = torch.randn((2, count * page, kv_heads, dim), generator=rng)
        view = cache[:, own.long()].flatten(1, 2)
        view[:, :length] = stored(values[:, :length], dtype)
        cache[:, own.long()] = view.unflatten(1, (count, page))
    new = [count for count, _ in requests]
    starts = torch.tensor([0, *new, *[0] * padding]).cumsum(0).to(torch.int32)
    lengths = torch.tensor([length for _, length in requests] + [0] * padding, dtype=torch.int32)
    q = torch.randn((sum(new) + padding, heads * dim), generator=rng)
    q[sum(new) :] = torch.nan
    scales = (torch.full((1,), 0.6), torch.full((1,), 1.3)) if kept.startswith("float8") else ()
    attributes = {"heads": heads, "kv_heads": kv_heads, "head_dim": dim, "scale": dim**-0.5}
    attributes |= {"window": window, "softcap": softcap}
    return Step((q, cache, blocks, starts, lengths, *scales), attributes)


MIXED = [(1, 1), (5, 5), (1, 40), (7, 19), (1, 131), (130, 130), (3, 260)]


def check(call: Step, relative: float = 2e-5, absolute: float = 1e-5) -> None:
    torch.testing.assert_close(call.run().double(), call.truth(), rtol=relative, atol=absolute)


@pytest.mark.parametrize("dim", [8, 16, 24, 40, 64, 80, 96, 112, 128, 192, 256])
@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 1), (4, 4), (9, 3)])
def test_heads_of_every_width(dim, heads, kv_heads):
    check(step(MIXED, heads, kv_heads, dim, seed=dim))


@pytest.mark.parametrize(
    ("heads", "kv_heads"), [(1, 1), (4, 2), (6, 2), (5, 1), (6, 1), (7, 1), (16, 2), (9, 1), (71, 1)]
)
def test_query_heads_share_kv_heads(heads, kv_heads):
    check(step(MIXED, heads, kv_heads, 32, seed=heads))


@pytest.mark.parametrize("kept", ["float32", "float16", "bfloat16", "float8_e4m3fn", "int8"])
@pytest.mark.parametrize("dim", [8, 24, 64])
@pytest.mark.parametrize("page", [1, 4, 16, 32])
def test_every_cache_over_every_page(kept, dim, page):
    check(step(MIXED, 6, 2, dim, page, kept, padding=2, seed=page))


@pytest.mark.parametrize("window", [None, 1, 3, 17, 128, 129, 300])
@pytest.mark.parametrize("softcap", [0.0, 1.5, 30.0])
def test_windows_and_caps(window, softcap):
    check(step([*MIXED, (60, 700), (1, 1000)], 6, 2, 24, 4, window=window, softcap=softcap, seed=7))


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 127, 128, 129, 255, 256, 257, 1024, 3000])
@pytest.mark.parametrize("new", [1, 2, 5, 100])
def test_lengths_around_the_edges_of_spans(length, new):
    check(step([(min(new, length), length)], 3, 1, 16, seed=length))


def test_more_spans_than_there_is_room_for_stay_with_one_thread():
    lengths = [SPAN * 40 + at for at in range(8)]
    assert len(lengths) * 40 > MOST_PARTS
    call = step([(1, length) for length in lengths], 2, 1, 8)
    check(call)
    for request in range(len(lengths)):
        assert same_bits(call.run()[request : request + 1], call.alone(request).run())


@pytest.mark.parametrize("kept", ["float32", "float16", "int8"])
def test_a_request_gets_the_same_bits_beside_any_neighbours_and_from_any_number_of_threads(kept):
    requests = [*MIXED, (1, 900), (40, 2000), (2, 513), (1, 128)]
    call = step(requests, 9, 3, 64, kept=kept, padding=3, window=None, seed=11)
    found = call.run()
    for threads in (1, 2, 3, 5):
        open_library(library().path, threads, None)
        assert same_bits(call.run(), found)
        for request in range(len(requests)):
            rows = slice(*call.tensors[3][request : request + 2].tolist())
            assert same_bits(call.alone(request).run(), found[rows])


@pytest.mark.parametrize("cut", [2, 37, 128, 131])
def test_a_prompt_in_chunks_gets_the_bits_of_the_whole(cut):
    whole = step([(300, 300)], 6, 2, 64, seed=cut)
    q, cache, blocks, _, _ = whole.tensors
    found = whole.run()
    for first, last in ((0, cut), (cut, 300)):
        starts, lengths = (torch.tensor(x, dtype=torch.int32) for x in ([0, last - first], [last]))
        part = Step((q[first:last].clone(), cache, blocks, starts, lengths), whole.attributes)
        assert same_bits(part.run(), found[first:last])


def test_rows_of_padding_are_zeros_and_requests_without_tokens_do_nothing():
    call = step([(2, 2), (1, 9)], padding=37)
    found = call.run()
    assert not found[3:].any() and torch.isfinite(found).all()
    # Nobody has tokens in the step that a graph is captured with.
    q, cache, blocks, starts, lengths = call.tensors
    assert not Step((q, cache, blocks, starts * 0, lengths * 0), call.attributes).run().any()


def test_queries_may_be_columns_of_a_wider_product():
    call = step(MIXED, 4, 2, 24, seed=5)
    q = call.tensors[0]
    wide = torch.full((len(q), q.shape[1] + 40), torch.nan)
    wide[:, 16 : 16 + q.shape[1]] = q
    apart = Step((wide[:, 16 : 16 + q.shape[1]], *call.tensors[1:]), call.attributes)
    assert same_bits(apart.run(), call.run())


def test_large_scores_do_not_overflow_and_one_key_can_take_all_the_weight():
    call = step([(1, 200), (20, 150)], 2, 1, 16, seed=3)
    call.tensors[0].mul_(300)
    check(call, 1e-3, 1e-3)


@pytest.mark.parametrize("kept", ["float32", "float16", "int8"])
@pytest.mark.parametrize(("window", "softcap"), [(None, 0.0), (37, 0.0), (None, 8.0)])
@pytest.mark.parametrize(("length", "dim"), [(9, 16), (209, 64), (300, 20)])
def test_a_query_has_the_same_bits_alone_and_among_others_of_its_request(length, dim, window, softcap, kept):
    whole = step([(9, length)], heads=6, dim=dim, window=window, softcap=softcap, kept=kept)
    q, cache, blocks, _, *others = whole.tensors
    found = alike(*whole.tensors, **whole.attributes)
    for count in (1, 2, 5):
        starts = torch.tensor([0, count], dtype=torch.int32)
        assert same_bits(alike(q[-count:], cache, blocks, starts, *others, **whole.attributes), found[-count:])
    torch.testing.assert_close(found.double(), whole.truth(), rtol=1e-4, atol=1e-4)


def rounded(call: Step, runtime) -> torch.Tensor:
    if not TILES_BF16(runtime.profile, {}):
        pytest.skip("this processor has no tiles of bfloat16: compiled in test_cross.py, and not run")
    return amx_bf16(*call.tensors, **call.attributes)


def weighed(call: Step) -> torch.Tensor:
    """What the weights of a query come to with the magnitudes of values."""
    q, cache, *others = call.tensors
    return Step((q, torch.stack([cache[0], cache[1].abs()]), *others), call.attributes).truth()


@pytest.mark.parametrize("kept", ["float32", "float16", "bfloat16", "int8"])
@pytest.mark.parametrize(("dim", "window", "softcap"), [(64, None, 0.0), (20, 37, 0.0), (128, None, 8.0)])
def test_rounded_attention_misses_by_what_rounding_of_its_operands_may_cost(opened, kept, dim, window, softcap):
    call = step([*MIXED, (60, 700)], 6, 2, dim, kept=kept, window=window, softcap=softcap, seed=dim)
    found, wanted = rounded(call, opened).double(), call.truth()
    relative, absolute = OPS["attention"].bound("bfloat16", "float32")
    torch.testing.assert_close(found, wanted, rtol=relative, atol=absolute)
    if kept == "int8":
        return
    # Queries and keys move a score, and so weights by a factor; values and weights are rounded by 2**-8 each.
    longest = [rows[rows.isfinite()].view(-1, dim).norm(dim=1).max() for rows in (call.tensors[0], call.tensors[1][0])]
    moved = 2 * (2**-7 + 2**-16) * dim**-0.5 * float(longest[0] * longest[1])
    assert bool(((found - wanted).abs() <= (math.expm1(moved) + 2**-6) * weighed(call) + 1e-6).all())


def test_rounded_attention_leaves_single_queries_exact_and_knows_no_neighbours(opened):
    requests = [(1, 1), (130, 130), (1, 260), (33, 200), (3, 700)]
    call = step(requests, 9, 3, 64, kept="float16", padding=3, seed=2)
    found, exact = rounded(call, opened), call.run()
    for row, (new, _) in enumerate(requests):
        rows = slice(*call.tensors[3][row : row + 2].tolist())
        assert same_bits(found[rows], exact[rows]) is (new == 1)
        assert same_bits(rounded(call.alone(row), opened), found[rows])
    assert not found[sum(new for new, _ in requests) :].any()
