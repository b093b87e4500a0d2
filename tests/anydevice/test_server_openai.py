"""The official Python client against a live server."""

from __future__ import annotations

import asyncio

import openai
import pytest

from tests.scripted_engine import MODEL, Script, serving

KEY = "secret"
USER = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def server():
    with serving(Script(text="Hello, wörld! ", step_s=0.001), max_model_len=200, api_keys=[KEY]) as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0, timeout=20) as made:
        yield made


def test_models(client):
    assert [card.id for card in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).object == "model"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("other")
    assert caught.value.param == "model"


def test_chat(client):
    answer = client.chat.completions.create(
        model=MODEL, messages=USER, max_completion_tokens=14, n=2, logprobs=True, top_logprobs=2, seed=1, user="me",
        extra_body={"top_k": 5, "repetition_penalty": 1.1},
    )  # fmt: skip
    assert [choice.message.content for choice in answer.choices] == ["Hello, wörld!"] * 2
    assert answer.choices[0].finish_reason == "length" and answer.usage.completion_tokens == 28
    assert len(answer.choices[0].logprobs.content) == 14
    assert len(answer.choices[0].logprobs.content[0].top_logprobs) == 2
    again = [*USER, answer.choices[0].message.model_dump(), *USER]
    assert client.chat.completions.create(model=MODEL, messages=again, max_tokens=1).usage.prompt_tokens > 19


def test_chat_stream(client):
    with client.chat.completions.create(
        model=MODEL, messages=USER, max_tokens=14, stream=True, stream_options={"include_usage": True}
    ) as stream:
        chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hello, wörld!"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage.completion_tokens == 14 and chunks[-1].choices == []


def test_the_clients_own_stream_helper(client):
    with client.chat.completions.stream(model=MODEL, messages=USER, stop="! ") as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "Hello, wörld" and final.choices[0].finish_reason == "stop"


def test_completions(client):
    answer = client.completions.create(model=MODEL, prompt=["a", "b"], max_tokens=5, logprobs=2, echo=True)
    assert [choice.text for choice in answer.choices] == ["aHello", "bHello"]
    assert len(answer.choices[0].logprobs.tokens) == 2 + 5
    parts = client.completions.create(model=MODEL, prompt="a", max_tokens=14, stream=True, stop="wör")
    assert "".join(part.choices[0].text for part in parts) == "Hello, "


def test_errors(server, client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=USER, temperature=5)
    assert caught.value.param == "temperature" and "temperature" in caught.value.message
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-4", messages=USER)
    with pytest.raises(openai.BadRequestError, match="enable-auto-tool-choice"):
        client.chat.completions.create(
            model=MODEL, messages=USER, tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}]
        )
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong") as other,
        pytest.raises(openai.AuthenticationError),
    ):
        other.models.list()


def test_an_error_in_a_stream():
    with serving(Script(fail_after=3)) as server, openai.OpenAI(base_url=f"{server.url}/v1", api_key="x") as client:
        stream = client.completions.create(model=MODEL, prompt="a", max_tokens=9, stream=True)
        with pytest.raises(openai.APIError, match="script says so"):
            list(stream)


def test_async_client_many_at_once(server):
    async def main():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0, timeout=20) as client:

            async def one(size):
                stream = await client.chat.completions.create(model=MODEL, messages=USER, max_tokens=size, stream=True)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            return await asyncio.gather(*(one(size) for size in range(10, 26)))

    texts = asyncio.run(main())
    endless = ("Hello, wörld! " * 3).encode()
    assert texts == [endless[:size].decode(errors="replace") for size in range(10, 26)]
