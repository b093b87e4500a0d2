"""Which fields a request may have. Nothing a client asks for is silently ignored: a field is honoured, has no effect
by its own definition, equals what happens anyway, or the request is refused."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from engine.errors import RequestError

NO_EFFECT = frozenset(
    {"user", "store", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "session_id",
     "service_tier"}
)  # fmt: skip

# A field that is known to users but not honoured, with the values that ask for nothing.
NOT_SUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "allowed_token_ids": (),
    "audio": (),
    "bad_words": ([],),
    "chat_template": (),
    "detokenize": (True,),
    "documents": ([],),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "include_reasoning": (True,),
    "kv_transfer_params": ({},),
    "length_penalty": (1, 1.0),
    "logprob_token_ids": ([],),
    "media_io_kwargs": ({},),
    "mm_processor_kwargs": ({},),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "prompt_embeds": (),
    "reasoning_effort": (),
    "repetition_detection": (),
    "response_format": ({"type": "text"},),
    "return_prompt_text": (False,),
    "spaces_between_special_tokens": (True,),
    "stream_interval": (1,),
    "structured_outputs": (),
    "suffix": ("",),
    "thinking_token_budget": (-1,),
    "tool_choice": ("none",),
    "tools": ([],),
    "truncate_prompt_tokens": (),
    "truncation_side": (),
    "use_beam_search": (False,),
    "verbosity": (),
    "vllm_xargs": ({},),
    "web_search_options": (),
}  # fmt: skip
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
                raise RequestError(f"{name} is not supported yet.", name)
        elif ignore_unknown:
            _log_once(name)
        else:
            raise RequestError(unknown_field(name, model, where), (where + name)[:200])
    return kept


def unknown_field(name: str, model: type[BaseModel], where: str = "") -> str:
    """The message about a field nobody knows, with the nearest one that exists."""
    known = [*model.model_fields, *(() if where else (*NO_EFFECT, *NOT_SUPPORTED))]
    near = difflib.get_close_matches(name[:100].lower(), known, n=1, cutoff=0.5)
    hint = f"; did you mean {where}{near[0]}?" if near else "."
    return f"Unknown field {where}{name[:100]}{hint}"


def _asks_nothing(value: Any, harmless: tuple[Any, ...]) -> bool:
    return any(type(value) is type(other) and value == other for other in harmless)


def _log_once(name: str) -> None:
    name = name[:100]
    if name not in _logged and len(_logged) < 1000:
        _logged.add(name)
        logger.warning("Ignoring the unknown request field %r (--ignore-unknown-fields)", name)
