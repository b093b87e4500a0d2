"""What a request body may hold, without a server."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from engine.errors import RequestError
from engine.sampling_params import MAX_N, SamplingParams
from engine.server import fields
from engine.server.conversation import Message
from engine.server.fields import NO_EFFECT, NOT_SUPPORTED, screen
from engine.server.prompts import MAX_CHOICES, MAX_PROMPTS, check_choices, split_prompts
from engine.server.protocol import ChatRequest, CompletionRequest, TokenizeRequest, parse

USER = [{"role": "user", "content": "hi"}]


def completion(**body):
    parsed = parse(CompletionRequest, screen({"prompt": "hi", **body}, CompletionRequest))
    sampling(parsed)
    return parsed


def chat(**body):
    return parse(ChatRequest, screen({"messages": USER, **body}, ChatRequest))


def refused(make, **body):
    with pytest.raises(RequestError) as caught:
        make(**body)
    assert caught.value.status == 400
    return caught.value


def sampling(body, **more):
    return body.sampling(logprobs=None, prompt_logprobs=None, max_tokens=body.max_tokens, **more)


@pytest.mark.parametrize(("model", "make"), [(CompletionRequest, completion), (ChatRequest, chat)])
def test_H_API_08_null_equals_absent(model, make):
    absent = make()
    optional = [name for name, field in model.model_fields.items() if not field.is_required()]
    assert len(optional) > 20
    for name in {*optional, *NOT_SUPPORTED, *NO_EFFECT} - set(model.model_fields).difference(optional):
        assert make(**{name: None}) == absent, name


def test_null_for_a_required_field_is_missing():
    assert refused(completion, prompt=None).param == "prompt"
    assert refused(chat, messages=None).param == "messages"


def test_types_are_strict():
    wrong = {
        "n": ["1", 1.0, True, [1], {}],
        "max_tokens": ["10", 1.5, False, 10**30],
        "temperature": ["0.5", True, [], 10**400],
        "stream": [1, "true", 0],
        "stop": [1, [1], {"a": 1}, [None]],
        "stop_token_ids": [5, ["5"], [1.0], "5"],
        "logit_bias": [[], "x", {"a": 1}, {"1": "2"}, {"1": None}, {"1" * 30: 1}, {"1": True}],
        "model": [1, [], {}],
        "seed": [1.5, "7", 2**63],
        "stream_options": [True, "include_usage", []],
        "cache_salt": ["", "x" * 1025, 5],
    }
    for name, values in wrong.items():
        for value in values:
            assert refused(completion, **{name: value}).param.startswith(name), (name, value)
    assert completion(temperature=1, n=2, stop="x", logit_bias={"5": -3}).temperature == 1


def test_at_most_ten_errors_each_bounded():
    many = {name: "x" * 10_000 for name in CompletionRequest.model_fields if name not in ("prompt", "stop", "model")}
    error = refused(completion, **many)
    assert error.message.count(";") == 10 and "more" in error.message
    assert len(error.message) < 3000


def test_unknown_field_names_the_nearest():
    error = refused(completion, max_token=5)
    assert error.param == "max_token" and "max_tokens" in error.message
    error = refused(completion, messages=USER)
    assert error.param == "messages" and "/v1/chat/completions takes it" in error.message
    error = refused(chat, temprature=0.5)
    assert error.param == "temprature" and "temperature" in error.message
    error = refused(chat, zzzzzz=None)
    assert error.param == "zzzzzz" and "did you mean" not in error.message
    with pytest.raises(RequestError) as caught:
        screen({"role": "user", "contnt": "hi"}, Message, where="messages[3].")
    assert caught.value.param == "messages[3].contnt" and "messages[3].content" in caught.value.message


@pytest.mark.parametrize("name", ["foo", "detokeniz", "modalitys", "thinking_token_budge", "guided", "best"])
def test_no_field_is_suggested_that_is_refused_or_far(name):
    message = refused(chat, **{name: 1}).message
    assert message == f"Unknown field {name}."


@pytest.mark.parametrize(
    ("name", "reason"),
    [("guided_decoding_backend", "llguidance"), ("best_of", "use n"), ("logits_processors", "logit_bias"),
     ("functions", "tools and tool_choice"), ("modalities", "text")],
)  # fmt: skip
def test_a_known_field_is_refused_with_its_reason(name, reason):
    message = refused(chat, **{name: [{"a": 1}]}).message
    assert message.startswith(f"{name} is not supported yet: ") and reason in message


def test_unknown_fields_can_be_ignored_with_a_line_per_name(caplog, monkeypatch):
    monkeypatch.setattr(fields, "_logged", set())
    with caplog.at_level(logging.WARNING, "engine.server"):
        for _ in range(3):
            assert screen({"max_token": 5, "n": 2, "other": 1}, CompletionRequest, True) == {"n": 2}
    assert len(caplog.records) == 2
    assert any("max_token" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("name", sorted(NOT_SUPPORTED))
def test_known_but_not_supported_is_said(name):
    model = CompletionRequest if name not in CompletionRequest.model_fields else ChatRequest
    model = TokenizeRequest if name in model.model_fields else model
    with pytest.raises(RequestError, match="not supported yet") as caught:
        screen({name: ["something", 1, {"else": True}]}, model)
    assert caught.value.param == name
    for harmless in NOT_SUPPORTED[name]:
        assert screen({name: harmless}, model) == {}


def test_a_number_is_not_the_boolean_it_equals():
    with pytest.raises(RequestError, match="not supported yet"):
        screen({"use_beam_search": 0}, CompletionRequest)


def test_fields_without_effect_are_accepted():
    assert screen(dict.fromkeys(NO_EFFECT, "x"), ChatRequest) == {"user": "x"}


def test_H_SMP_02_ways_to_disable_top_k():
    assert sampling(completion()).top_k == sampling(completion(top_k=0)).top_k == sampling(completion(top_k=None)).top_k
    for top_k in (0, -1, 10**6):
        assert sampling(completion(top_k=top_k)).validate().top_k == top_k
    for top_k in (-2, 2**31):
        with pytest.raises(RequestError) as caught:
            sampling(completion(top_k=top_k)).validate()
        assert caught.value.param == "top_k"


def test_every_sampling_field_arrives():
    given = {
        "n": 2, "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "presence_penalty": 0.2,
        "frequency_penalty": 0.3, "repetition_penalty": 1.1, "logit_bias": {"5": 1.5}, "seed": 9, "stop": ["x"],
        "stop_token_ids": [4], "include_stop_str_in_output": True, "ignore_eos": True, "max_tokens": 8,
        "min_tokens": 2, "skip_special_tokens": False, "bad_words": ["no"], "allowed_token_ids": [3, 4],
        "logprob_token_ids": [5],
    }  # fmt: skip
    params = sampling(completion(**given))
    for name, value in given.items():
        assert getattr(params, name) == ({5: 1.5} if name == "logit_bias" else value), name
    rest = set(SamplingParams.__struct_fields__) - set(given)
    assert rest == {"logprobs", "prompt_logprobs", "structured_outputs", "bad_words_token_ids", "shown_token_ids"}
    assert sampling(completion(seed=-1)).seed is None and sampling(completion()).max_tokens is None


def test_prompts_of_every_form():
    assert split_prompts("") == [""]
    assert split_prompts(["a", "b"]) == ["a", "b"]
    assert split_prompts([1, 2]) == [[1, 2]]
    assert split_prompts([[1], [], [2]]) == [[1], [], [2]]
    for wrong in (5, {}, True, None, ["a", 1], [1, 2.5], [True], [[1], "a"], [[1.5]], [[True]], [[[1]]], [None], [{}]):
        with pytest.raises(RequestError) as caught:
            split_prompts(wrong)
        assert caught.value.param == "prompt", wrong
    split_prompts(["a"] * MAX_PROMPTS)
    with pytest.raises(RequestError, match="1024"):
        split_prompts(["a"] * (MAX_PROMPTS + 1))


def test_choices_are_capped_over_all_prompts():
    check_choices(MAX_CHOICES // MAX_N, MAX_N)
    with pytest.raises(RequestError) as caught:
        check_choices(MAX_CHOICES // MAX_N + 1, MAX_N)
    assert caught.value.param == "n"


def test_the_server_imports_no_torch():
    code = (
        "import sys, engine.server.lifecycle, engine.server.app as a; a.make_app(a.ServerState()).openapi();"
        "print(sorted({'torch', 'numpy', 'transformers', 'rich', 'gguf'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
