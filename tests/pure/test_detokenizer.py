"""Streaming text equals text at once, in whole characters."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_toys import builtin, byte_backend, sentencepiece_metadata, word_backend, wrap

from engine.tokenizer import Detokenizer, Tokenizer
from engine.tokenizer.gguf_sentencepiece import build_sentencepiece
from engine.tokenizer.gguf_vocabulary import read_vocabulary

FAMILY = "👨‍👩‍👧‍👦"
ASTRONAUT = "👩‍🚀"


def sentencepiece() -> Tokenizer:
    return wrap(build_sentencepiece(read_vocabulary(sentencepiece_metadata(), "toy")))


TOKENIZERS = {
    "built-in": builtin(),
    "bytes": wrap(byte_backend()),
    "sentencepiece": sentencepiece(),
    "metaspace": wrap(word_backend()),
}
names = st.sampled_from(sorted(TOKENIZERS))


def streamed(tokenizer: Tokenizer, ids: list[int], cuts: list[int], **options: object) -> list[str]:
    stream = Detokenizer(tokenizer, **options)  # type: ignore[arg-type]
    edges = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    return [stream.push(ids[a:b]) for a, b in pairwise(edges)] + [stream.flush()]


@settings(max_examples=300, deadline=None)
@given(names, st.data(), st.lists(st.integers(0, 200)), st.booleans())
def test_any_grouping_of_any_ids_joins_to_decode(name: str, data: st.DataObject, cuts: list[int], skip: bool) -> None:
    tokenizer = TOKENIZERS[name]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=40))
    text = "".join(streamed(tokenizer, ids, cuts, skip_special_tokens=skip))
    assert text == tokenizer.decode(ids, skip)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(st.integers(0, 49151), st.integers(17, 300)), max_size=40), st.booleans())
def test_decode_equals_the_library_on_the_built_in(ids: list[int], skip: bool) -> None:
    tokenizer = builtin()
    assert tokenizer.decode(ids, skip) == tokenizer._backend.decode(ids, skip_special_tokens=skip)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 255), max_size=30))
def test_decode_of_any_bytes_equals_the_library(ids: list[int]) -> None:
    tokenizer = TOKENIZERS["bytes"]
    assert tokenizer.decode(ids) == tokenizer._backend.decode(ids)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="helowrdcf€é 👩\n", max_size=30))
def test_sentencepiece_text_comes_back(text: str) -> None:
    tokenizer = TOKENIZERS["sentencepiece"]
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text == tokenizer._backend.decode(ids)
    assert "".join(streamed(tokenizer, ids, [1, 2, 3, 5, 8])) == text


@pytest.mark.parametrize("text", ["ď", "€", ASTRONAUT, FAMILY, "a€b", f"x{FAMILY}y"])
@pytest.mark.parametrize("name", sorted(set(TOKENIZERS) - {"metaspace"}))
def test_H_API_03_no_half_character_in_any_delta(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert len(ids) > 1 or text in ("ď", "€")
    stream = Detokenizer(tokenizer)
    deltas = [stream.push([i]) for i in ids]
    assert "".join(deltas) == text and stream.flush() == ""
    assert not any("\ufffd" in delta for delta in deltas)


@pytest.mark.parametrize("text", ["ď", "€", ASTRONAUT])
@pytest.mark.parametrize("stop", [1, 2, 3])
def test_H_API_03_an_end_in_mid_character_is_the_same_in_both_modes(text: str, stop: int) -> None:
    tokenizer = TOKENIZERS["bytes"]
    ids = tokenizer.encode(text)[:stop]
    stream = Detokenizer(tokenizer)
    deltas = [stream.push([i]) for i in ids]
    assert not any("\ufffd" in delta for delta in deltas)
    tail = stream.flush()
    assert "".join(deltas) + tail == tokenizer.decode(ids)
    whole = len(ids) == len(text[0].encode())
    assert tail == ("" if whole else "\ufffd")


def test_an_invalid_sequence_is_shown_once_later_bytes_prove_it() -> None:
    tokenizer = TOKENIZERS["bytes"]
    first, letter = tokenizer.encode("€")[:1], tokenizer.encode("a")
    stream = Detokenizer(tokenizer)
    assert stream.push(first) == ""
    assert stream.push(letter) == "\ufffda"
    assert stream.flush() == ""


def test_a_continuation_keeps_the_blank_before_its_first_word() -> None:
    tokenizer = TOKENIZERS["sentencepiece"]
    prompt, answer = tokenizer.encode("hello", False), tokenizer.encode("world", False)
    assert Detokenizer(tokenizer, prompt_ids=prompt).push(answer) == " world"
    assert Detokenizer(tokenizer).push(answer) == "world"
    assert Detokenizer(tokenizer, prompt_ids=[1]).push(answer) == "world"
    assert Detokenizer(tokenizer, skip_special_tokens=False, prompt_ids=[1]).push(answer) == " world"


def test_a_character_that_the_prompt_began_is_completed() -> None:
    tokenizer = TOKENIZERS["bytes"]
    euro = tokenizer.encode("a€")
    stream = Detokenizer(tokenizer, prompt_ids=euro[:-1])
    assert stream.push(euro[-1:]) == "€"


@settings(max_examples=200, deadline=None)
@given(names, st.data(), st.lists(st.integers(0, 200)))
def test_prompt_and_continuation_join_to_decode(name: str, data: st.DataObject, cuts: list[int]) -> None:
    tokenizer = TOKENIZERS[name]
    ids = st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=20)
    prompt, answer = data.draw(ids), data.draw(ids)
    stream = Detokenizer(tokenizer)
    before = stream.push(prompt)
    text = before + "".join(streamed(tokenizer, answer, cuts, prompt_ids=prompt))
    assert text == tokenizer.decode(prompt + answer)


def test_the_work_per_token_does_not_grow() -> None:
    tokenizer = builtin()
    stream, seen = Detokenizer(tokenizer), 0
    for token in tokenizer.encode("a€👩‍🚀 word ") * 2000:
        stream.push([token])
        seen = max(seen, len(stream._decoder.getstate()[0]))
    assert seen <= 3
