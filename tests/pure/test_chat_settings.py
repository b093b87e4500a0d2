"""Which formats answers are read in: what the operator says, or else the chat template."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import UserError
from engine.plan_values import Given
from engine.server.chat_settings import ChatSettings, read_chat_settings
from engine.tokenizer import Tokenizer
from tests.pure.tokenizer_toys import BEGIN, byte_backend, chat_tokenizer

HERMES = "{{ tools }} Put calls between <tool_call></tool_call>: <tool_call>\n{\"name\": …}\n</tool_call>"
XML = "<tool_call><function=name><parameter=x>…</parameter></function></tool_call>"
LLAMA = 'Respond as {"name": function name, "parameters": dictionary of argument name and its value}.'
TAG = "{{ '<|python_tag|>' + call }}"


def read(template: str | None, own: str | None = None, **settings: Any) -> ChatSettings:
    given = {f"server.{name}": Given(value, "command line") for name, value in settings.items()}
    return read_chat_settings(given, own, chat_tokenizer(template))


@pytest.mark.parametrize(
    ("template", "name"),
    [(HERMES, "hermes"), (LLAMA, "llama3_json"), (TAG, "llama3_json"), (XML, None), ("plain", None), (None, None)],
)
def test_the_template_says_the_format(template: str | None, name: str | None) -> None:
    for found in (read(template), read("plain", own=template) if template else read(None)):
        assert (found.tool_parser.name if found.tool_parser else None) == name and not found.auto_tools
    if name is None:
        with pytest.raises(UserError, match="--tool-call-parser hermes or llama3_json"):
            read(template, enable_auto_tool_choice=True)
    else:
        assert read(template, enable_auto_tool_choice=True).auto_tools


def test_a_template_of_its_own_for_tools_is_the_one_that_counts() -> None:
    backend = byte_backend()
    tokenizer = Tokenizer(
        backend, source="toy", vocab_size=backend.get_vocab_size(), bos_id=backend.token_to_id(BEGIN),
        eos_ids=frozenset(), prefix=(), suffix=(), templates={"default": LLAMA, "tool_use": HERMES}, names={},
    )  # fmt: skip
    found = read_chat_settings({}, None, tokenizer).tool_parser
    assert found is not None and found.name == "hermes"


def test_the_operator_has_the_last_word() -> None:
    found = read(HERMES, tool_call_parser="llama3_json", enable_auto_tool_choice=True, reasoning_parser="qwen3")
    assert found.tool_parser is not None and found.tool_parser.name == "llama3_json"
    assert found.reasoning_parser is not None and found.reasoning_parser.name == "qwen3"
    assert read(None, tool_call_parser="hermes", enable_auto_tool_choice=True).auto_tools
    assert read(None).reasoning_parser is None and read(None, reasoning_parser="none").reasoning_parser is None
    more = read(None, trust_request_chat_template=True, exclude_tools_when_tool_choice_none=True)
    assert more.trust_templates and more.hide_tools
