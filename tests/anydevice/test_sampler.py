"""What each request parameter does to the next token, and what is reported of it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine import sampler as sampler_module
from engine.batch import FinishReason, Request, TokenLogprobs
from engine.block_manager import BlockManager
from engine.errors import RequestError
from engine.sampler import Sampler
from engine.sampling.penalties import Penalties
from engine.sampling.ranking import top
from engine.sampling_params import SamplingParams
from engine.sequence import Sequence

DEVICE = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def request(name: str = "a", prompt: list[int] | None = None, stop_ids: set[int] = frozenset(), **params) -> Request:
    return Request(name, prompt or [0], SamplingParams(**params), arrival=0.0, stop_ids=frozenset(stop_ids))


def noise(rows: int, vocab: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3).to(DEVICE, dtype)


def run(rows: list[torch.Tensor], *requests: Request) -> list[list[int]]:
    """Tokens per request over as many steps as there are ``rows`` ([requests, vocab] each)."""
    sampler = Sampler(rows[0].shape[1], DEVICE)
    for each in requests:
        sampler.add(each, [])
    steps = [sampler.sample(row, [each.id for each in requests]).tokens.tolist() for row in rows]
    return [list(tokens) for tokens in zip(*steps, strict=True)]


def packed(allowed: list[list[bool]] | torch.Tensor) -> torch.Tensor:
    """[n, words] int32 for [n, vocab] bool."""
    bits = torch.nn.functional.pad(torch.as_tensor(allowed).cpu(), (0, 64)).numpy()
    bits = bits[:, : (bits.shape[1] - 64 + 31) // 32 * 32]
    return torch.from_numpy(np.packbits(bits, axis=-1, bitorder="little").view("int32")).to(DEVICE)


def one(logits: list[float], steps: int = 1, **kwargs) -> list[int]:
    return run([torch.tensor([logits], device=DEVICE)] * steps, request(**kwargs))[0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("temperature", [1e-4, 1e-6, 1e-12])
def test_H_SMP_01_tiny_temperature_is_greedy(dtype: torch.dtype, temperature: float) -> None:
    logits = noise(4, 1000, dtype=dtype).sign() * 80 + noise(4, 1000, 1, dtype)
    names = [request(str(row), temperature=temperature, logprobs=5, top_p=0.9) for row in range(4)]
    sampler = Sampler(1000, DEVICE)
    for each in names:
        sampler.add(each, [])
    tokens, logprobs, _ = sampler.sample(logits, [each.id for each in names]).wait()
    assert tokens == logits.argmax(-1).tolist()
    for row, entries in enumerate(logprobs):
        assert entries is not None and entries[0].token == tokens[row]
        assert all(math.isfinite(value) for _, value in entries[0].top)


@pytest.mark.parametrize("temperature", [0.01, 0.02, 2.0])
def test_H_SMP_01_largest_finite_logits_do_not_overflow(temperature: float) -> None:
    huge = [-65504.0, 65504.0, 65500.0, -math.inf]
    assert set(one(huge, 50, temperature=temperature)) == {1} | ({2} if temperature == 2 else set())
    assert one([-3e38, 3e38, 0.0], 5, temperature=temperature) == [1] * 5


def test_H_SMP_02_ways_to_disable_top_k() -> None:
    for params in ({}, {"top_k": 0}, {"top_k": -1}, {"top_k": 10}, {"top_k": 11}, {"top_k": 2**31 - 1}):
        requests = [request(str(seed), seed=seed, **params) for seed in range(200)]
        drawn = run([torch.ones(200, 10, device=DEVICE)] * 10, *requests)
        assert {token for tokens in drawn for token in tokens} == set(range(10)), params
    with pytest.raises(RequestError, match="top_k is -2"):
        SamplingParams(top_k=-2).validate()


def test_H_SMP_04_which_tokens_a_penalty_counts() -> None:
    params = SamplingParams(repetition_penalty=2.0, frequency_penalty=0.25, presence_penalty=0.5)
    penalties = Penalties(6, DEVICE)
    slot = penalties.add([3, 3], [1, 1])
    result = penalties.penalise(torch.ones(1, 6, device=DEVICE), torch.tensor([slot], device=DEVICE), [params])
    assert result.tolist() == [[1.0, -0.5, 1.0, 0.5, 1.0, 1.0]]


def test_H_SMP_04_through_the_sampler() -> None:
    """Each token in turn is offset so that it wins only if its penalised logit is exactly the expected one."""
    expected = [1.0, -0.5, 1.0, 0.5]
    for token, value in enumerate(expected):
        for margin, wins in ((-1e-3, True), (1e-3, False)):
            sampler = Sampler(5, DEVICE)
            penalties = {"repetition_penalty": 2.0, "frequency_penalty": 0.25, "presence_penalty": 0.5}
            sampler.add(request(prompt=[3, 3], temperature=0, **penalties), [1, 1])
            logits = torch.full((1, 5), -9.0, device=DEVICE)
            logits[0, token], logits[0, 4] = 1.0, value + margin
            assert sampler.sample(logits, ["a"]).tokens.tolist() == [token if wins else 4]


def test_repetition_multiplies_negative_logits_and_counts_outputs() -> None:
    assert one([-1.0, -1.5], prompt=[0], temperature=0, repetition_penalty=2.0) == [1]
    assert one([2.0, 1.5], 2, prompt=[1], temperature=0, repetition_penalty=1.5) == [0, 0]
    assert one([2.0, 1.5, 1.4], 3, prompt=[5], temperature=0, repetition_penalty=1.5) == [0, 1, 2]


def test_frequency_grows_and_presence_does_not() -> None:
    assert one([2.0, 0.5], 6, temperature=0, frequency_penalty=1.0) == [0, 0, 1, 0, 1, 0]
    assert one([2.0, 0.5], 6, temperature=0, presence_penalty=1.0) == [0] * 6
    assert one([2.0, 1.5], 4, temperature=0, presence_penalty=-1.0, prompt=[1]) == [0] * 4


@pytest.mark.parametrize("penalty", [1e-300, 1e300])
def test_absurd_repetition_stays_a_number(penalty: float) -> None:
    assert one([0.0, 1.0, -1.0, 2.0], prompt=[0, 1, 2], repetition_penalty=penalty, top_p=0.5) == [
        1 if penalty < 1 else 3
    ]


def test_H_SMP_05_padding_never_counts() -> None:
    rows = [noise(2, 50, seed) for seed in range(40)]
    short = request("short", prompt=[1, 2, 3], temperature=0, frequency_penalty=1.0)
    long = request("long", prompt=[*range(40)], temperature=0)
    together = run(rows, short, long)
    assert together == [run([row[:1] for row in rows], short)[0], run([row[1:] for row in rows], long)[0]]
    assert together[1] == [row[1].argmax().item() for row in rows]


def test_penalty_slots_grow_and_are_clean_when_used_again() -> None:
    """A slot is told of every token but the winner and 55, which overtakes it if an earlier tenant's tokens stayed."""
    sampler = Sampler(60, DEVICE)
    names = [str(i) for i in range(40)]
    for shift in range(3):
        winners = [(i + shift) % 40 for i in range(40)]
        logits = torch.zeros(40, 60, device=DEVICE)
        logits[range(40), winners] = 2.0
        logits[:, 55] = 1.5
        for name, winner in zip(names, winners, strict=True):
            told = [token for token in range(50) if token != winner]
            sampler.add(request(name, prompt=told, temperature=0, repetition_penalty=9, presence_penalty=2), told)
        assert sampler.sample(logits, names).tokens.tolist() == winners
        for name in names[::2]:
            sampler.forget(name)
    sampler.forget("never added")


