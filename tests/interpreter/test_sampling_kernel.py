"""The draw without a sort: what it keeps, what it draws, and the sampler on top of it."""

import pytest
import torch

from engine.batch import Request
from engine.ops.compare import same_bits
from engine.sampler import Sampler
from engine.sampling_params import SamplingParams
from kernels_triton import sampling
from tests.interpreter.rows import OPS

DRAW = OPS["draw"].reference


def world(rows, vocab, seed=0, **limits):
    rng = torch.Generator().manual_seed(seed)
    logits = torch.randn((rows, vocab), generator=rng) * 3
    given = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temperature": 1.0} | limits
    keys = torch.randint(-(2**62), 2**62, (rows,), generator=rng)
    kinds = {"top_k": torch.int64, "top_p": torch.float64, "min_p": torch.float32, "temperature": torch.float32}
    columns = {name: torch.full((rows,), value, dtype=kinds[name]) for name, value in given.items()}
    return [logits, *(columns[name] for name in ("temperature", "top_k", "top_p", "min_p")), keys]


@pytest.mark.parametrize("limits", [
    {}, {"top_k": 1}, {"top_k": 5}, {"top_k": 3000}, {"top_p": 1e-9}, {"top_p": 0.5}, {"top_p": 0.999}, {"min_p": 0.2},
    {"top_k": 40, "top_p": 0.9, "min_p": 0.01, "temperature": 0.3}, {"top_k": 7, "top_p": 0.8, "temperature": 50.0},
])  # fmt: skip
def test_the_same_tokens_as_by_sorting(limits):
    given = world(6, 2500, **limits)
    assert torch.equal(sampling.draw(*given), DRAW(*given))


def test_ties_are_kept_in_order_of_ids():
    """Eight equal tokens, of which top_k leaves the first three: no other is ever drawn."""
    logits = torch.full((12, 3000), -5.0)
    logits[:, 100:2900:400] = 2.0
    logits[:, 1] = -0.0
    logits[:, 2] = 0.0
    given = world(12, 3000, top_k=3)
    given[0] = logits
    assert set(sampling.draw(*given).tolist()) <= {100, 500, 900}
    given[2].fill_(8)
    assert set(sampling.draw(*given).tolist()) <= {*range(100, 2900, 400), 1}
    assert torch.equal(sampling.draw(*given), DRAW(*given))


def test_masked_tokens_are_never_drawn():
    given = world(40, 1030)
    given[0][:, 5:] = float("-inf")
    found = sampling.draw(*given)
    assert int(found.max()) < 5 and torch.equal(found, DRAW(*given))


def test_a_row_draws_the_same_alone_and_rows_may_lie_apart():
    given = world(9, 777, top_p=0.9)
    whole = sampling.draw(*given)
    assert sampling.draw(*(x[4:5] for x in given)).tolist() == whole[4:5].tolist()
    apart = torch.zeros(9, 1000)
    apart[:, :777] = given[0]
    assert torch.equal(sampling.draw(apart[:, :777], *given[1:]), whole)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_row_without_a_finite_peak_draws_some_token_and_leaves_the_others(value):
    given = world(3, 700)
    wanted = sampling.draw(*given)
    given[0] = given[0].clone()
    given[0][1, slice(None) if value == -torch.inf else 17] = value
    found = sampling.draw(*given)
    assert found[::2].tolist() == wanted[::2].tolist() and 0 <= found[1] < 700


def test_frequencies_are_probabilities():
    """600 draws from five tokens: each count within four standard deviations."""
    given = world(600, 5)
    given[0] = given[0][:1].expand(600, 5).contiguous()
    counts = sampling.draw(*given).bincount(minlength=5).double()
    p = given[0][0].double().softmax(0)
    assert bool(((counts - 600 * p).abs() < 4 * (600 * p * (1 - p)).sqrt()).all())


def test_penalties_are_those_of_the_reference_bit_by_bit():
    op = OPS["penalize"]
    for case in op.cases:
        inputs = op.inputs(case, "float32", torch.Generator().manual_seed(4))
        assert same_bits(sampling.penalize(*inputs), op.reference(*inputs))


def test_a_sampler_with_kernels_keeps_to_what_was_asked():
    kernels = {"draw": sampling.draw, "penalize": sampling.penalize}
    plain, ours = Sampler(50, "cpu"), Sampler(50, "cpu", kernels)
    asked = [
        {"temperature": 0.0, "repetition_penalty": 1.7, "presence_penalty": 0.5},
        {"temperature": 0.8, "top_k": 1, "frequency_penalty": 1.0},
        {"temperature": 1.0, "top_p": 1e-6, "seed": 3},
    ]
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(1))
    for sampler in (plain, ours):
        for at, params in enumerate(asked):
            sampler.add(Request(str(at), [1, 2, 3], SamplingParams(**params), 0.0), [4, 4])
    for _ in range(5):
        found = [sampler.sample(logits, ["0", "1", "2"]).tokens.tolist() for sampler in (plain, ours)]
        assert found[0] == found[1]
