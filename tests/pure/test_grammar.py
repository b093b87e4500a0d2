"""Grammars over every kind of tokenizer: only what fits is allowed, and all of what is allowed fits."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.grammar import GrammarError, Vocabulary, vocabulary_of
from engine.grammar.answer import Live
from engine.grammar.checker import Checker
from engine.grammar.guidance import MAX_BLANKS, GuidanceCompiler
from engine.structured_outputs import StructuredOutputsParams
from engine.tokenizer import Tokenizer
from engine.tokenizer.gguf_sentencepiece import build_sentencepiece
from engine.tokenizer.gguf_vocabulary import read_vocabulary
from tests.pure.tokenizer_toys import builtin, byte_backend, sentencepiece_metadata, word_backend, wrap
from tests.schemas import is_valid, schemas
from tests.scripted_core import ToyTokenizer

TOKENIZERS = {
    "builtin": builtin,
    "bytes": lambda: wrap(byte_backend()),
    "sentencepiece": lambda: wrap(build_sentencepiece(read_vocabulary(sentencepiece_metadata(), "toy"))),
    "endless words": lambda: wrap(word_backend()),
    "toy": lambda: ToyTokenizer(['"a', "}}", " 1", "  "]),
}
LIMIT_S = 5.0


@lru_cache
def compiler(name: str) -> tuple[GuidanceCompiler, Vocabulary]:
    tokenizer: Tokenizer = TOKENIZERS[name]()
    vocabulary = vocabulary_of(tokenizer, tokenizer.vocab_size + 40)  # logits are often padded
    return GuidanceCompiler(vocabulary), vocabulary


def params(**fields) -> StructuredOutputsParams:
    return StructuredOutputsParams(**fields).validate()


def allowed(grammar, words: int) -> list[int]:
    row = np.full(words, -1, np.int32)
    grammar.fill(row)
    return np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()


def walk(name: str, wish: StructuredOutputsParams, choose, most: int = 2000) -> str | None:
    """An answer whose tokens ``choose`` takes from those allowed; ``None`` if it does not end."""
    made, vocabulary = compiler(name)
    grammar, text = made.compile(wish), b""
    for _ in range(most):
        token = choose([t for t in allowed(grammar, made.words) if t < len(vocabulary.tokens)])
        if token in vocabulary.ends:
            return text.decode()
        assert vocabulary.tokens[token] and token not in vocabulary.special
        grammar.accept([token])
        text += vocabulary.tokens[token]
        if grammar.ended:
            return text.decode()
    return None


@pytest.mark.parametrize("name", [name for name in TOKENIZERS if name != "endless words"])
def test_every_tokenizer_fixture_gives_answers_of_the_form(name):
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer", "maximum": 10**6}, "größe": {"enum": ["€", "no"]}},
        "required": ["a", "größe"],
        "additionalProperties": False,
    }
    for seed in range(5):
        draw = random.Random(seed).choice
        assert is_valid(walk(name, params(json=schema), draw), schema)
        assert re.fullmatch(r"[a-c]{3,5}é?", walk(name, params(regex=r"[a-c]{3,5}é?"), draw))
        assert walk(name, params(choice=['say "hi"', "no\n", "€"]), draw) in ['say "hi"', "no\n", "€"]
        assert re.fullmatch(r"(ab)+c", walk(name, params(grammar='start: "ab"+ "c"'), draw))
        assert re.fullmatch(r"x*[0-9]", walk(name, params(grammar='root ::= "x" root | [0-9]'), draw))


def test_a_tokenizer_without_an_end_token_ends_where_nothing_may_follow():
    assert walk("endless words", params(regex=" a( b)?c"), lambda tokens: tokens[-1]) in (" ac", " a bc")


def test_an_end_is_allowed_exactly_where_the_form_may_end():
    made, vocabulary = compiler("bytes")
    grammar = made.compile(params(regex="ab?"))
    assert allowed(grammar, made.words) == [vocabulary.tokens.index(b"a")] and not grammar.ended
    grammar.accept([vocabulary.tokens.index(b"a")])
    assert allowed(grammar, made.words) == sorted([vocabulary.tokens.index(b"b"), *vocabulary.ends])
    assert not grammar.ended
    grammar.accept(vocabulary.ends[:1])
    assert grammar.ended


def test_rollback_and_copies():
    made, vocabulary = compiler("bytes")
    ids = [vocabulary.tokens.index(bytes([byte])) for byte in b'{"a":12}']
    start = made.compile(params(json={"type": "object", "additionalProperties": {"type": "integer"}}))
    grammar, seen = start.copy(), []
    for token in ids:
        seen.append(allowed(grammar, made.words))
        grammar.accept([token])
    assert grammar.ended
    for place in (7, 5, 2, 0):
        other = grammar.copy()
        other.rollback(len(ids) - place)
        assert allowed(other, made.words) == seen[place] and not other.ended
        other.accept(ids[place:])
        assert other.ended
    assert allowed(start, made.words) == seen[0]
    with pytest.raises(GrammarError, match="doesn't satisfy"):
        start.accept(ids[1:2])


@pytest.mark.parametrize("wish", [
    {"json": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
              "additionalProperties": False}},
    {"json": {"type": "array", "items": {"type": "array", "items": {"type": "boolean"}, "minItems": 2}, "minItems": 2,
              "maxItems": 2}},
    {"json": {"type": "object", "properties": {"b": {"type": "array", "items": {"const": [1, 2]}, "maxItems": 2}},
              "required": ["b"]}},
    {"json": {"const": {"a": [1, 2]}}, "whitespace_pattern": r"[ \n]{0,4}"},
])  # fmt: skip
@pytest.mark.parametrize("name", ["builtin", "bytes", "toy"])
def test_H_STR_04_whoever_prefers_blanks_gets_valid_json_in_the_end(name, wish):
    """Outside strings at most 16 in a row, by default."""
    _, vocabulary = compiler(name)
    blank = [bool(piece) and not piece.strip(b" \n\t\r") for piece in vocabulary.tokens]
    longest = max(range(len(blank)), key=lambda token: len(vocabulary.tokens[token]) if blank[token] else 0)
    draw = random.Random(3)

    def choose(tokens):
        blanks = [token for token in tokens if blank[token]]
        if longest in tokens or blanks:
            return longest if longest in tokens else max(blanks, key=lambda token: len(vocabulary.tokens[token]))
        quotes = [t for t in tokens if vocabulary.tokens[t].endswith((b'"', b"}", b"]"))]
        return draw.choice(quotes or tokens)

    text = walk(name, params(**wish), choose, most=4000)
    assert text is not None
    json.loads(text)
    most = 4 if "whitespace_pattern" in wish else MAX_BLANKS
    runs = re.findall(r"[ \n\t\r]+", re.sub(r'"[^"]*"', '""', text))
    assert max(map(len, runs), default=0) <= most


@pytest.mark.parametrize("pattern", [" *", r"\s*", " {0,17}", "a", r"[ \n]{0,8}x?", "( )+", ".{2}"])
def test_H_STR_04_a_pattern_for_blanks_is_bounded(pattern):
    with pytest.raises(GrammarError, match="whitespace_pattern"):
        compiler("bytes")[0].compile(params(json_object=True, whitespace_pattern=pattern))


@pytest.mark.parametrize(
    "pattern", ["(", "[a-", "*x", "a{2,1}", r"(a)\1", r"(?=a)b", r"\p{Foo}", r"[^\x00-\x{10ffff}]"]
)
def test_H_STR_01_invalid_regex(pattern):
    with pytest.raises(GrammarError):
        compiler("bytes")[0].compile(params(regex=pattern))


@pytest.mark.parametrize("schema", [
    {"type": "strng"}, {"type": 5}, {"$ref": "#/none"}, "text", "[]", "5", "true", "{", {"properties": 5},
    {"enum": []}, {"type": "string", "pattern": "("}, {"type": "string", "minLength": 3, "maxLength": 1},
    {"type": "string", "format": "whatever"}, {"$ref": "http://localhost/x"}, {"required": ["a"], "maxProperties": 0,
     "type": "object"}, {"oneOf": [{"type": "integer"}, {"type": "number"}]},
])  # fmt: skip
def test_H_STR_02_invalid_json_schema(schema):
    with pytest.raises(GrammarError):
        compiler("bytes")[0].compile(params(json=schema))


@pytest.mark.parametrize(
    "text", ["start: x", "?", 'foo: "a"', "start: /(/", "root ::= (", 'start: %json {"type": "null"}']
)
def test_a_grammar_that_is_none(text):
    with pytest.raises(GrammarError):
        compiler("bytes")[0].compile(params(grammar=text))


@pytest.mark.parametrize("pattern", [r"\p{Foo}", r"^(?=a)a$", r"\bfoo", r"(a)\1", r"^\Z", "["])
def test_H_STR_03_a_pattern_outside_the_supported_set_is_refused(pattern):
    with pytest.raises(GrammarError):
        compiler("bytes")[0].compile(params(json={"type": "string", "pattern": pattern}))


def test_H_STR_05_pattern_properties_and_recursion_are_enforced():
    named = {"type": "object", "patternProperties": {"^a{1,3}$": {"type": "boolean"}}, "additionalProperties": False}
    tree = {"$ref": "#/$defs/node", "$defs": {"node": {
        "type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
        "required": ["children"], "additionalProperties": False}}}  # fmt: skip
    for seed in range(20):
        for schema in (named, tree):
            text = walk("bytes", params(json=schema), random.Random(seed).choice, most=5000)
            assert text is None or is_valid(text, schema)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(schemas, st.integers(0, 2**32))
def test_any_walk_through_a_schema_ends_in_what_it_allows(schema, seed):
    try:
        text = walk("bytes", params(json=schema), random.Random(seed).choice)
    except GrammarError:
        return
    assert text is not None and is_valid(text, schema)


def test_a_name_cannot_be_written_in_a_second_way():
    made, vocabulary = compiler("bytes")
    grammar = made.compile(params(json={"type": "object", "properties": {"a": {"type": "integer"}}}))
    with pytest.raises(GrammarError):
        grammar.accept([vocabulary.tokens.index(bytes([byte])) for byte in rb'{"\u0061":"x"}'])


@pytest.fixture
def checker():
    made = Checker()
    yield made
    made.close()


EXPLOSIVE = [
    {
        "json": {
            "allOf": [{"anyOf": [{"properties": {f"{a}{i}": {"type": "string"}}} for a in "ab"]} for i in range(40)]
        }
    },
    {"json": {"enum": [f"value {i * 7919}" for i in range(7000)]}},
    {"regex": "(" * 2000 + "a" + ")" * 2000},
    {"regex": "((a{1,1000}){1,1000}){1,1000}b(c|d)*e(c|d){400}"},
    {"grammar": "start: " + "(" * 50_000 + '"a"' + ")" * 50_000},
    {"grammar": "start: " + " | ".join(f'"{i}"' for i in range(10_000))},
]


@pytest.mark.parametrize("place", range(len(EXPLOSIVE)))
def test_H_STR_05_explosive_forms_are_answered_in_time(checker, place):
    checker.submit(params(regex="a")).result(LIMIT_S)
    begin = time.monotonic()
    try:
        checker.submit(params(**EXPLOSIVE[place])).result(LIMIT_S)
    except GrammarError as error:
        assert str(error)
    assert time.monotonic() - begin < LIMIT_S
    checker.submit(params(regex="b")).result(LIMIT_S)


def test_a_helper_that_hangs_or_dies_costs_its_own_question(checker, monkeypatch, tmp_path):
    (tmp_path / "slow_helper.py").write_text(
        "import signal, sys, time\n"
        "for line in sys.stdin:\n"
        "    if b'slow'.decode() in line:\n"
        "        signal.setitimer(signal.ITIMER_REAL, 0.2)\n"
        "        time.sleep(60)\n"
        "    if 'crash' in line:\n"
        "        sys.exit(3)\n"
        "    print('null', flush=True)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("engine.grammar.checker._HELPER", "slow_helper")
    with pytest.raises(GrammarError, match="too long"):
        checker.submit(params(regex="slow")).result(20)
    checker.submit(params(regex="fine")).result(20)
    with pytest.raises(GrammarError, match="survive"):
        checker.submit(params(regex="crash")).result(20)
    checker.submit(params(regex="fine too")).result(20)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(checker._ask, b"slow " * 2)
        checker.close()
        with pytest.raises(GrammarError):
            asked.result(20)
    assert checker._helper is None


def test_a_schema_that_the_library_refuses_is_refused_in_our_words():
    for schema, words in (
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "use anyOf"),
        ({"type": "object", "additionalProperties": "no"}, "there is a string"),
    ):
        with pytest.raises(GrammarError, match=words):
            compiler("bytes")[0].compile(params(json=schema))


def test_the_front_end_loads_neither_torch_nor_the_library():
    code = "import sys, engine.server.app, engine.grammar.checker; print({'torch', 'llguidance'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"


def test_the_core_follows_tokens_it_has_not_seen_and_takes_back_what_was_dropped():
    made, vocabulary = compiler("bytes")
    ids = [vocabulary.tokens.index(bytes([byte])) for byte in b"abcabc"]
    live = Live(made.compile(params(regex="(abc)+")), endless=False)
    live.follow(ids[:4])
    seen = allowed(live.grammar, made.words)
    live.follow(ids)
    live.follow(ids[:4])
    assert allowed(live.grammar, made.words) == seen == [ids[1]]
    assert live.error is None
    live.follow([*ids[:4], ids[0]])
    assert "doesn't satisfy" in (live.error or "")
