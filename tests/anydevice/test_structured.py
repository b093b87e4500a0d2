"""Structured output through the engine: a tiny model whose tokens are bytes, drawn at temperature 2."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings

from engine import LLM, SamplingParams, StructuredOutputsParams
from engine.errors import RequestError
from engine.grammar import GrammarError
from engine.grammar.guidance import GuidanceGrammar
from tests.checkpoints import hf_config, random_weights, write_hf
from tests.pure.test_grammar import compiler
from tests.pure.tokenizer_toys import END, byte_backend
from tests.schemas import is_valid, schemas

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
}
PEOPLE = {"type": "array", "items": PERSON, "minItems": 3, "maxItems": 3}
IN_PIECES = {"max_num_batched_tokens": 24, "enable_prefix_caching": False, "block_size": 8, "max_num_seqs": 8}


def write_model(folder: Path) -> Path:
    """Logits wider than the vocabulary of 259 tokens, as they often are."""
    config = hf_config(vocab_size=300, bos_token_id=256, eos_token_id=257)
    write_hf(folder, config, random_weights(config, seed=4))
    backend = byte_backend()
    assert backend.token_to_id(END) == 257
    backend.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("bytes"))


def open_llm(folder: Path, **more: object) -> LLM:
    settings = {"max_model_len": 512, "kv_cache_memory_bytes": 4 << 20, "optimization_level": 0, "dtype": "float32"}
    return LLM(str(folder), **(settings | more))


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with open_llm(folder, max_num_seqs=32) as opened:
        yield opened


def byte(character: str) -> int:
    token = byte_backend().token_to_id("Ġ" if character == " " else "Ċ" if character == "\n" else character)
    assert token is not None
    return token


def hot(seed: int, **form: object) -> SamplingParams:
    wanted = StructuredOutputsParams(**form)
    return SamplingParams(temperature=2, seed=seed, max_tokens=300, structured_outputs=wanted)


def drawn(count: int) -> list[dict]:
    """Schemas that can be compiled; what cannot is said, not passed over."""
    found: list[dict] = []

    @settings(max_examples=count, derandomize=True, deadline=None, database=None, phases=[Phase.generate])
    @given(schemas)
    def draw(schema: dict) -> None:
        with contextlib.suppress(GrammarError):
            compiler("bytes")[0].compile(StructuredOutputsParams(json=schema))
            found.append(schema)

    draw()
    return found


def test_200_random_schemas_at_temperature_2(llm: LLM) -> None:
    wanted = drawn(240)
    assert len(wanted) >= 200
    results = llm.generate(
        [[66, place % 60] for place in range(len(wanted))], [hot(7, json=each) for each in wanted], False
    )
    answers = [result.outputs[0] for result in results]
    ended = [
        (each, answer.text) for each, answer in zip(wanted, answers, strict=True) if answer.finish_reason == "stop"
    ]
    assert len(ended) >= len(wanted) * 0.9
    for schema, text in ended:
        assert is_valid(text, schema), (schema, text)


def wish(schema: dict) -> StructuredOutputsParams:
    return StructuredOutputsParams(json=schema)


def answers(llm: LLM, prompts: list[list[int]], params: list[SamplingParams]) -> list[list[tuple[str, str | None]]]:
    results = llm.generate(prompts, params, False)
    return [[(choice.text, choice.finish_reason) for choice in result.outputs] for result in results]


def test_chunked_prefill_and_preemption_change_nothing(folder: Path, llm: LLM) -> None:
    prompts = [[65 + (place * 7 + at) % 50 for at in range(60 + place)] for place in range(8)]
    params = [hot(place, json=PEOPLE) for place in range(7)] + [SamplingParams(temperature=0, max_tokens=40)]
    alone = [answers(llm, [prompt], [each])[0] for prompt, each in zip(prompts, params, strict=True)]
    assert answers(llm, prompts, params) == alone
    page = 2 * 2 * 2 * 16 * 4 * 8  # two layers, keys and values, two heads of 16, float32, 8 tokens
    with open_llm(folder, **IN_PIECES, max_model_len=400, kv_cache_memory_bytes=52 * page) as narrow:
        assert answers(narrow, prompts, params) == alone
        assert narrow._core is not None and narrow._core.stats().preemptions > 0
    for ((text, reason),) in alone[:7]:
        assert reason == "stop" and is_valid(text, PEOPLE)


def test_choices_of_one_prompt_differ_and_all_have_the_form(llm: LLM) -> None:
    params = hot(3, regex=r"[a-f]{4}-[0-9]{2}")
    params.n, params.logprobs = 4, 3
    (result,) = llm.generate([[70, 71]], params, False)
    texts = [choice.text for choice in result.outputs]
    assert len(set(texts)) == 4 and all(re.fullmatch(r"[a-f]{4}-[0-9]{2}", text) for text in texts)
    for choice in result.outputs:
        assert choice.finish_reason == "stop" and choice.stop_reason is None and len(choice.token_ids) == 7
        dash = choice.logprobs[4]
        assert dash[byte("-")].logprob == 0  # the only token there: log-probabilities are those under the mask
        assert sum(entry.logprob > float("-inf") for entry in choice.logprobs[0].values()) >= 3


def test_neighbours_are_unharmed(llm: LLM) -> None:
    free = [SamplingParams(temperature=1.5, seed=5, max_tokens=30), SamplingParams(temperature=0, max_tokens=30)]
    prompts = [[65, 66], [67, 68]]
    alone = answers(llm, prompts, free)
    mixed = answers(llm, [*prompts, [69], [70]], [*free, hot(1, json=PERSON), hot(2, choice=["yes", "no"])])
    assert mixed[:2] == alone and mixed[3][0][0] in ("yes", "no") and is_valid(mixed[2][0][0], PERSON)


def test_a_grammar_that_fails_on_the_way_fails_its_request_alone(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    free = SamplingParams(temperature=0, max_tokens=12)
    (expected,) = answers(llm, [[65]], [free])
    whole = GuidanceGrammar.fill
    fills = 0

    def fill(self: GuidanceGrammar, row: object) -> None:
        nonlocal fills
        fills += 1
        if fills > 4:
            raise GrammarError("it has grown too complex")
        whole(self, row)

    monkeypatch.setattr(GuidanceGrammar, "fill", fill)
    held, other = answers(llm, [[66], [65]], [hot(1, regex="[a-z]{9}"), free])
    assert held[0][1] == "error" and other == expected
    monkeypatch.undo()
    assert re.fullmatch("[a-z]{9}", answers(llm, [[66]], [hot(1, regex="[a-z]{9}")])[0][0][0])


def test_the_end_token_does_not_end_what_goes_on_by_wish(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True, logit_bias={257: 100.0})
    params.structured_outputs = StructuredOutputsParams(regex="a+")
    assert answers(llm, [[65]], [params]) == [[("a" * 9, "length")]]
    params.structured_outputs = StructuredOutputsParams(regex="a{3,5}")
    assert answers(llm, [[65]], [params]) == [[("a" * 5, "stop")]]
    params.ignore_eos = False
    assert answers(llm, [[65]], [params]) == [[("aaa", "stop")]]


def test_H_STR_04_a_model_that_prefers_blanks(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=200, logit_bias={byte(" "): 100.0, byte("\n"): 100.0})
    params.structured_outputs = wish({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
    (((text, reason),),) = answers(llm, [[65]], [params])
    assert reason == "stop" and list(json.loads(text)) == ["a"]
    assert 1 < max(map(len, re.findall(r"\s+", text))) <= 16


@pytest.mark.parametrize("form", [{"json": {"type": "strng"}}, {"regex": "("}, {"grammar": "?"}, {}, {"json": []}])
def test_what_cannot_be_compiled_is_refused_before_anything_runs(llm: LLM, form: dict) -> None:
    with pytest.raises(RequestError, match=r"prompt 1: .*structured_outputs"):
        llm.generate([[65], [66]], [SamplingParams(), hot(0, **form)], False)


def test_tokens_that_a_request_rules_out(llm: LLM) -> None:
    letters = {byte(letter): 100.0 for letter in "qrs"}
    plain = SamplingParams(temperature=0, max_tokens=9, logit_bias=letters)
    word = answers(llm, [[65, 66]], [plain])[0][0][0][3:5]
    assert len(word) == 2 and set(word) <= set("qrs")
    held = SamplingParams(temperature=0, max_tokens=9, logit_bias=letters, bad_words=[word])
    only = SamplingParams(temperature=2, seed=1, max_tokens=20, allowed_token_ids=[byte("x"), byte("y")])
    only.logprob_token_ids = [byte("z")]
    form = SamplingParams(temperature=2, seed=1, max_tokens=20, bad_words=["a"])
    form.structured_outputs = StructuredOutputsParams(regex="[a-c]{9}")
    first, second, third = llm.generate([[65, 66]] * 3, [held, only, form], False)
    assert word not in first.outputs[0].text and set(first.outputs[0].text) <= set("qrs")
    assert set(second.outputs[0].text) == {"x", "y"}
    assert all(byte("z") in position for position in second.outputs[0].logprobs)
    assert re.fullmatch("[bc]{9}", third.outputs[0].text)
