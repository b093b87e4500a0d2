"""The requests of completions and chats: every field this engine honours. Types are strict; null equals absent."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from msgspec.structs import replace
from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, Strict, ValidationError, WithJsonSchema

from engine.errors import RequestError
from engine.json_kind import json_kind
from engine.sampling_params import SamplingParams
from engine.structured_outputs import StructuredOutputsParams

MAX_ERRORS = 10
MAX_ERROR_LENGTH = 160
SEED_UNSET = -1  # the value by which clients say "no seed"

Int = Annotated[int, Strict(), Field(ge=-(2**63), le=2**63 - 1)]
Float = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Bool = Annotated[bool, Strict()]
Text = Annotated[str, Strict()]
Ints = Annotated[list[Int], FailFast()]
Texts = Annotated[list[Text], FailFast(), BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]
PROMPT_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}},
        {"type": "array", "items": {"type": "integer"}},
        {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
    ]
}


class Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", defer_build=True)


class StreamOptions(Body):
    include_usage: Bool = False
    continuous_usage_stats: Bool = False
    include_obfuscation: Bool = False


class ResponseFormat(Body):
    """``json_schema``: name, description, schema and strict; an answer is always held to ``schema``."""

    type: Text
    json_schema: dict[str, Any] | None = None


class SampledRequest(Body):
    """What all generating routes share."""

    model: Text | None = None
    stream: Bool = False
    temperature: Float = 1.0
    top_p: Float = 1.0
    top_k: Int = 0
    min_p: Float = 0.0
    presence_penalty: Float = 0.0
    frequency_penalty: Float = 0.0
    repetition_penalty: Float = 1.0
    logit_bias: dict[str, Any] | None = None
    seed: Int | None = None
    stop: Texts = []
    stop_token_ids: Ints = []
    include_stop_str_in_output: Bool = False
    ignore_eos: Bool = False
    min_tokens: Int = 0
    bad_words: Texts = []
    allowed_token_ids: Ints = []
    skip_special_tokens: Bool = True
    priority: Int = 0
    request_id: Annotated[str, Strict(), Field(min_length=1, max_length=256)] | None = None
    cache_salt: Annotated[str, Strict(), Field(min_length=1, max_length=1024)] | None = None
    structured_outputs: dict[str, Any] | None = None
    user: Text | None = None

    def sampling(
        self,
        *,
        logprobs: int | None,
        prompt_logprobs: int | None,
        max_tokens: int | None,
        structured_outputs: StructuredOutputsParams | None = None,
    ) -> SamplingParams:
        """Not validated yet: the vocabulary is not known here. Raises ``RequestError`` for a bias without a number."""
        return SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=_biases(self.logit_bias),
            seed=None if self.seed == SEED_UNSET else self.seed,
            stop=self.stop,
            stop_token_ids=self.stop_token_ids,
            include_stop_str_in_output=self.include_stop_str_in_output,
            ignore_eos=self.ignore_eos,
            max_tokens=max_tokens,
            min_tokens=self.min_tokens,
            logprobs=logprobs,
            bad_words=self.bad_words,
            allowed_token_ids=self.allowed_token_ids if "allowed_token_ids" in self.model_fields_set else None,
            prompt_logprobs=prompt_logprobs,
            skip_special_tokens=self.skip_special_tokens,
            structured_outputs=structured_outputs,
        )


class GenerationRequest(SampledRequest):
    """What the routes share that may answer more than once. ``max_tokens`` absent: the rest of the context."""

    stream_options: StreamOptions | None = None
    n: Int = 1
    max_tokens: Int | None = None
    logprob_token_ids: Ints = []
    prompt_logprobs: Int | None = None
    truncate_prompt_tokens: Int | None = None
    truncation_side: Text = "left"
    add_special_tokens: Bool = True
    return_token_ids: Bool = False
    return_tokens_as_token_ids: Bool = False
    response_format: ResponseFormat | None = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    guided_whitespace_pattern: Text | None = None

    @property
    def answer_tokens(self) -> int | None:
        """The most that the answer may have, if that is said."""
        return self.max_tokens

    def sampling(
        self,
        *,
        logprobs: int | None,
        prompt_logprobs: int | None,
        max_tokens: int | None,
        structured_outputs: StructuredOutputsParams | None = None,
    ) -> SamplingParams:
        params = super().sampling(
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            max_tokens=max_tokens,
            structured_outputs=structured_outputs,
        )
        return replace(params, n=self.n, logprob_token_ids=self.logprob_token_ids)


class CompletionRequest(GenerationRequest):
    """``prompt`` is checked by ``engine.server.prompts``; ``best_of`` may only repeat ``n``."""

    prompt: Annotated[Any, WithJsonSchema(PROMPT_SCHEMA)]
    echo: Bool = False
    logprobs: Int | None = None
    best_of: Int | None = None


class ChatRequest(GenerationRequest):
    """``messages`` are checked by ``engine.server.conversation``, ``tools`` and ``tool_choice`` by
    ``engine.server.tools``; ``max_completion_tokens`` wins over ``max_tokens``."""

    messages: list[Any]
    logprobs: Bool = False
    top_logprobs: Int = 0
    max_completion_tokens: Int | None = None
    add_generation_prompt: Bool = True
    continue_final_message: Bool = False
    add_special_tokens: Bool = False
    documents: list[Any] = []
    chat_template: Text | None = None
    chat_template_kwargs: dict[str, Any] = {}
    tools: list[Any] = []
    tool_choice: Any = None
    parallel_tool_calls: Bool = True
    reasoning_effort: Text | None = None
    include_reasoning: Bool = True

    @property
    def answer_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class EmbeddingRequest(Body):
    """``input`` is checked by ``engine.server.prompts``. ``truncate_prompt_tokens``: see ``PoolingParams``."""

    model: Text | None = None
    input: Annotated[Any, WithJsonSchema(PROMPT_SCHEMA)]
    encoding_format: Text = "float"
    dimensions: Int | None = None
    normalize: Bool | None = None
    truncate_prompt_tokens: Int | None = None
    truncation_side: Text = "left"
    add_special_tokens: Bool = True
    priority: Int = 0
    request_id: Annotated[str, Strict(), Field(min_length=1, max_length=256)] | None = None
    cache_salt: Annotated[str, Strict(), Field(min_length=1, max_length=1024)] | None = None
    user: Text | None = None


class TokenizeRequest(Body):
    """Either ``prompt`` or ``messages``."""

    model: Text | None = None
    prompt: Text | None = None
    messages: list[Any] | None = None
    add_special_tokens: Bool | None = None
    add_generation_prompt: Bool = True
    continue_final_message: Bool = False
    documents: list[Any] = []
    chat_template: Text | None = None
    chat_template_kwargs: dict[str, Any] = {}
    tools: list[Any] = []
    return_token_strs: Bool = False


class DetokenizeRequest(Body):
    model: Text | None = None
    tokens: Ints


M = TypeVar("M", bound=BaseModel)


def parse(model: type[M], fields: dict[str, Any]) -> M:
    """``model`` of screened ``fields``. Raises ``RequestError`` with at most ``MAX_ERRORS`` bounded messages; its
    ``param`` is the path of the first."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False)
    lines, first = [], _path(problems[0]["loc"])
    for problem in problems[:MAX_ERRORS]:
        found = "" if problem["type"] == "missing" else f" (got {_brief(problem['input'])})"
        lines.append(f"{_path(problem['loc'])}: {problem['msg'][:MAX_ERROR_LENGTH]}{found}")
    if len(problems) > MAX_ERRORS:
        lines.append(f"and {len(problems) - MAX_ERRORS} more")
    raise RequestError("; ".join(lines), first)


def _path(location: tuple[int | str, ...]) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return path.removeprefix(".")[:200]


def _brief(value: Any) -> str:
    if value is None or isinstance(value, (list, dict)) or (isinstance(value, int) and value.bit_length() > 128):
        return json_kind(value)
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value if not isinstance(value, str) or len(value) <= 50 else value[:49] + "…")


def _biases(given: dict[str, Any] | None) -> dict[int, float] | None:
    if given is None:
        return None
    biases: dict[int, float] = {}
    for key, bias in given.items():
        digits = key.removeprefix("-")
        if not digits.isascii() or not digits.isdigit() or len(key) > 20:
            raise RequestError(f"logit_bias has the key {key[:50]!r}; keys are token ids", "logit_bias")
        if type(bias) not in (int, float) or not -(2**63) < bias < 2**63:
            raise RequestError(f"logit_bias of token {key} must be a number (got {_brief(bias)})", "logit_bias")
        biases[int(key)] = bias
    return biases
