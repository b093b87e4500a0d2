"""Reasoning told apart from the answer, in text and under a grammar."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest

from engine.grammar.live import Live
from engine.grammar.reasoning import Marks, start
from engine.server.answer import Answer, AnswerReader
from engine.server.reading import Reading
from engine.server.reasoning import PARSERS
from engine.structured_outputs import Reasoning, StructuredOutputsParams
from tests.pure.test_grammar import allowed, compiler
from tests.pure.test_tool_readers import cuts
from tests.pure.tokenizer_toys import chat_tokenizer

OPEN, SHUT = Reasoning("<think>", "</think>", True), Reasoning("<think>", "</think>", False)
TEXTS = [
    (OPEN, "why not</think>yes", "why not", "yes"),
    (OPEN, "\nwhy\n\nnot\n</think>\n\nyes\n", "why\n\nnot", "yes\n"),
    (OPEN, "<think>\nwhy</think>\nyes", "why", "yes"),
    (OPEN, "why</think>\n\n\nyes", "why", "\nyes"),
    (OPEN, "cut in the mid", "cut in the mid", ""),
    (OPEN, "cut in </thi", "cut in </thi", ""),
    (OPEN, "a </thin> b < </ </think></think>", "a </thin> b < </ ", "</think>"),
    (OPEN, "</think>yes", "", "yes"),
    (OPEN, "", "", ""),
    (SHUT, "<think>\nwhy\n</think>\n\nyes", "why", "yes"),
    (SHUT, "\n<think>why</think>yes", "why", "yes"),
    (SHUT, "<think>why", "why", ""),
    (SHUT, "plain <think>no</think>", "", "plain <think>no</think>"),
    (SHUT, "\n\nplain", "", "\n\nplain"),
    (SHUT, "<thin", "", "<thin"),
    (SHUT, " ", "", " "),
]


@pytest.mark.parametrize(("expected", "text", "reasoning", "content"), TEXTS)
def test_however_the_text_is_cut(expected, text, reasoning, content):
    for pieces in cuts(text) if text else [[""]]:
        reader = AnswerReader(Reading(None, expected))
        parts = [part for piece in pieces[:-1] for part in reader.read(piece, last=False)]
        answer = Answer.of([*parts, *reader.read(pieces[-1], last=True)])
        assert (answer.reasoning, answer.content) == (reasoning, content), pieces


@pytest.mark.parametrize(
    ("prompt", "continued", "deepseek_r1", "qwen3"),
    [
        ("[user]hi[assistant]", None, True, False),
        ("[user]hi[assistant]<think>\n", None, True, True),
        ("[user]hi[assistant]<think>\n\n</think>\n\n", None, None, None),
        ("[assistant]<think>x</think>y[user]hi[assistant]", None, True, False),
        ("[assistant]<think>x</think>y", "<think>x</think>y", None, None),
        ("[assistant]<think>so", "<think>so", True, True),
        ("[assistant]so", "so", None, None),
    ],
)
def test_the_prompt_says_whether_the_answer_begins_inside(prompt, continued, deepseek_r1, qwen3):
    tokenizer = chat_tokenizer("")
    ids = tokenizer.encode(prompt)
    for name, opens in (("deepseek_r1", deepseek_r1), ("qwen3", qwen3)):
        expected = PARSERS[name].expect(tokenizer, ids, continued)
        assert (None if expected is None else expected.open) == opens


def reasoned(name: str, reasoning: Reasoning, **form):
    made, vocabulary = compiler(name)
    grammar = made.compile(StructuredOutputsParams(**form).validate())
    return start(grammar, Marks(vocabulary, made.words, reasoning), reasoning), made, vocabulary


@pytest.mark.parametrize("name", ["builtin", "bytes", "sentencepiece"])
@pytest.mark.parametrize("reasoning", [OPEN, SHUT])
def test_the_form_begins_where_reasoning_ends(name, reasoning):
    draw = random.Random(5)
    for _ in range(12):
        grammar, made, vocabulary = reasoned(name, reasoning, regex="[ab]{2}7")
        text = b"" if reasoning.open else b"<think>"
        for token in bytes_of(vocabulary, text):
            assert token in allowed(grammar, made.words)
            grammar.accept([token])
        for _ in range(30):
            able = [t for t in allowed(grammar, made.words) if t < len(vocabulary.tokens) and vocabulary.tokens[t]]
            assert len(able) > 200 and not set(able) & set(vocabulary.ends) and not grammar.ended
            token = draw.choice(able)
            grammar.accept([token])
            text += vocabulary.tokens[token]
            if b"</think>" in text:
                break
        tail = b"</think>"[: 0 if b"</think>" in text else 8]
        for token in bytes_of(vocabulary, tail):
            assert token in allowed(grammar, made.words)
            grammar.accept([token])
        for _ in range(99):
            token = draw.choice([t for t in allowed(grammar, made.words) if t < len(vocabulary.tokens)])
            grammar.accept([token])
            text += vocabulary.tokens[token] if token not in vocabulary.ends else b""
            if grammar.ended:
                break
        answer = text.partition(b"</think>")[2] if tail == b"" else text[text.rindex(b"7") - 2 :]
        assert grammar.ended and re.fullmatch(rb"\n{0,2}[ab]{2}7", answer), text


def bytes_of(vocabulary, text: bytes) -> list[int]:
    return [vocabulary.tokens.index(bytes([byte])) for byte in text]


def test_a_token_that_ends_the_reasoning_and_goes_on_may_not_come():
    from engine.grammar import Vocabulary
    from engine.grammar.guidance import GuidanceCompiler

    tokens = [b"a", b"</think>", b"</think>a", b">a", b"</think", b">", b"\n", b"\n\n", b"\n\n\n", b"<end>", b"b>a"]
    vocabulary = Vocabulary(tokens, [9], [9])
    made = GuidanceCompiler(vocabulary)
    grammar = start(made.compile(StructuredOutputsParams(regex="a")), Marks(vocabulary, made.words, OPEN), OPEN)

    def able() -> list[bytes]:
        return [tokens[t] for t in allowed(grammar, made.words) if t < len(tokens)]

    assert set(tokens) - set(able()) == {b"</think>a", b"<end>"}
    grammar.accept([4])
    assert set(tokens) - set(able()) == {b"</think>a", b"<end>", b">a"}
    grammar.accept([5])
    assert able() == [b"a", b"\n", b"\n\n"]
    grammar.accept([6])
    assert able() == [b"a", b"\n"]
    grammar.accept([6])
    assert able() == [b"a"]
    grammar.accept([0])
    assert grammar.ended


def test_an_answer_may_begin_without_reasoning_where_it_is_not_assumed():
    grammar, made, vocabulary = reasoned("bytes", SHUT, regex="[ab]")
    assert allowed(grammar, made.words) == sorted(bytes_of(vocabulary, b"<ab"))
    grammar.accept(bytes_of(vocabulary, b"<"))
    assert allowed(grammar, made.words) == bytes_of(vocabulary, b"t")
    grammar.rollback(1)
    grammar.accept(bytes_of(vocabulary, b"b"))
    assert grammar.ended


def test_rollback_and_copies_across_the_end_of_reasoning():
    grammar, made, vocabulary = reasoned("bytes", OPEN, regex="abc")
    ids = bytes_of(vocabulary, b"x</think>\nabc")
    seen, copies = [], []
    for token in ids:
        seen.append(allowed(grammar, made.words))
        copies.append(grammar.copy())
        grammar.accept([token])
    for place in range(len(ids)):
        other = grammar.copy()
        other.rollback(len(ids) - place)
        assert allowed(other, made.words) == seen[place] == allowed(copies[place], made.words)
        other.accept(ids[place:])
        assert other.ended
    live = Live(reasoned("bytes", OPEN, regex="abc")[0], False)
    for length in (3, 11, 12, 5, 13):
        live.follow(ids[:length])
        row = np.full(made.words, -1, np.int32)
        live.grammar.fill(row)
        assert live.grammar.ended == (length == 13)