def test_logit_bias_forces_and_forbids() -> None:
    assert one([1.0, 2.0, 3.0], temperature=0, logit_bias={0: 100.0, 2: -100.0, 99: 100.0}) == [0]
    assert one([1.0, 2.0, 3.0], temperature=0, logit_bias={2: -1.5}) == [1]
    biased, free = request("b", temperature=0, logit_bias={5: 50.0}), request("f", temperature=0)
    logits = noise(2, 20)
    assert run([logits], biased, free) == [[5], [logits[1].argmax().item()]]


def test_min_tokens_holds_stop_ids_back_also_after_preemption() -> None:
    assert one([1.0, 3.0, 2.0], 4, temperature=0, stop_ids={1, 77}, min_tokens=2) == [2, 2, 1, 1]
    assert one([1.0, 3.0, 2.0], 2, temperature=0, stop_ids={1}) == [1, 1]
    sampler = Sampler(3, DEVICE)
    logits = torch.tensor([[1.0, 3.0, 2.0]], device=DEVICE)
    sampler.add(request(temperature=0, stop_ids={1}, min_tokens=3), [2, 2])
    assert [sampler.sample(logits, ["a"]).tokens.item() for _ in range(2)] == [2, 1]


def test_masks_bind_every_way_of_choosing_and_beat_min_tokens() -> None:
    requests = [
        request("greedy", temperature=0),
        request("any"),
        request("few", top_k=3),
        request("bias", temperature=0, logit_bias={1: 100.0}),
        request("held", temperature=0, stop_ids={4}, min_tokens=9),
    ]
    allowed = torch.zeros(5, 200, dtype=torch.bool, device=DEVICE)
    allowed[:4, 10:13] = True
    allowed[4, 4] = True
    sampler = Sampler(200, DEVICE)
    for each in requests:
        sampler.add(each, [])
    for seed in range(20):
        tokens = sampler.sample(noise(5, 200, seed), [each.id for each in requests], packed(allowed)).tokens.tolist()
        assert set(tokens[:4]) <= {10, 11, 12} and tokens[4] == 4


