"""Every answer to what fits or misses our own OpenAPI document is one that the document describes; none is a 5xx."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from engine.server.answers import ANSWERS
from engine.server.app import ROUTES
from engine.server.site import PATHS
from tests.scripted_engine import MODEL, serving

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
DESCRIBED = [route for route in ROUTES if route[1] not in PATHS]
WHATEVER = [
    (method, path.replace(":path", ""), mode)
    for method, path, _, body in DESCRIBED
    for mode in GenerationMode
    if mode.is_positive or body is not None
]
FREELY = {"deadline": None, "suppress_health_check": list(HealthCheck)}
SHORT, MANY = st.text("ab ü", min_size=1, max_size=5), st.integers(0, 3)
SHARED = {
    "model": st.just(MODEL), "n": st.integers(1, 3), "temperature": st.floats(0, 2), "top_p": st.floats(0.01, 1),
    "top_k": st.integers(-1, 9), "min_p": st.floats(0, 1), "presence_penalty": st.floats(-2, 2),
    "logit_bias": st.dictionaries(st.integers(0, 99).map(str), st.floats(-100, 100), max_size=2),
    "seed": st.integers(-(2**63), 2**63 - 1), "stop": st.one_of(SHORT, st.lists(SHORT, max_size=3)),
    "max_tokens": st.integers(1, 9), "prompt_logprobs": MANY, "return_token_ids": st.booleans(), "user": SHORT,
    "return_tokens_as_token_ids": st.booleans(), "skip_special_tokens": st.booleans(), "cache_salt": SHORT,
}  # fmt: skip
MESSAGE = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system"]), "content": SHORT})
IDS = st.lists(st.integers(0, 200), min_size=1, max_size=5)
VALID = {
    "/v1/completions": st.fixed_dictionaries(
        {"prompt": st.one_of(SHORT, st.lists(SHORT, min_size=1, max_size=3), IDS)},
        optional={**SHARED, "echo": st.booleans(), "logprobs": MANY},
    ),
    "/v1/chat/completions": st.fixed_dictionaries(
        {"messages": st.lists(MESSAGE, min_size=1, max_size=3), "logprobs": st.just(True)},
        optional={**SHARED, "top_logprobs": MANY},
    ),
    "/v1/embeddings": st.fixed_dictionaries(
        {"input": st.one_of(SHORT, st.lists(SHORT, min_size=1, max_size=3), IDS)},
        optional={"encoding_format": st.sampled_from(["float", "base64"]), "user": SHORT},
    ),
    "/v1/responses": st.fixed_dictionaries(
        {"input": SHORT},
        optional={"temperature": st.floats(0, 2), "max_output_tokens": st.integers(1, 9), "store": st.booleans()},
    ),
    "/tokenize": st.fixed_dictionaries({"prompt": SHORT}, optional={"return_token_strs": st.booleans()}),
    "/detokenize": st.fixed_dictionaries({"tokens": IDS}),
}


@pytest.fixture(scope="module")
def server():
    with serving(max_model_len=256) as running:
        yield running


@pytest.fixture(scope="module")
def document(server):
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


@pytest.mark.parametrize(("method", "path", "mode"), WHATEVER)
def test_whatever_comes_gets_an_answer_that_the_document_describes(document, method, path, mode):
    operation = document[path][method]

    @settings(max_examples=60 if method == "POST" else 5, **FREELY)
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case):
        case.validate_response(case.call(timeout=60), checks=CHECKS)

    check()


@pytest.mark.parametrize("path", VALID)
def test_what_is_right_is_answered_as_the_document_describes(document, path):
    operation = document[path]["POST"]

    @settings(max_examples=60, **FREELY)
    @given(body=VALID[path])
    def check(body):
        case = operation.Case(body=body, media_type="application/json")
        answer = case.call(timeout=60)
        assert answer.status_code == 200, (body, answer.text)
        case.validate_response(answer, checks=CHECKS)

    check()


def test_every_route_says_what_it_answers():
    assert sorted({path for _, path, *_ in DESCRIBED}) == sorted(ANSWERS)
