"""Which fields a request may have. Nothing a client asks for is silently ignored: a field is honoured, has no effect
by its own definition, equals what happens anyway, or the request is refused."""

from __future__ import annotations

import difflib
import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel

from engine.errors import RequestError

NO_EFFECT = frozenset(
    {"user", "store", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "session_id",
     "service_tier"}
)  # fmt: skip

PART = ("type", "text", "refusal", "annotations", "logprobs", "cache_control", "prompt_cache_breakpoint")
"""Fields of a text part. Where the last two say that a prefix may be kept, it may be anyway."""
_TEXT = "only text goes in and comes out"
_CODE = "no code or parameters of a client's reach the sampler; see logit_bias and the penalties"
_BEAMS = "there is no beam search; use n"
_OLD_TOOLS = "it has been replaced by tools and tool_choice"
_HOSTED = "tools are functions that the client runs"

# A field that is known to users but not honoured → why, and the values that ask for nothing.
_KNOWN: Mapping[str, tuple[str, tuple[Any, ...]]] = {
    "access_programs": ("there are no programs to have access to", ()),
    "audio": (_TEXT, ()),
    "background_options": ("an answer is sent as the one to its request", ()),
    "background": ("an answer is sent as the one to its request", (False,)),
    "best_of": ("all n answers are returned; use n", (1,)),
    "chat_template": ("there is no chat", ()),
    "context_management": ("a prompt is never made shorter", ([],)),
    "conversation": ("conversations are continued by previous_response_id", ()),
    "detokenize": ("answers are always text; return_token_ids gives the tokens as well", (True,)),
    "documents": ("only a chat template takes them", ([],)),
    "early_stopping": (_BEAMS, (False,)),
    "echo": ("an answer in a chat does not repeat its prompt", (False,)),
    "enable_response_messages": ("a response has items", (False,)),
    "function_call": (_OLD_TOOLS, ("none",)),
    "functions": (_OLD_TOOLS, ([],)),
    "guided_decoding_backend": ("llguidance holds answers to their form", ("auto", "guidance")),
    "image": (_TEXT, ()),
    "include_reasoning": ("there is no chat", (True,)),
    "kv_transfer_params": ("caches stay in this server", ({},)),
    "length_penalty": (_BEAMS, (1, 1.0)),
    "logits_processors": (_CODE, ([],)),
    "max_tool_calls": (_HOSTED, ()),
    "media_io_kwargs": (_TEXT, ({},)),
    "mm_processor_kwargs": (_TEXT, ({},)),
    "modalities": (_TEXT, (["text"],)),
    "moderation": ("nothing is moderated", ()),
    "parallel_tool_calls": ("there is no chat", (True, False)),
    "prediction": ("an answer is not told in advance", ()),
    "previous_input_messages": ("earlier turns are items of input", ([],)),
    "prompt": ("/v1/completions takes prompts, and none are kept here; send what they say", ()),
    "prompt_embeds": ("prompts are text or token ids", ()),
    "prompt_cache_options": ("the prefix cache keeps what fits", ({},)),
    "reasoning_effort": ("there is no chat", ()),
    "repetition_detection": ("answers end by stop, stop_token_ids and max_tokens", ()),
    "return_prompt_text": ("the prompt is not sent back; return_token_ids gives its tokens", (False,)),
    "spaces_between_special_tokens": ("special tokens are always set apart as the tokenizer does", (True,)),
    "stream_interval": ("every token is sent as it comes", (1,)),
    "structural_tag": ("an answer has one form as a whole; see structured_outputs and tools", ()),
    "suffix": ("text is continued, not filled in", ("",)),
    "thinking_token_budget": ("reasoning has no limit of its own; see max_tokens", (-1,)),
    "tool_choice": ("there is no chat", ("none", "auto")),
    "tools": ("there is no chat", ([],)),
    "use_beam_search": (_BEAMS, (False,)),
    "verbosity": ("the prompt says how long an answer should be", ()),
    "vllm_xargs": (_CODE, ({},)),
    "web_search_options": (_HOSTED, ()),
}
NOT_SUPPORTED: Mapping[str, tuple[Any, ...]] = {name: harmless for name, (_, harmless) in _KNOWN.items()}
REASONS: Mapping[str, str] = {name: reason for name, (reason, _) in _KNOWN.items()}
logger = logging.getLogger("engine.server")
_logged: set[str] = set()


def screen(
    body: dict[str, Any], model: type[BaseModel], ignore_unknown: bool = False, where: str = ""
) -> dict[str, Any]:
    """The fields of ``body`` that ``model`` has and that are not null: null equals absent.

    Raises ``RequestError`` naming the first field that is not supported yet or not known; with ``ignore_unknown`` the
    latter are dropped, with one log line per name. ``where``: path of ``body`` in the request, as in ``"messages.0."``.
    """
    kept = {}
    for name, value in body.items():
        if name in model.model_fields:
            if value is not None:
                kept[name] = value
        elif not where and name in NO_EFFECT:
            continue
        elif not where and name in NOT_SUPPORTED:
            if value is not None and not _asks_nothing(value, NOT_SUPPORTED[name]):
                raise RequestError(not_supported(name), name)
        elif ignore_unknown:
            _log_once(name)
        else:
            raise RequestError(unknown_field(name, model, where), (where + name)[:200])
    return kept


def check_part(part: dict[str, Any], where: str) -> None:
    """Raises ``RequestError`` for a field of a text part, at ``where``, that nobody knows."""
    for name in part:
        if name not in PART:
            raise RequestError(unknown_name(name, PART, f"{where}."), f"{where}.{name}"[:200])


_ROUTES = {"messages": "/v1/chat/completions", "input": "/v1/responses or /v1/embeddings", "prompt": "/v1/completions"}
"""Fields that tell which route was meant."""


def not_supported(name: str) -> str:
    """The message about a field that is known and not honoured, with the values that it may have."""
    taken = " or ".join(json.dumps(value) for value in NOT_SUPPORTED[name])
    return f"{name} is not supported yet: {REASONS[name]}. Leave it out{taken and f', or send {taken}'}."


def unknown_field(name: str, model: type[BaseModel], where: str = "") -> str:
    """The message about a field nobody knows, with the one that is taken and nearly spelled like it."""
    if not where and name in _ROUTES:
        return f"Unknown field {name}; {_ROUTES[name]} takes it."
    return unknown_name(name, [*model.model_fields, *(() if where else NO_EFFECT)], where)


def unknown_name(name: str, known: Iterable[str], where: str = "") -> str:
    """The same, where ``known`` are taken."""
    near = difflib.get_close_matches(name[:100].lower(), list(known), n=1, cutoff=0.75)
    hint = f"; did you mean {where}{near[0]}?" if near else "."
    return f"Unknown field {where}{name[:100]}{hint}"


def _asks_nothing(value: Any, harmless: tuple[Any, ...]) -> bool:
    return any(type(value) is type(other) and value == other for other in harmless)


def _log_once(name: str) -> None:
    name = name[:100]
    if name not in _logged and len(_logged) < 1000:
        _logged.add(name)
        logger.warning("Ignoring the unknown request field %r (--ignore-unknown-fields)", name)