@pytest.mark.parametrize("params", [{"temperature": 0}, {"top_p": 0.9}, {"top_k": 3, "logprobs": 2}])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_broken_logits_are_their_own_requests_trouble(params: dict, value: float) -> None:
    sampler, untouched = Sampler(300, DEVICE), Sampler(300, DEVICE)
    for name in ("good", "bad"):
        for each in (sampler, untouched):
            each.add(request(name, seed=3, **params), [])
    logits = noise(2, 300)
    broken = logits.clone()
    broken[1, 5] = value
    tokens, logprobs, errors = sampler.sample(broken, ["good", "bad"]).wait()
    alone, alone_logprobs, none = untouched.sample(logits[:1], ["good"]).wait()
    assert errors == [None, "the logits hold NaN or infinity"] and none == [None]
    assert tokens[:1] == alone and logprobs == [*alone_logprobs, None] and 0 <= tokens[1] < 300
    assert torch.equal(sampler.sample(logits[:1], ["good"]).tokens, untouched.sample(logits[:1], ["good"]).tokens)
    scores = sampler.prompt_logprobs(broken, [0, 0], 1)
    assert scores.wait() == ([], "the logits hold NaN or infinity inside the prompt")


@pytest.mark.parametrize("penalised", [False, True])
def test_a_mask_that_allows_nothing_is_its_own_requests_trouble(penalised: bool) -> None:
    extra = {"repetition_penalty": 1.5, "logit_bias": {1: 3.0}, "min_tokens": 3} if penalised else {}
    requests = [request(name, seed=9, stop_ids={2}, logprobs=1, **extra) for name in ("free", "stuck")]
    sampler, untouched = Sampler(4, DEVICE), Sampler(4, DEVICE)
    for each in requests:
        sampler.add(each, [])
        untouched.add(each, [])
    masks = packed([[True] * 4, [False] * 4])
    for _ in range(5):
        tokens, logprobs, errors = sampler.sample(torch.ones(2, 4, device=DEVICE), ["free", "stuck"], masks).wait()
        alone = untouched.sample(torch.ones(1, 4, device=DEVICE), ["free"], masks[:1]).wait()
        assert errors == [None, "the mask allows no token"]
        assert (tokens[:1], logprobs[:1], logprobs[1]) == (*alone[:2], None)


