"""Every documented field of a request is known: honoured, without effect, or refused by name."""

from __future__ import annotations

import pytest
from openai.types import completion_create_params as completions
from openai.types.chat import completion_create_params as chats
from openai.types.responses import response_create_params as responses

from engine.errors import RequestError
from engine.server.field_notes import NOTES
from engine.server.fields import NO_EFFECT, NOT_SUPPORTED, REASONS, screen
from engine.server.protocol import ChatRequest, CompletionRequest
from engine.server.responses.protocol import ResponsesRequest


def words(text: str) -> list[str]:
    return text.split()


MODELS = (CompletionRequest, ChatRequest, ResponsesRequest)
# Those that vLLM documents.
SHARED = words("""model frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop stream
stream_options temperature top_p user use_beam_search top_k min_p repetition_penalty length_penalty stop_token_ids
include_stop_str_in_output ignore_eos min_tokens skip_special_tokens spaces_between_special_tokens
truncate_prompt_tokens truncation_side allowed_token_ids prompt_logprobs logprob_token_ids
bad_words add_special_tokens response_format structured_outputs priority request_id session_id
return_tokens_as_token_ids return_token_ids cache_salt kv_transfer_params vllm_xargs repetition_detection
thinking_token_budget
stream_interval""")
COMPLETION = words("prompt echo suffix prompt_embeds")
CHAT = words("""messages top_logprobs max_completion_tokens tools tool_choice parallel_tool_calls reasoning_effort
include_reasoning add_generation_prompt continue_final_message documents chat_template chat_template_kwargs
media_io_kwargs mm_processor_kwargs return_prompt_text""")


def official(module: object, name: str) -> list[str]:
    kinds = [getattr(module, f"{name}{kind}") for kind in ("Base", "NonStreaming", "Streaming")]
    found = {field for kind in kinds for field in kind.__annotations__}
    assert len(found) > 15
    return sorted(found)


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (CompletionRequest, SHARED + COMPLETION + official(completions, "CompletionCreateParams")),
        (ChatRequest, SHARED + CHAT + official(chats, "CompletionCreateParams")),
        (ResponsesRequest, official(responses, "ResponseCreateParams")),
    ],
)
def test_every_documented_field_is_known(model, names):
    for name in names:
        assert name in model.model_fields or name in NO_EFFECT or name in NOT_SUPPORTED, name


@pytest.mark.parametrize("model", MODELS)
def test_what_is_refused_says_its_name_and_why(model):
    for name in NOT_SUPPORTED:
        if name not in model.model_fields:
            with pytest.raises(RequestError, match=f"^{name} is not supported yet: ") as caught:
                screen({name: "something"}, model)
            assert caught.value.param == name and REASONS[name] in caught.value.message


def test_the_table_tells_of_every_field_that_does_something():
    honoured = {name for model in MODELS for name in model.model_fields} | NO_EFFECT
    assert NOTES.keys() == honoured and not NO_EFFECT & NOT_SUPPORTED.keys()
