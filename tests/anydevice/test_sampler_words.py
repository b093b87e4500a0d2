"""Tokens that a request narrows its answer to, or keeps out of it."""

from __future__ import annotations

import pytest
import torch

from engine.bad_words import with_bad_words
from engine.errors import RequestError
from engine.sampler import Sampler
from engine.sampling_params import SamplingParams
from tests.anydevice.test_sampler import DEVICE, noise, one, request, run
from tests.pure.tokenizer_toys import byte_backend, wrap

RISING = [0.0, 1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("drawn", [{"temperature": 0}, {"temperature": 2.0, "seed": 5}])
def test_only_allowed_tokens_come(drawn: dict) -> None:
    tokens = one([10.0, 0.0, 2.0, 1.0], 40, allowed_token_ids=[1, 3, 3], **drawn)
    assert set(tokens) <= {1, 3} and 3 in tokens
    assert one([10.0, 0.0], 1, allowed_token_ids=[1], logit_bias={1: -100.0}, **drawn) == [1]


def test_a_single_bad_token_never_comes_and_a_sequence_not_as_a_whole() -> None:
    assert one(RISING, 3, temperature=0, bad_words_token_ids=[[4], [3]]) == [2, 2, 2]
    assert one(RISING, 4, temperature=0, bad_words_token_ids=[[4, 4]]) == [4, 3, 4, 3]
    assert one(RISING, 6, temperature=0, bad_words_token_ids=[[4, 4, 4], [3]]) == [4, 4, 2, 4, 4, 2]
    assert one(RISING, 4, temperature=0, bad_words_token_ids=[[4, 3], [4, 4]]) == [4, 2, 4, 2]
    assert one(RISING, 2, prompt=[4], temperature=0, bad_words_token_ids=[[4, 4]]) == [4, 3]  # prompts do not count
    assert one(RISING, 2, temperature=0, bad_words_token_ids=[[99], []]) == [4, 4]  # nobody can generate these


def test_bad_words_are_followed_across_preemption() -> None:
    wanted = request(temperature=0, bad_words_token_ids=[[4, 4, 4]])
    row = torch.tensor([RISING], device=DEVICE)
    for generated, expected in (([], 4), ([4], 4), ([4, 4], 3), ([4, 4, 3], 4), ([3, 4, 4], 3)):
        sampler = Sampler(5, DEVICE)
        sampler.add(wanted, generated)
        assert sampler.sample(row, ["a"]).wait()[0] == [expected]


def test_neighbours_are_as_they_are_alone() -> None:
    others = [request("b", temperature=1.0, seed=3, logprobs=2), request("c", temperature=0)]
    held = request("a", temperature=1.5, seed=1, bad_words_token_ids=[[7, 8], [9]], allowed_token_ids=list(range(20)))
    rows = [noise(3, 300, step) for step in range(12)]
    mixed = run(rows, held, *others)
    assert mixed[1:] == run([row[1:] for row in rows], *others)
    assert mixed[0] == run([row[:1] for row in rows], held)[0] and set(mixed[0]) <= set(range(20)) - {9}


def test_narrowing_to_nothing_is_the_requests_own_trouble() -> None:
    sampler = Sampler(3, DEVICE)
    for each in (request("a", temperature=0, allowed_token_ids=[1], bad_words_token_ids=[[1]]), request("b")):
        sampler.add(each, [])
    _, _, errors = sampler.sample(torch.zeros(2, 3, device=DEVICE), ["a", "b"]).wait()
    assert errors[1] is None and errors[0] is not None and "bad_words" in errors[0]


def test_log_probabilities_of_named_tokens() -> None:
    logits = noise(2, 50)
    sampler = Sampler(50, DEVICE)
    sampler.add(request("a", temperature=0, logprobs=0, logprob_token_ids=[30, 2]), [])
    sampler.add(request("b", temperature=0, logprobs=2), [])
    _, reports, _ = sampler.sample(logits, ["a", "b"]).wait()
    expected = logits.float().log_softmax(-1).tolist()
    (mine,), (other,) = reports[0] or [], reports[1] or []
    assert [token for token, _ in mine.top] == [30, 2] and len(other.top) == 2
    assert [value for _, value in mine.top] == pytest.approx([expected[0][30], expected[0][2]], abs=1e-5)


def test_words_become_tokens_alone_and_behind_a_blank() -> None:
    tokenizer = wrap(byte_backend())
    found = with_bad_words(SamplingParams(bad_words=["ab", " ab", "c"]), tokenizer)
    blank = tokenizer.encode(" ", add_special_tokens=False)
    ab, c = (tokenizer.encode(text, add_special_tokens=False) for text in ("ab", "c"))
    assert found.bad_words_token_ids == [ab, blank + ab, c, blank + c]
    assert with_bad_words(SamplingParams(), tokenizer).bad_words_token_ids == []
    with pytest.raises(RequestError) as caught:
        with_bad_words(SamplingParams(bad_words=[5]), tokenizer)  # type: ignore[list-item]
    assert caught.value.param == "bad_words"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bad_words", [" "]),
        ("bad_words", ["x"] * 129),
        ("allowed_token_ids", []),
        ("allowed_token_ids", [50]),
        ("logprob_token_ids", [-1]),
        ("logprob_token_ids", [1] * 129),
    ],
)
def test_what_is_out_of_range_is_named(name: str, value: list) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{name: value}).validate(50)
    assert caught.value.param == name


def test_a_row_of_nan_that_is_to_be_reported_is_its_requests_own_trouble() -> None:
    # NaN of both signs: one that is more than all, and others that are less than what a row is padded with.
    broken = torch.full((300,), -0x400000, dtype=torch.int32).view(torch.float32)
    broken[288] = torch.nan
    sampler = Sampler(300, DEVICE)
    for name in "ab":
        sampler.add(request(name, temperature=0, logprobs=2), [])
    _, reports, errors = sampler.sample(torch.stack([broken.to(DEVICE), noise(1, 300)[0]]), ["a", "b"]).wait()
    assert reports[0] is None and errors[0] == "the logits hold NaN or infinity"
    assert errors[1] is None and reports[1] is not None and len(reports[1][0].top) == 2