def test_penalties_that_leave_float32_are_an_error_and_not_a_crash() -> None:
    logits = torch.full((2, 300), -3e38, device=DEVICE)
    sampler = Sampler(300, DEVICE)
    for name in ("a", "b"):
        sampler.add(request(name, prompt=[*range(300)], repetition_penalty=9 if name == "b" else 1.0), [])
    _, _, errors = sampler.sample(logits, ["a", "b"]).wait()
    assert errors == [None, "logit_bias, bad_words, allowed_token_ids or penalties leave no token"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_logprobs_are_the_models_own(dtype: torch.dtype) -> None:
    logits = noise(4, 3000, dtype=dtype)
    logits[:, 17] = -math.inf
    before = logits.clone()
    settings = [
        {"logprobs": 20, "temperature": 0.3, "repetition_penalty": 1.7, "logit_bias": {9: 90.0}},
        {"logprobs": 0},
        {},
        {"logprobs": 2, "temperature": 0},
    ]
    sampler = Sampler(3000, DEVICE)
    for row, params in enumerate(settings):
        sampler.add(request(str(row), prompt=[9, 10], **params), [])
    picks = sampler.sample(logits, ["0", "1", "2", "3"])
    tokens, logprobs, _ = picks.wait()
    assert picks.tokens.dtype == torch.int64 and picks.tokens.device == logits.device and tokens[0] == 9
    assert torch.equal(logits, before)
    assert logprobs[2] is None
    for row, k in ((0, 20), (1, 0), (3, 2)):
        check(logprobs[row][0], logits[row], int(tokens[row]), k)
    assert logprobs[3][0].rank == 1 and logprobs[3][0].top[0][0] == tokens[3]


def check(entry: TokenLogprobs, logits: torch.Tensor, token: int, k: int) -> None:
    exact = logits.double().log_softmax(-1).tolist()
    order = sorted(range(len(exact)), key=lambda i: (-logits[i].item(), i))
    assert entry.token == token and entry.logprob == pytest.approx(exact[token], abs=1e-5)
    assert entry.rank == order.index(token) + 1
    assert [i for i, _ in entry.top] == order[:k]
    assert [value for _, value in entry.top] == pytest.approx([exact[i] for i in order[:k]], abs=1e-5)


def test_prompt_logprobs_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler_module, "_CHUNK", 2 * 200)
    logits = noise(5, 200, dtype=torch.bfloat16)
    logits[3, :] = -math.inf
    logits[3, [5, 9]] = 1.0
    targets = [0, 199, 50, 7, 9]
    entries, error = Sampler(200, DEVICE).prompt_logprobs(logits, targets, 4).wait()
    assert error is None
    for row in (0, 1, 2, 4):
        check(entries[row], logits[row], targets[row], 4)
    assert entries[3].logprob == -math.inf and entries[3].rank == 9
    assert [i for i, _ in entries[3].top] == [5, 9, 0, 1]
    assert Sampler(200, DEVICE).prompt_logprobs(logits[:0], [], 4).wait() == ([], None)


@given(st.integers(1, 3), st.sampled_from([5, 64, 129, 1000]), st.integers(1, 12), st.integers(0, 10**6))
def test_top_breaks_ties_by_lower_id(rows: int, vocab: int, k: int, seed: int) -> None:
    levels = torch.tensor([-math.inf, -1.5, -0.0, 0.0, 1e-40, 2.0])
    picks = torch.randint(6, (rows, vocab), generator=torch.Generator().manual_seed(seed))
    values, k = levels[picks], min(k, vocab)
    best, ids = top(values.to(DEVICE), k)
    for row in range(rows):
        expected = sorted(range(vocab), key=lambda i: (-values[row, i].item(), i))[:k]
        assert ids[row].tolist() == expected
        assert best[row].tolist() == [values[row, i].item() for i in expected]


def test_inside_and_outside_of_inference_mode() -> None:
    sampler = Sampler(9, DEVICE)
    for step in range(4):
        with torch.inference_mode(step % 2 == 0):
            sampler.add(request(str(step), temperature=0, frequency_penalty=1), [])
            sampler.sample(noise(step + 1, 9, step).requires_grad_(), [str(i) for i in range(step + 1)])
            assert not sampler.sample(noise(1, 9, step), ["0"]).tokens.requires_grad


def test_no_requests() -> None:
    assert Sampler(8, DEVICE).sample(torch.zeros(0, 8, device=DEVICE), []).wait() == ([], [], [])


@pytest.mark.parametrize("least", [0, 1, 3])
def test_mask_and_end_agree_on_min_tokens(least: int) -> None:
    """The sampler holds a stop id back for exactly as long as the scheduler would pass it over."""
    each = request(temperature=0, stop_ids={1}, min_tokens=least, max_tokens=9)
    tokens = run([torch.tensor([[1.0, 3.0, 2.0]], device=DEVICE)] * 9, each)[0]
    sequence = Sequence(each, (0, 0.0, 0), 9, BlockManager(4, 16).new_table(b""))
    assert sequence.accept(tokens, 64) == (least + 1, FinishReason.STOP)
    offered = Sequence(each, (0, 0.0, 0), 9, BlockManager(4, 16).new_table(b""))
    assert offered.accept([1] * 9, 64) == (least + 1, FinishReason.STOP)
