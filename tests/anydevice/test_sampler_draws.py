"""That random tokens follow the exact distribution, and depend on seed and position only."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from engine.batch import Request
from engine.sampler import Sampler
from engine.sampling import draw
from engine.sampling.state import State
from engine.sampling_params import SamplingParams

DEVICE = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


def request(name: str, prompt: list[int] | None = None, stop_ids: set[int] = frozenset(), **params) -> Request:
    return Request(name, prompt or [0], SamplingParams(**params), arrival=0.0, stop_ids=frozenset(stop_ids))


def noise(rows: int, vocab: int, seed: int, scale: float = 3.0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * scale).to(DEVICE, dtype)


def exact(logits: list[float], temperature=1.0, top_k=0, top_p=1.0, min_p=0.0) -> list[float]:
    """Sorted, cut and normalised in float64, one row at a time."""
    peak = max(logits)
    weights = [math.exp((value - peak) / temperature) for value in logits]
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    kept = order[:top_k] if 0 < top_k < len(logits) else order
    total, reached, nucleus = sum(weights[i] for i in kept), 0.0, []
    for i in kept:
        if reached < top_p * total * (1 - 1e-7):
            nucleus.append(i)
        reached += weights[i]
    alive = {i for i in nucleus if weights[i] >= min_p * weights[order[0]]}
    norm = sum(weights[i] for i in alive)
    return [weights[i] / norm if i in alive else 0.0 for i in range(len(logits))]


def assert_follows(counts: list[int], probabilities: list[float]) -> None:
    """Chi-square, cells expecting under 5 pooled; fails by chance once in 10**5 (Wilson-Hilferty)."""
    draws = sum(counts)
    assert not any(count for count, p in zip(counts, probabilities, strict=True) if p == 0)
    cells = [(count, p * draws) for count, p in zip(counts, probabilities, strict=True) if p * draws >= 5]
    small = [(count, p * draws) for count, p in zip(counts, probabilities, strict=True) if p * draws < 5]
    if sum(expected for _, expected in small) >= 5:
        cells.append((sum(count for count, _ in small), sum(expected for _, expected in small)))
    freedom = len(cells) - 1
    if freedom == 0:
        return
    statistic = sum((count - expected) ** 2 / expected for count, expected in cells)
    spread = 2 / (9 * freedom)
    assert ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread) < 4.27


COMBINATIONS = [
    {},
    {"temperature": 0.5},
    {"temperature": 2.0},
    {"top_k": 5},
    {"top_k": 1},
    {"top_k": 150},
    {"top_p": 0.7},
    {"top_p": 0.95, "temperature": 2.0},
    {"top_p": 1e-9},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"top_k": 20, "top_p": 0.8},
    {"top_k": 150, "top_p": 0.9, "temperature": 1.5},
    {"top_k": 40, "top_p": 0.95, "min_p": 0.1, "temperature": 0.8},
    {"top_p": 0.99, "min_p": 0.01},
]


@pytest.mark.parametrize("vocab", [24, 400])
@pytest.mark.parametrize("params", COMBINATIONS, ids=str)
def test_draws_follow_the_exact_distribution(params: dict, vocab: int) -> None:
    logits = noise(1, vocab, vocab, scale=1.5)
    sampler = Sampler(vocab, DEVICE)
    names = [str(seed) for seed in range(1000)]
    for seed, name in enumerate(names):
        sampler.add(request(name, seed=seed, **params), [])
    tokens = torch.cat([sampler.sample(logits.expand(1000, -1), names).tokens for _ in range(20)])
    assert_follows(torch.bincount(tokens, minlength=vocab).tolist(), exact(logits[0].tolist(), **params))


def test_flat_nucleus_beside_a_peaked_one() -> None:
    """Every second draw of 1,000 equal tokens falls outside and is drawn again; the peaked neighbour never does."""
    logits = torch.zeros(2, 1000, device=DEVICE)
    logits[1, 30] = 20.0
    sampler = Sampler(1000, DEVICE)
    names = [str(i) for i in range(400)]
    for name in names:
        sampler.add(request(name, seed=int(name), top_p=0.5), [])
    counts = torch.zeros(1000, dtype=torch.int64, device=DEVICE)
    for _ in range(50):
        tokens = sampler.sample(logits.repeat(200, 1), names).tokens
        assert set(tokens[1::2].tolist()) == {30}
        counts += torch.bincount(tokens[::2], minlength=1000)
    assert_follows(counts.tolist(), [1 / 500] * 500 + [0.0] * 500)


@pytest.mark.parametrize("vocab", [10, 1000])
def test_ties_are_cut_by_lower_id(vocab: int) -> None:
    logits = torch.ones(200, vocab, device=DEVICE)
    logits[:, 0] = 0.0
    for params, survivors in (
        ({"top_k": 1}, {1}),
        ({"top_k": 3}, {1, 2, 3}),
        ({"top_p": 1e-6}, {1}),
        ({"top_k": 6, "top_p": 0.5}, {1, 2, 3}),
    ):
        sampler = Sampler(vocab, DEVICE)
        names = [str(i) for i in range(200)]
        for name in names:
            sampler.add(request(name, seed=int(name), **params), [])
        assert set(sampler.sample(logits, names).tokens.tolist()) == survivors


@pytest.mark.parametrize("params", [{"top_p": 0.8}, {"top_p": 0.8, "top_k": 3}])
def test_top_p_keeps_the_token_that_crosses(params: dict) -> None:
    logits = torch.tensor([0.5, 0.29, 0.21], device=DEVICE).log().expand(300, -1)
    sampler = Sampler(3, DEVICE)
    names = [str(i) for i in range(300)]
    for name in names:
        sampler.add(request(name, seed=int(name), **params), [])
    assert set(sampler.sample(logits, names).tokens.tolist()) == {0, 1, 2}


@pytest.mark.parametrize("top_k", [0, 3])
def test_top_p_stops_at_the_token_that_reaches_it_exactly(top_k: int) -> None:
    logits = torch.tensor([[-math.inf, 1.0, 1.0, -math.inf]], device=DEVICE).expand(100, -1)
    sampler = Sampler(4, DEVICE)
    names = [str(i) for i in range(100)]
    for name in names:
        sampler.add(request(name, seed=int(name), top_p=0.5, top_k=top_k), [])
    assert set(sampler.sample(logits, names).tokens.tolist()) == {1}


def test_H_SMP_03_seed_beside_neighbours() -> None:
    rows = [noise(1, 500, step) for step in range(12)]
    seeded = request("seeded", seed=42, temperature=1.2)
    alone = sequence([seeded], rows)
    for _ in range(10):
        others = [request("none"), request("seven", seed=7, top_p=0.9), request("greedy", temperature=0)]
        assert sequence([*others, seeded], rows) == alone
    assert sequence([request("none", temperature=1.2)], rows) != alone
    assert sequence([request("other", seed=43, temperature=1.2)], rows) != alone


def sequence(requests: list[Request], rows: list[torch.Tensor]) -> list[int]:
    """Tokens of the last request, every request being given the same logits."""
    sampler = Sampler(rows[0].shape[1], DEVICE)
    for each in requests:
        sampler.add(each, [])
    names = [each.id for each in requests]
    return [sampler.sample(row.expand(len(names), -1), names).tokens[-1].item() for row in rows]


@pytest.mark.parametrize("forgotten", [True, False])
def test_H_SMP_03_preemption_changes_nothing(forgotten: bool) -> None:
    rows = [noise(1, 300, step) for step in range(16)]
    params = {"seed": -5, "top_p": 0.95, "frequency_penalty": 0.7, "repetition_penalty": 1.3, "min_tokens": 9}
    asked = request("a", [4, 5], {1, 2, 3}, **params)
    whole = sequence([asked], rows)
    sampler, tokens = Sampler(300, DEVICE), []
    for step, row in enumerate(rows):
        if step % 5 == 0:
            if forgotten:
                sampler.forget("a")
            sampler.add(asked, list(tokens))
        tokens.append(sampler.sample(row, ["a"]).tokens.item())
    assert tokens == whole


def unit(key: int) -> float:
    return ((key & (2**64 - 1)) >> 11) / 2**53


def test_nearby_seeds_and_positions_are_independent() -> None:
    """Pairs of consecutive seeds, positions and attempts fill a 12 x 12 grid evenly."""
    for line in (
        [unit(State.of(request("a", seed=seed), 0, None, 8).key()) for seed in range(20_001)],
        [unit(State.of(request("a", seed=0), step, None, 8).key()) for step in range(20_001)],
        [unit(State.of(request("a", seed=seed), 5, None, 8).key()) for seed in range(-(2**63), -(2**63) + 20_001)],
        [unit(State.of(request("a", seed=9), 3, None, 8).key(attempt)) for attempt in range(20_001)],
    ):
        assert all(0 <= value < 1 for value in line)
        counts = [0] * 144
        for left, right in pairwise(line):
            counts[int(left * 12) * 12 + int(right * 12)] += 1
        assert_follows(counts, [1 / 144] * 144)


def test_no_seed_repeats_the_stream_of_another() -> None:
    """A generator whose state is the seed itself would give seed + its increment the same stream, one step later."""
    increment = 0x9E3779B97F4A7C15 - 2**64
    streams = [
        {unit(State.of(request("a", seed=seed), step, None, 8).key()) for step in range(50)}
        for seed in (0, 1, -1, increment, increment + 1)
    ]
    assert len(set.union(*streams)) == 250


def test_unseeded_requests_differ() -> None:
    sampler = Sampler(1000, DEVICE)
    names = [str(i) for i in range(64)]
    for name in names:
        sampler.add(request(name), [])
    assert len(set(sampler.sample(torch.zeros(64, 1000, device=DEVICE), names).tokens.tolist())) > 50


def test_only_living_tokens_are_drawn() -> None:
    mass = torch.tensor([[0, 1, 0, 2**32, 0], [0, 0, 7, 0, 0]], device=DEVICE)
    ids = torch.arange(5, device=DEVICE)
    found = {
        tuple(draw._pick(mass, ids, [State.of(request("a", seed=seed), 0, None, 5)] * 2).flatten().tolist())
        for seed in range(200)
    }
    assert found <= {(1, 2), (3, 2)} and (3, 2) in found


def test_noise_of_neighbouring_tokens_is_independent() -> None:
    """Which of two equally likely neighbours wins is a fair coin for every pair of ids, and pairs do not agree."""
    mass = torch.ones(1, 2, dtype=torch.int64, device=DEVICE)
    wins = []
    for first in (0, 2, 4, 1000, 49150):
        ids = torch.tensor([[first, first + 1]], device=DEVICE)
        states = [State.of(request("a", seed=seed), 3, None, 49152) for seed in range(2000)]
        found = draw._pick(mass.expand(2000, 2).clone(), ids.expand(2000, 2), states)
        wins.append(found.flatten().tolist())
        assert_follows([wins[-1].count(0), wins[-1].count(1)], [0.5, 0.5])
    for left, right in pairwise(wins):
        same = sum(a == b for a, b in zip(left, right, strict=True))
        assert abs(same - 1000) < 150


def test_H_SMP_03_rounding_of_the_logits_hardly_ever_changes_a_draw() -> None:
    """A batch of another size changes logits in the last bits; a seeded text must not change with it."""
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(1, 49152, generator=generator) * 2.5
    ids = [str(seed) for seed in range(400)]
    drawn = []
    for noise in (0.0, 1e-5):
        sampler = Sampler(49152, DEVICE)
        for seed in range(400):
            sampler.add(request(str(seed), seed=seed, temperature=1.3), [])
        rows = logits + noise * torch.randn(1, 49152, generator=generator)
        drawn.append([sampler.sample(rows.to(DEVICE), [name]).tokens.item() for name in ids])
    assert sum(a != b for a, b in zip(*drawn, strict=True)) <= 1


PARAMS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 1e-5, 0.3, 1.0, 2.0]),
        "top_k": st.sampled_from([0, -1, 1, 7, 128, 129, 5000]),
        "top_p": st.sampled_from([1.0, 0.9, 0.3]),
        "min_p": st.sampled_from([0.0, 0.0, 0.2]),
        "seed": st.integers(-(2**63), 2**63 - 1),
        "logprobs": st.sampled_from([None, None, 0, 3]),
        "repetition_penalty": st.sampled_from([1.0, 1.0, 1.3]),
        "frequency_penalty": st.sampled_from([0.0, 0.0, -0.5]),
        "presence_penalty": st.sampled_from([0.0, 0.0, 1.5]),
        "logit_bias": st.sampled_from([None, None, {3: 4.0, 6: -100.0}]),
        "min_tokens": st.sampled_from([0, 2]),
    }
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(PARAMS, min_size=2, max_size=9),
    st.sampled_from([7, 300, 1031]),
    st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    st.integers(0, 10**6),
    st.sampled_from([0.1, 3.0]),
)
def test_a_row_in_a_batch_equals_the_row_alone(rows, vocab, dtype, seed, scale) -> None:
    requests = [request(str(i), [i % vocab, 3], {2, 5}, **params) for i, params in enumerate(rows)]
    together, apart = Sampler(vocab, DEVICE), Sampler(vocab, DEVICE)
    for each in requests:
        together.add(each, [])
        apart.add(each, [])
    for step in range(3):
        logits = noise(len(rows), vocab, seed + step, scale, dtype)
        tokens, logprobs, _ = together.sample(logits, [each.id for each in requests]).wait()
        for row, each in enumerate(requests):
            single, reported, _ = apart.sample(logits[row : row + 1], [each.id]).wait()
            assert single == [tokens[row]]
            assert reported[0] == logprobs[row]


def test_a_draw_in_pieces_is_the_same_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = [{}, {"top_p": 0.8}, {"top_k": 5}, {"min_p": 0.1}, {"temperature": 0}, {"top_k": 7, "top_p": 0.5}, {}]
    requests = [request(str(i), seed=i, **params) for i, params in enumerate(settings)]
    found = []
    for chunk in (2**23, 2 * 500, 1):
        monkeypatch.setattr(draw, "_CHUNK", chunk)
        sampler = Sampler(500, DEVICE)
        for each in requests:
            sampler.add(each, [])
        names = [each.id for each in requests]
        found.append([sampler.sample(noise(7, 500, step), names).tokens.tolist() for step in range(20)])
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("params", [{}, {"top_p": 0.5}, {"min_p": 0.1, "top_p": 0.9}, {"top_k": 50}])
def test_the_temporaries_of_a_draw_do_not_grow_with_its_rows(monkeypatch: pytest.MonkeyPatch, params: dict) -> None:
    """The largest piece that any step of the draw works on, counted by the tensors that torch makes."""
    monkeypatch.setattr(draw, "_CHUNK", 4 * 1000)
    made: list[int] = []

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            made.extend(each.numel() for each in tree_leaves(result) if isinstance(each, torch.Tensor))
            return result

    states = [State.of(request(str(i), seed=i, **params), 0, None, 1000) for i in range(64)]
    logits = noise(64, 1000, 3)
    with Count():
        draw.choose(logits, states)
    assert made and max(made) <= 2 * 4 * 1000
