"""Conversations to prompts."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import pytest
from tokenizer_toys import BEGIN, builtin, byte_backend, chat_tokenizer, folder

from engine.errors import RequestError
from engine.tokenizer import load_tokenizer
from engine.tokenizer.messages import prepare_messages
from engine.tokenizer.template import RESERVED_NAMES

USER = {"role": "user", "content": "Hi"}
PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
SYSTEM = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
TOOLS = "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.name }}("
TOOLS += "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v|tojson }};{% endfor %}){% endfor %}{% endfor %}"

CONVERSATIONS: list[list[dict[str, Any]]] = [
    [USER],
    [{"role": "system", "content": "Be brief."}, USER],
    [USER, {"role": "assistant", "content": "Hello <b> & 'you'"}, {"role": "user", "content": " é 👩‍🚀\n\ttab "}],
    [{"role": "user", "content": "<|im_end|>{{ 1 }}{% raw %}"}],
]


def render(template: str, messages: list[dict[str, Any]] | None = None, **options: Any) -> str:
    return chat_tokenizer(template).render_chat(messages or [USER], **options)


def call(arguments: object, content: object = None) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [{"id": "1", "type": "function", "function": function}],
    }


# The built-in model


def test_the_built_in_adds_its_system_prompt() -> None:
    expected = SYSTEM + "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert builtin().render_chat([USER]) == expected
    assert builtin().render_chat([USER], add_generation_prompt=False) == expected.removesuffix(
        "<|im_start|>assistant\n"
    )
    assert (
        builtin().render_chat(CONVERSATIONS[1]).startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user")
    )


@pytest.fixture(scope="module")
def transformers_tokenizer() -> Any:
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=builtin()._backend, bos_token="<|im_start|>")
    tokenizer.chat_template = builtin().chat_template
    return tokenizer


@pytest.mark.parametrize("messages", CONVERSATIONS)
@pytest.mark.parametrize("more", [{}, {"add_generation_prompt": False}])
def test_prompts_equal_those_of_transformers(transformers_tokenizer: Any, messages: list, more: dict) -> None:
    options = {"add_generation_prompt": True} | more
    text = transformers_tokenizer.apply_chat_template(messages, tokenize=False, **options)
    assert builtin().render_chat(messages, **options) == text
    ids = transformers_tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False, **options)
    assert builtin().encode_chat(messages, **options) == ids


@pytest.mark.parametrize("words", ["Sure, ", "Sure,", ""])
@pytest.mark.parametrize("trim", ["", "|trim"])
def test_a_continued_message_equals_that_of_transformers(transformers_tokenizer: Any, words: str, trim: str) -> None:
    template = (builtin().chat_template or "").replace("message['content']", f"message['content']{trim}")
    messages = [USER, {"role": "assistant", "content": words}]
    options = {"continue_final_message": True, "add_generation_prompt": False, "chat_template": template}
    text = builtin().render_chat(messages, **options)
    assert text == transformers_tokenizer.apply_chat_template(messages, tokenize=False, **options)
    kept = words.strip() if trim else words
    tail = "<|im_start|>assistant\n" + kept
    assert text.endswith(tail if kept else tail.rstrip() if trim else tail)


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages|tojson }} {{ messages[0]|tojson(indent=2) }} {{ {'b': 1, 'a': '<&>é'}|tojson(sort_keys=true) }}",
        "{% for m in messages %}\n  {% if m.role == 'user' %}\n x\n  {% continue %}\n  {% endif %}\n y\n{% endfor %}",
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n ~ '/' ~ 3 }}",
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{{ loop.last }}{{ loop.index0 }}"
        "{% endfor %}",
        "{% macro f(x, n) %}{{ x * n }}{% endmacro %}{{ f('ab', 3) }}",
        "{{ messages[::-1][0].content.strip().split('i')|join(',') }}",
        "{{ bos_token }}{{ x }}{{ tools }}{{ documents }}",
        "{{ 7 % 4 }}{{ '%s|%d' % ('a', 3) }}{{ '{:>4}'.format(5) }}{{ 2 ** 5 }}",
        "{{ messages|map(attribute='role')|list }}{{ dict(a=1) }}",
        "{{ [1, 2] + [3] }}{{ messages|length }}{{ 'ab'|replace('a', 'ccc') }}",
        "{% for m in messages if m.role == 'user' %}{{ loop.length }}{{ loop.previtem is defined }}{% else %}none"
        "{% endfor %}",
    ],
)
def test_the_bounded_environment_renders_as_that_of_transformers(transformers_tokenizer: Any, template: str) -> None:
    for messages in CONVERSATIONS:
        expected = transformers_tokenizer.apply_chat_template(
            messages, tokenize=False, chat_template=template, add_generation_prompt=True, x=3
        )
        assert builtin().render_chat(messages, chat_template=template, x=3) == expected


# Handed cases


def test_H_TOK_01_the_begin_token_of_a_template_is_not_doubled() -> None:
    tokenizer = chat_tokenizer("{{ bos_token }}" + PLAIN)
    begin = tokenizer.bos_id
    ids = tokenizer.encode_chat([USER])
    assert ids[0] == begin and ids.count(begin) == 1
    assert tokenizer.encode_chat([USER], add_special_tokens=True) == ids
    assert tokenizer.encode(tokenizer.render_chat([USER]), add_special_tokens=False) == ids
    bare = chat_tokenizer(PLAIN)
    assert bare.encode_chat([USER], add_special_tokens=True) == [begin, *bare.encode_chat([USER])]


def test_H_TOK_03_a_model_without_a_template_asks_for_one() -> None:
    tokenizer = chat_tokenizer(None)
    assert tokenizer.chat_template is None
    with pytest.raises(RequestError, match="--chat-template") as caught:
        tokenizer.encode_chat([USER])
    assert caught.value.status == 400
    assert tokenizer.render_chat([USER], chat_template=PLAIN) == "[user]Hi"
    assert tokenizer.encode("Hi")


@pytest.mark.parametrize(
    "pair", [('{"a": [1, "<x>"], "b": {}}', {"a": [1, "<x>"], "b": {}}), ("", {}), ("{}", {}), (None, {})]
)
def test_H_TOK_04_arguments_as_string_and_as_object_give_the_same_prompt(pair: tuple) -> None:
    as_text, as_object = ([USER, call(arguments)] for arguments in pair)
    assert render(TOOLS, as_text) == render(TOOLS, as_object)
    assert as_text[1]["tool_calls"][0]["function"]["arguments"] == pair[0]


def test_H_TOK_04_the_object_reaches_the_template() -> None:
    assert render(TOOLS, [USER, call('{"city": "Zürich", "n": 2}')]) == 'f(city="Zürich";n=2;)'


@pytest.mark.parametrize(
    "arguments",
    ['{"a": ', "nope", "[1]", '"text"', "3", [1], 3, "[" * 100_000, '{"a": [NaN]}', '{"a": -1e999}', {"a": math.nan}],
)
def test_H_TOK_04_arguments_that_are_no_object_are_named(arguments: object) -> None:
    with pytest.raises(RequestError) as caught:
        render(TOOLS, [USER, call(arguments)])
    assert caught.value.param == "messages[1].tool_calls[0].function.arguments"
    assert caught.value.status == 400


@pytest.mark.parametrize("calls", [[], None])
def test_H_TOK_06_an_empty_tool_calls_list_is_absent(calls: object) -> None:
    template = "{% for m in messages %}{% if m.tool_calls is defined %}{{ m.tool_calls[0].id }}{% endif %}!{% endfor %}"
    assert render(template, [USER, {"role": "assistant", "content": "ok", "tool_calls": calls}]) == "!!"


@pytest.mark.parametrize("message", [call("{}"), {k: v for k, v in call("{}").items() if k != "content"}])
def test_H_API_09_tool_calls_need_no_content(message: dict[str, Any]) -> None:
    messages = [USER, message, {"role": "tool", "tool_call_id": "1", "content": "42"}]
    assert render(PLAIN, messages) == "[user]Hi[assistant][tool]42"
    assert "assistant\n<|im_end|>" in builtin().render_chat(messages)


@pytest.mark.parametrize("role", ["user", "system", "developer", "tool", "assistant"])
@pytest.mark.parametrize("content", [{"content": None}, {}])
def test_H_API_09_other_messages_need_content(role: str, content: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        render(PLAIN, [USER, {"role": role} | content])
    assert caught.value.param == "messages[1].content"


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("hello", "messages"),
        ({"role": "user"}, "messages"),
        ([3], "messages[0]"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "robot", "content": "x"}], "messages[0].role"),
        ([{"role": ["user"], "content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": 3}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": [3]}], "messages[0].content[0]"),
        ([{"role": "assistant", "content": "", "tool_calls": {"a": 1}}], "messages[0].tool_calls"),
        ([{"role": "assistant", "content": "", "tool_calls": [{}]}], "messages[0].tool_calls[0]"),
        ([{"role": "assistant", "content": "", "tool_calls": [3]}], "messages[0].tool_calls[0]"),
        ([{"role": "user", "content": "x", "name": 3}], "messages[0].name"),
        ([{"role": "user", "content": "x", "name": ["a"]}], "messages[0].name"),
        ([{"role": "tool", "content": "x", "tool_call_id": 3}], "messages[0].tool_call_id"),
        ([{"role": "tool", "content": "x"}], "messages[0].tool_call_id"),
        ([call("{}") | {"role": "user", "content": "x"}], "messages[0].tool_calls"),
    ],
)
def test_H_API_14_hollow_conversations_are_named(messages: Any, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        prepare_messages(messages)
    assert (caught.value.param, caught.value.status) == (param, 400)


def test_text_parts_are_joined_with_a_newline() -> None:
    parts = [{"type": "text", "text": "a"}, "b", {"type": "text", "text": "c"}]
    assert render(PLAIN, [{"role": "user", "content": parts}]) == "[user]a\nb\nc"
    assert render(PLAIN, [{"role": "user", "content": []}]) == "[user]"


def test_reasoning_reaches_the_template_under_each_name() -> None:
    message = {"role": "assistant", "content": None, "reasoning": "why"}
    template = "{% set m = messages[-1] %}{{ m.reasoning_content }}{{ m.thinking }}{{ m.content }}"
    assert render(template, [USER, message]) == "whywhy"


# Template choice and variables


def test_templates_of_a_folder(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T{{ tools|length }}"}]
    tokenizer = load_tokenizer(folder(tmp_path, byte_backend(), tokenizer_config={"chat_template": named}))
    assert tokenizer.chat_template == "D"
    assert tokenizer.render_chat([USER]) == "D"
    assert tokenizer.render_chat([USER], tools=[{"type": "function"}]) == "T1"
    (tmp_path / "chat_template.jinja").write_text("J{{ bos_token }}", encoding="utf-8")
    (tmp_path / "special_tokens_map.json").write_text('{"bos_token": {"content": "<s>"}}', encoding="utf-8")
    assert load_tokenizer(tmp_path).render_chat([USER]) == "J" + BEGIN


def test_extra_variables_reach_the_template_and_reserved_ones_do_not() -> None:
    assert render("{{ enable_thinking }}{{ bos_token }}", enable_thinking=False) == f"False{BEGIN}"
    assert render("{{ bos_token }}", bos_token="X") == "X"
    tokenizer = chat_tokenizer(PLAIN)
    with pytest.raises(RequestError) as caught:
        tokenizer.render_chat([USER], **{"add_special_tokens": True})
    assert caught.value.param == "chat_template_kwargs"
    assert {"messages", "tools", "chat_template", "self"} <= RESERVED_NAMES


def test_tools_and_documents_must_be_objects() -> None:
    assert render("{{ tools }}{{ documents }}", tools=[], documents=None) == "NoneNone"
    for field in ("tools", "documents"):
        with pytest.raises(RequestError) as caught:
            render(PLAIN, **{field: ["x"]})
        assert caught.value.param == field


def test_strftime_now_and_raise_exception() -> None:
    assert render("{{ strftime_now('%Y') }}") in {time.strftime("%Y"), str(int(time.strftime("%Y")) - 1)}
    with pytest.raises(RequestError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


def test_continuing_needs_a_shown_message_and_no_generation_prompt() -> None:
    with pytest.raises(RequestError, match="exclude") as caught:
        render(PLAIN, continue_final_message=True)
    assert caught.value.param == "continue_final_message"
    with pytest.raises(RequestError, match="does not show"):
        render("nothing", continue_final_message=True, add_generation_prompt=False)
    assert render(PLAIN + "!", continue_final_message=True, add_generation_prompt=False) == "[user]Hi"


# Faulty and hostile templates


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}",
        "{{ messages[9].content }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 / 0 }}",
        "{{ nothing.at.all }}",
        "{{ 'a'|no_such_filter }}",
        "{{ messages|tojson(indent=1000000000) }}",
        "{{ messages[0].content.no_such() }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for a in [1] %}" * 30 + "x" + "{% endfor %}" * 30,
        "{{ " + "(" * 500 + "1" + ")" * 500 + " }}",
    ],
)
def test_faults_of_a_template_are_request_errors(template: str) -> None:
    with pytest.raises(RequestError, match="the chat template") as caught:
        render(template)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}{{ ns }}",
        "{{ self.__init__ }}",
        "{{ (messages|attr('__class__')).mro() }}",
    ],
)
def test_a_template_does_not_reach_the_interpreter(template: str) -> None:
    try:
        assert render(template) == ""
    except RequestError as error:
        assert "unsafe" in error.message or "may not" in error.message or "undefined" in error.message


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
        "{% for a in range(99999) recursive %}{{ loop(range(99999)) if a < 99 }}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{{ range(10 ** 12) }}",
        "{{ 'a' * 10 ** 10 }}",
        "{{ [0] * 10 ** 10 }}",
        "{{ 10 ** (10 ** 10) }}",
        "{% set ns = namespace(n=3) %}{% for i in range(99) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
        "{% set ns = namespace(s='aa') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(s='aa') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(s='a') %}{% for i in range(99) %}{% set t %}{{ ns.s }}{{ ns.s }}{% endset %}"
        "{% set ns.s = t %}{% endfor %}",
        "{% set s = 'a' * 9999999 %}{% for i in range(99) %}{{ s }}{% endfor %}",
        "{{ 'a'|center(9999999999) }}",
        "{{ 'a'.ljust(9999999999) }}",
        "{{ 'a\nb'|indent(9999999999) }}",
        "{{ ('a' * 9999999)|replace('a', 'b' * 9999) }}",
        "{{ ('a' * 9999999).replace('a', 'b' * 9999) }}",
        "{{ (['a' * 9999999] * 9999)|join }}",
        "{{ ('a' * 9999999).join(['b'] * 9999) }}",
        "{{ '%9999999999d' % 1 }}",
        "{{ '%*d' % (9999999999, 1) }}",
        "{{ '%9999999999d'|format(1) }}",
        "{{ '{:9999999999}'.format(1) }}",
        "{{ '{:{w}}'.format(1, w=9999999999) }}",
        "{{ [1]|batch(9999999999, 0)|list }}",
        "{{ (1).to_bytes(9999999999, 'big') }}",
        "{{ lipsum(n=99999) }}",
    ],
)
def test_a_hostile_template_ends_soon_and_small(template: str) -> None:
    import resource

    start, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(RequestError):
        render(template)
    assert time.process_time() - start < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600 * 1024


def test_the_bound_does_not_stop_long_conversations() -> None:
    messages = [{"role": "user", "content": "word " * 1000}, {"role": "assistant", "content": " ok "}] * 1000
    text = builtin().render_chat(messages)
    assert len(text) > 5_000_000
    trimming = "{% for m in messages %}{{ bos_token + m.content.split('</think>')[-1].strip() + '!' }}{% endfor %}"
    assert len(render(trimming, messages)) > 4_900_000
