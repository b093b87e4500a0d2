"""From tokens to text: stop strings, alignment, expansion of n."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.batch import FinishReason, Output, Request, TokenLogprobs
from engine.errors import RequestError
from engine.expand import expand, seeds_from
from engine.generation import Delta
from engine.outputs import OutputProcessor
from engine.sampling_params import SamplingParams
from engine.scheduler_config import resolve_max_tokens
from engine.stop_strings import StopStrings
from tests.scripted_core import BEGIN, END, VOCABULARY, ToyTokenizer

CONTEXT = 64


def run(
    tokens: list[int],
    params: SamplingParams,
    chunks: list[int] | None = None,
    words: list[str] = (),
    finish: FinishReason = FinishReason.LENGTH,
    stop_token: int | None = None,
) -> tuple[list[Delta], bool]:
    """Deltas of these tokens sent in outputs of these sizes, the last one with ``finish``; and whether aborted."""
    processor = OutputProcessor(ToyTokenizer(words))
    processor.add("r", [1], params, 0)
    deltas, aborted, at = [], False, 0
    sizes = list(chunks or [1] * len(tokens))
    while at < len(tokens):
        size = sizes.pop(0) if sizes else len(tokens)
        part = tokens[at : at + size]
        at += size
        last = at >= len(tokens)
        logprobs = [TokenLogprobs(token, -1.0, 1, []) for token in part]
        output = Output("r", part, finish if last else None, stop_token if last else None, logprobs=logprobs)
        delta, abort = processor.process(output)
        aborted |= abort
        if delta is not None:
            deltas.append(delta)
    assert len(processor) == 0
    return deltas, aborted


def text_of(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


def ids_of(deltas: list[Delta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


def first_stop(text: str, stops: list[str]) -> tuple[int, str] | None:
    """Plainly: the smallest end of any occurrence; at equal ends the longest."""
    found = [
        (start + len(stop), -len(stop), stop)
        for stop in stops
        for start in range(len(text))
        if text.startswith(stop, start)
    ]
    return (min(found)[0], min(found)[2]) if found else None


def test_H_SCH_07_stop_string_over_tokens_never_leaks():
    tokens = list("ab—END—cd".encode())
    deltas, aborted = run(tokens, SamplingParams(stop=["—END—"]))
    assert text_of(deltas) == "ab" and aborted
    assert deltas[-1].finish_reason is FinishReason.STOP and deltas[-1].stop_reason == "—END—"
    assert not any("—" in delta.text or "E" in delta.text for delta in deltas)
    whole, _ = run(tokens, SamplingParams(stop=["—END—"]), [len(tokens)])
    assert text_of(whole) == "ab"


@pytest.mark.parametrize("stops", [["—E", "—END—"], ["—END—", "—E"]])
@pytest.mark.parametrize("chunk", [1, 2, 100])
def test_H_SCH_07_stop_that_is_a_prefix_of_another(stops, chunk):
    tokens = list("ab—END—cd".encode())
    deltas, _ = run(tokens, SamplingParams(stop=stops), [chunk] * len(tokens))
    assert text_of(deltas) == "ab" and deltas[-1].stop_reason == "—E"


def test_what_was_held_is_shown_when_no_stop_came():
    deltas, aborted = run(list(b"ab<stx"), SamplingParams(stop=["<stop>"]))
    assert text_of(deltas) == "ab<stx" and not aborted
    assert [delta.text for delta in deltas] == ["a", "b", "<stx"]
    assert [delta.token_ids for delta in deltas] == [[97], [98], list(b"<stx")]
    ended, _ = run(list(b"ab<sto"), SamplingParams(stop=["<stop>"]))
    assert text_of(ended) == "ab<sto" and ended[-1].finish_reason is FinishReason.LENGTH


def test_stop_string_is_shown_when_asked_for():
    deltas, _ = run(list(b"ab<stop>cd"), SamplingParams(stop=["<stop>"], include_stop_str_in_output=True))
    assert text_of(deltas) == "ab<stop>" and deltas[-1].stop_reason == "<stop>"


def test_min_tokens_gates_stop_strings():
    params = SamplingParams(stop=["b"], min_tokens=4)
    deltas, _ = run(list(b"abababab"), params)
    assert text_of(deltas) == "ababa" and len(ids_of(deltas)) == 6
    gated, aborted = run(list(b"abab"), SamplingParams(stop=["b"], min_tokens=4))
    assert text_of(gated) == "abab" and not aborted


def test_stop_begun_in_the_gated_part_can_complete_after_it():
    deltas, _ = run(list(b"xxENDyy"), SamplingParams(stop=["END"], min_tokens=4))
    assert text_of(deltas) == "xx"


@pytest.mark.parametrize(("include", "text"), [(False, "ab"), (True, "abX")])
def test_text_of_a_stop_token(include, text):
    params = SamplingParams(stop_token_ids=[ord("X")], include_stop_str_in_output=include)
    deltas, aborted = run(list(b"abX"), params, finish=FinishReason.STOP, stop_token=ord("X"))
    assert text_of(deltas) == text and ids_of(deltas) == list(b"abX") and not aborted
    assert deltas[-1].finish_reason is FinishReason.STOP and deltas[-1].stop_reason == ord("X")


def test_end_token_has_no_stop_reason():
    deltas, _ = run([97, END], SamplingParams(), finish=FinishReason.STOP, stop_token=END)
    assert text_of(deltas) == "a" and deltas[-1].stop_reason is None and ids_of(deltas) == [97, END]


def test_tokens_after_the_stop_string_are_dropped():
    deltas, aborted = run([258, 259, 260], SamplingParams(stop=["N"], logprobs=1), [3], ["ab", "cNd", "ef"])
    assert not aborted and text_of(deltas) == "abc" and ids_of(deltas) == [258, 259]
    assert [row.token for delta in deltas for row in delta.logprobs] == [258, 259]


def test_stop_string_in_the_last_token_is_a_stop():
    deltas, aborted = run([258], SamplingParams(stop=["N"]), words=["aN"])
    assert deltas[-1].finish_reason is FinishReason.STOP and text_of(deltas) == "a" and not aborted


def test_tokens_wait_for_their_character():
    deltas, _ = run(list("a€".encode()), SamplingParams(logprobs=0))
    assert [(delta.text, len(delta.token_ids), len(delta.logprobs)) for delta in deltas] == [("a", 1, 1), ("€", 3, 3)]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_H_API_03_end_in_mid_character_is_the_same_streamed_or_not(count):
    tokens = [97, *"👩".encode()[:count]]
    streamed, _ = run(tokens, SamplingParams())
    whole, _ = run(tokens, SamplingParams(), [len(tokens)])
    assert text_of(streamed) == text_of(whole) == "a\ufffd"
    assert not any("\ufffd" in delta.text for delta in streamed[:-1])


def test_prompt_logprobs_come_with_the_first_delta():
    processor = OutputProcessor(ToyTokenizer())
    processor.add("r", [1, 2, 3], SamplingParams(prompt_logprobs=0), 0)
    rows = [TokenLogprobs(2, -1.0, 1, []), TokenLogprobs(3, -2.0, 1, [])]
    assert processor.process(Output("r", [], prompt_logprobs=rows[:1])) == (None, False)
    delta, _ = processor.process(Output("r", [97], prompt_logprobs=rows[1:], cached_tokens=2))
    assert delta.prompt_logprobs == rows and delta.cached_tokens == 2
    later, _ = processor.process(Output("r", [97]))
    assert later.prompt_logprobs is None and later.cached_tokens == 2


def test_an_output_after_the_end_is_ignored():
    processor = OutputProcessor(ToyTokenizer())
    processor.add("r", [1], SamplingParams(stop=["b"]), 0)
    assert processor.process(Output("r", list(b"ab")))[1]
    assert processor.process(Output("r", [97])) == (None, False)


pieces = st.lists(st.text("abcé€", min_size=1, max_size=3), min_size=1, max_size=6)


@given(
    words=pieces,
    picks=st.lists(st.integers(0, 5), min_size=1, max_size=30),
    chunks=st.lists(st.integers(1, 5), max_size=30),
    stops=st.lists(st.text("abcé€", min_size=1, max_size=4), max_size=3),
    include=st.booleans(),
    as_bytes=st.booleans(),
)
def test_streamed_text_is_the_cut_text(words, picks, chunks, stops, include, as_bytes):
    full = "".join(words[pick % len(words)] for pick in picks)
    tokens = list(full.encode()) if as_bytes else [BEGIN + 1 + pick % len(words) for pick in picks]
    deltas, _ = run(tokens, SamplingParams(stop=stops, include_stop_str_in_output=include), chunks, words)
    match = first_stop(full, stops)
    if match is None:
        assert text_of(deltas) == full and deltas[-1].finish_reason is FinishReason.LENGTH
        assert ids_of(deltas) == tokens
    else:
        end, stop = match
        assert text_of(deltas) == (full[:end] if include else full[: end - len(stop)])
        assert deltas[-1].finish_reason is FinishReason.STOP and deltas[-1].stop_reason == stop
        assert ids_of(deltas) == tokens[: len(ids_of(deltas))]
        shown = ToyTokenizer(words).decode(ids_of(deltas))
        assert len(shown) >= end and shown.startswith(full[:end])
    assert all(delta.text for delta in deltas[:-1])


@given(
    text=st.text("ab", max_size=40),
    stops=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3),
    gate=st.integers(0, 40),
)
def test_stop_strings_against_plain_search(text, stops, gate):
    watcher, match = StopStrings(stops), None
    for place, character in enumerate(text):
        match = watcher.feed(character, armed=place >= gate)
        if match:
            break
        ends = [size for stop in stops for size in range(1, len(stop)) if text[: place + 1].endswith(stop[:size])]
        assert watcher.held == max(ends, default=0)
    ends = sorted(
        (end, -len(stop), stop) for stop in stops for end in range(gate + 1, len(text) + 1) if text[:end].endswith(stop)
    )
    assert (match and match.stop) == (ends[0][2] if ends else None)


def expanded(prompt=(1, 2, 3), **options):
    params = options.pop("params", None) or SamplingParams(**options)
    return expand(
        "X", list(prompt), params, eos_ids=frozenset({END}), vocab_size=VOCABULARY, max_model_len=CONTEXT, arrival=1.0
    )


def test_H_SCH_09_choices_have_ids_and_seeds_of_their_own():
    three = expanded(n=3, seed=7)
    assert [request.id for request in three] == ["X-0", "X-1", "X-2"]
    seeds = [request.params.seed for request in three]
    assert seeds[0] == 7 and len(set(seeds)) == 3
    assert seeds == [request.params.seed for request in expanded(n=3, seed=7)]
    assert not set(seeds) & {request.params.seed for request in expanded(n=3, seed=8)}
    assert all(request.params.n == 1 for request in three)
    assert {request.params.seed for request in expanded(n=3)} == {None}
    assert [request.id for request in expanded()] == ["X"]


@settings(max_examples=50)
@given(st.integers(-(2**63), 2**63 - 1))
def test_seeds_made_from_that_of_the_engine(seed):
    first, other = list(islice(seeds_from(seed), 100)), list(islice(seeds_from(seed ^ 1), 100))
    assert first == list(islice(seeds_from(seed), 100))
    assert len({*first, *other}) == 200 and all(-(2**63) <= each < 2**63 for each in first)
    assert min(first) < 0 < max(first)


def test_only_what_brings_no_seed_and_is_served_takes_one():
    def ask(seeds, **options):
        params = SamplingParams(**options)
        common = {"eos_ids": frozenset(), "vocab_size": VOCABULARY, "max_model_len": CONTEXT}
        return [request.params.seed for request in expand("X", [1], params, seeds=seeds, **common)]

    seeds, (first, second) = seeds_from(7), islice(seeds_from(7), 2)
    assert ask(seeds, seed=3) == [3]
    with pytest.raises(RequestError):
        ask(seeds, max_tokens=CONTEXT)
    assert ask(seeds) == [first]
    assert ask(seeds, n=2) == [request.params.seed for request in expanded(n=2, seed=second)]
    assert ask(seeds_from(None)) == [None]


def test_one_rule_for_the_room_in_front_and_in_the_core():
    for length, asked in ((10, 55), (64, None)):
        params = SamplingParams(max_tokens=asked)
        with pytest.raises(RequestError) as core:
            resolve_max_tokens(Request("X", [1] * length, params, 1.0), CONTEXT, capacity=10**6)
        with pytest.raises(RequestError) as front:
            expanded([1] * length, params=params)
        assert (front.value.message, front.value.param) == (core.value.message, core.value.param)


def test_greedy_with_several_choices_is_allowed():
    assert len(expanded(n=2, temperature=0.0)) == 2


def test_only_choice_0_has_prompt_logprobs():
    assert [request.params.prompt_logprobs for request in expanded(n=2, prompt_logprobs=3)] == [3, None]


def test_stop_ids():
    assert expanded(stop_token_ids=[5])[0].stop_ids == {5, END}
    assert expanded(stop_token_ids=[5], ignore_eos=True)[0].stop_ids == {5}


@pytest.mark.parametrize("asked", [55, 10**9])
def test_H_API_10_more_than_is_left_is_refused_with_three_numbers(asked):
    with pytest.raises(RequestError, match=rf"10 tokens.*{asked}.*{CONTEXT}") as error:
        expanded(range(10), max_tokens=asked)
    assert error.value.param == "max_tokens"


def test_H_API_10_the_exact_rest_is_served():
    assert expanded(range(10), max_tokens=54)[0].params.max_tokens == 54
    assert expanded(range(10), max_tokens=None)[0].params.max_tokens is None


@pytest.mark.parametrize("length", [64, 65])
def test_H_SCH_02_no_room_at_all(length):
    with pytest.raises(RequestError, match=f"{length} tokens.*64") as error:
        expanded([1] * length, max_tokens=None)
    assert error.value.param == "prompt"
    assert expanded([1] * 63, max_tokens=1)


def test_min_tokens_beyond_the_context():
    with pytest.raises(RequestError) as error:
        expanded([1] * 60, max_tokens=None, min_tokens=5)
    assert error.value.param == "min_tokens"


@pytest.mark.parametrize("prompt", [[-1], [5, -7]])
def test_H_API_05_negative_ids(prompt):
    with pytest.raises(RequestError, match=str(min(prompt))) as error:
        expanded(prompt)
    assert error.value.param == "prompt"


@pytest.mark.parametrize("token", [VOCABULARY, VOCABULARY + 1, 2**31, 2**63])
def test_H_API_06_ids_beyond_the_vocabulary(token):
    with pytest.raises(RequestError, match=rf"{token}.*{VOCABULARY - 1}") as error:
        expanded([token])
    assert error.value.param == "prompt"
    assert expanded([VOCABULARY - 1])


def test_H_API_07_empty_prompt():
    with pytest.raises(RequestError) as error:
        expanded([])
    assert error.value.param == "prompt"


@pytest.mark.parametrize("token", [True, 1.0, "1", None])
def test_what_is_no_token_id(token):
    with pytest.raises(RequestError) as error:
        expanded([token])
    assert error.value.param == "prompt"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "hot"),
        ("temperature", float("nan")),
        ("n", 0),
        ("n", 10**18),
        ("stop", [5]),
        ("stop", [""]),
        ("stop", ["\ud800"]),
        ("logit_bias", {VOCABULARY: 1.0}),
        ("seed", 2**70),
        ("max_tokens", -1),
    ],
)
def test_bad_parameters_are_named(name, value):
    with pytest.raises(RequestError) as error:
        expanded(**{name: value})
    assert error.value.param == name


def test_one_stop_string_may_be_given_bare():
    assert expanded(stop="END")[0].params.stop == ["END"]
    assert expanded(stop=None)[0].params.stop == []


@pytest.mark.parametrize("field", [{"priority": 2**40}, {"cache_salt": "\udfff"}])
def test_other_fields_of_a_request(field):
    with pytest.raises(RequestError) as error:
        expand("X", [1], SamplingParams(), eos_ids=frozenset(), vocab_size=9, max_model_len=CONTEXT, **field)
    assert error.value.param == next(iter(field))
