"""Chat templates: messages in, the text of the prompt out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engine.errors import RequestError
from engine.tokenizer.messages import prepare_messages

# Names a request's chat_template_kwargs may not use: they are arguments of their own.
RESERVED_NAMES = frozenset(
    (
        "self",
        "messages",
        "tools",
        "documents",
        "add_generation_prompt",
        "continue_final_message",
        "chat_template",
        "add_special_tokens",
    )
)
_CONTINUE = "\ue000continue here\ue001 "


def render_template(
    source: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    documents: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    variables: Mapping[str, Any] | None = None,
) -> str:
    """The prompt of a conversation, without tokens added around it.

    ``source``: a jinja2 template. ``variables``: further names for it, such as ``bos_token``.
    ``continue_final_message``: ends the prompt inside the last message, for the model to go on with it. Raises
    ``RequestError`` when the template, or what it is given, is at fault.
    """
    ready = prepare_messages(messages)
    _check_objects(tools, "tools")
    _check_objects(documents, "documents")
    if continue_final_message:
        if add_generation_prompt:
            raise RequestError(
                "'continue_final_message' and 'add_generation_prompt' exclude each other; set the latter to false",
                "continue_final_message",
            )
        ready[-1]["content"] += _CONTINUE
    text = _render(
        source,
        {
            **(variables or {}),
            "messages": ready,
            "tools": list(tools) if tools else None,
            "documents": list(documents) if documents else None,
            "add_generation_prompt": add_generation_prompt,
        },
    )
    return _cut(text) if continue_final_message else text


def _check_objects(values: object, field: str) -> None:
    if values is None:
        return
    if not isinstance(values, list | tuple) or not all(isinstance(value, Mapping) for value in values):
        raise RequestError(f"'{field}' must be a list of objects", field)


def _cut(text: str) -> str:
    """The text up to the mark. A template that trims a message has taken the blank behind the mark, and would have
    taken those before it."""
    at = text.rfind(_CONTINUE.rstrip())
    if at < 0:
        raise RequestError(
            "the chat template does not show the last message, so it cannot be continued", "continue_final_message"
        )
    return text[:at] if text.startswith(_CONTINUE, at) else text[:at].rstrip()


def _render(source: str, variables: dict[str, Any]) -> str:
    from jinja2.exceptions import TemplateError, TemplateSyntaxError

    from engine.tokenizer.sandbox import render_bounded

    try:
        return render_bounded(source, variables)
    except TemplateSyntaxError as error:
        raise RequestError(f"the chat template has an error in line {error.lineno}: {error.message}") from error
    except TemplateError as error:
        raise RequestError(f"the chat template refused the conversation: {error.message or error}") from error
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError, SyntaxError) as error:
        raise RequestError(f"the chat template failed on this conversation: {type(error).__name__}: {error}") from error
