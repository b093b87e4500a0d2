"""Compiled kernels of the host that turn logits into tokens."""

import pytest
import torch

from engine.batch import Request
from engine.ops import OPS
from engine.ops.compare import same_bits
from engine.sampler import Sampler
from engine.sampling_params import SamplingParams
from kernels_cpu.library import library, open_library
from kernels_cpu.native import sampling
from platforms.cpu.compilers import KERNELS
from platforms.cpu.plugin import CpuPlugin

NATIVE = {"argmax": sampling.argmax, "mask": sampling.mask, "penalize": sampling.penalize, "draw": sampling.draw}
WIDTHS = [1, 5, 63, 64, 4095, 4097, 49152]


@pytest.fixture(scope="module", autouse=True)
def runtime():
    before = torch.get_num_threads()
    opened = CpuPlugin().open(0)
    assert KERNELS in opened.profile.features, opened.profile.evidence[f"features.{KERNELS}"]
    yield opened
    torch.set_num_threads(before)


def noise(*shape, seed=0, scale=3.0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


@pytest.mark.parametrize("width", WIDTHS)
def test_the_best_token_is_the_first_of_equals_wherever_it_stands(width):
    for place in {0, width // 3, width // 2, width - 1}:
        x = noise(3, width, seed=place).clamp(max=5.0)
        x[1, place:] = 7.0
        x[2, place] = torch.inf
        tokens, peaks = sampling.argmax(x)
        wanted = OPS["argmax"].reference(x)
        assert torch.equal(tokens, wanted[0]) and same_bits(peaks, wanted[1])
        assert tokens[1:].tolist() == [place, place]
    none = torch.full((2, width), -torch.inf)
    assert sampling.argmax(none)[0].tolist() == [0, 0]


@pytest.mark.parametrize("width", WIDTHS)
def test_nan_is_above_all(width):
    for place in {0, width // 2, width - 1}:
        x = noise(2, width)
        x[0, place], x[0, -1] = (-torch.nan if place % 2 else torch.nan), torch.nan
        tokens, peaks = sampling.argmax(x)
        assert tokens.tolist() == [place, int(x[1].argmax())] and peaks.isnan().tolist() == [True, False]


def test_rows_that_lie_apart_and_no_rows_at_all():
    x = noise(5, 300)[:, 20:280]
    assert torch.equal(sampling.argmax(x)[0], x.argmax(-1))
    assert sampling.argmax(x[:0])[0].shape == (0,)


@pytest.mark.parametrize("width", WIDTHS)
def test_masks_are_the_references_bit_for_bit_and_touch_nothing_else(width):
    rng = torch.Generator().manual_seed(width)
    allowed = torch.randint(-(2**31), 2**31, (3, -(-width // 32) + 1), generator=rng).to(torch.int32)
    allowed[:, ::3], allowed[:, 1::3] = -1, 0
    given = noise(3, width + 16)
    given[1, 9] = torch.nan
    wanted, whole = given[:, 8 : 8 + width].clone(), given.clone()
    found = sampling.mask(given[:, 8 : 8 + width], allowed[:, :-1])
    assert found.data_ptr() == given[:, 8:].data_ptr()
    assert same_bits(found, OPS["mask"].reference(wanted, allowed[:, :-1]))
    assert same_bits(given[:, :8], whole[:, :8]) and same_bits(given[:, 8 + width :], whole[:, 8 + width :])


@pytest.mark.parametrize("width", WIDTHS)
def test_penalties_are_the_references_bit_for_bit(width):
    rng = torch.Generator().manual_seed(width)
    counts = torch.randint(-2, 4, (6, width), generator=rng).clamp(min=0).to(torch.int32)
    seen, slots = counts > torch.rand((6, width), generator=rng), torch.tensor([4, 0, 3])
    penalties = [torch.rand(3, generator=rng) + 0.3 for _ in range(3)]
    given = noise(3, width + 16)[:, 8 : 8 + width], seen, counts, slots, *penalties
    assert same_bits(sampling.penalize(*given), OPS["penalize"].reference(*given))
    with pytest.raises(ValueError, match="contiguous"):
        sampling.penalize(given[0], torch.zeros(6, 2 * width, dtype=torch.bool)[:, ::2], *given[2:])


KINDS = {
    "plain": (0, 1.0, 0.0),
    "top_k": (40, 1.0, 0.0),
    "one": (1, 1.0, 0.0),
    "beyond": (10**6, 0.9, 0.0),
    "top_p": (0, 0.9, 0.0),
    "tiny": (0, 1e-9, 0.0),
    "min_p": (0, 1.0, 0.05),
    "all": (50, 0.95, 0.02),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("width", "scale"), [(7, 1.0), (1000, 0.3), (1000, 3.0), (20000, 3.0)])
def test_draws_are_the_references(kind, width, scale):
    """Units of probability may differ by rounding, and with them a draw whose two first arrivals nearly tie."""
    rows, (top_k, top_p, min_p) = 100 if width < 10000 else 20, KINDS[kind]
    x = noise(rows, width, seed=width, scale=scale)
    x[:, 1::5] = x[:, ::5][:, : x[:, 1::5].shape[1]]
    given = (
        x,
        torch.linspace(0.3, 2.0, rows),
        torch.full((rows,), top_k),
        torch.full((rows,), top_p, dtype=torch.float64),
        torch.full((rows,), min_p),
        torch.randint(-(2**62), 2**62, (rows,), generator=torch.Generator().manual_seed(1)),
    )
    assert (sampling.draw(*given) != OPS["draw"].reference(*given)).sum() <= 1


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_without_a_finite_peak_draws_some_token_and_leaves_the_others(kind, value):
    x, (top_k, top_p, min_p) = noise(3, 5000), KINDS[kind]
    columns = torch.ones(3), torch.full((3,), top_k), torch.full((3,), top_p).double(), torch.full((3,), min_p)
    wanted = sampling.draw(x, *columns, torch.arange(3))
    x[1, 17 if value > 0 or value != value else slice(None)] = value
    found = sampling.draw(x, *columns, torch.arange(3))
    assert found[::2].tolist() == wanted[::2].tolist() and 0 <= found[1] < 5000


def test_a_draw_is_the_same_in_any_team_and_beside_anybody(runtime):
    x, ones = noise(6, 5000), torch.ones(6)
    given = x, ones, torch.tensor([0, 0, 9, 9, 0, 500]), torch.tensor([1, 0.9] * 3).double(), ones * 0, torch.arange(6)
    wanted = sampling.draw(*given)
    try:
        for threads in (1, 3):
            open_library(library().path, threads, None)
            assert torch.equal(sampling.draw(*given), wanted)
            alone = [sampling.draw(*(column[row : row + 1] for column in given)) for row in range(6)]
            assert torch.equal(torch.cat(alone), wanted)
    finally:
        open_library(library().path, runtime.profile.limits["threads"], None)


def test_the_sampler_with_kernels_is_the_sampler_without():
    params = [
        SamplingParams(temperature=0),
        SamplingParams(temperature=0, repetition_penalty=1.3, presence_penalty=0.5),
        SamplingParams(temperature=0, logprobs=2, logit_bias={3: 5.0}),
        SamplingParams(temperature=0.8, top_k=20, top_p=0.9, seed=3),
        SamplingParams(temperature=0),
    ]
    x = noise(5, 1000)
    x[4, 17] = torch.nan
    found = []
    for kernels in (NATIVE, None):
        for some in ([0], [0, 4], [0, 1, 2, 3, 4]):
            sampler = Sampler(1000, "cpu", kernels)
            names = [str(at) for at in some]
            for at, name in zip(some, names, strict=True):
                sampler.add(Request(name, [1, 2, 3], params[at], arrival=0.0), [5])
            tokens, reports, errors = sampler.sample(x[some], names).wait()
            good = [at for at, error in enumerate(errors) if error is None]
            found.append(([tokens[at] for at in good], reports, errors))
    assert found[:3] == found[3:]
    assert found[1][2] == [None, "the logits hold NaN or infinity"]
