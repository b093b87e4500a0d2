"""``litellm`` against a server: ``python litellm_calls.py BASE_URL``, in an environment that has it."""

from __future__ import annotations

import asyncio
import os
import sys
from importlib.metadata import version

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # nothing is fetched

import litellm

litellm.telemetry, litellm.suppress_debug_info = False, True
BASE = sys.argv[1]
COMMON = {"model": "openai/script", "api_base": BASE, "api_key": "secret", "num_retries": 0, "timeout": 60}
MESSAGES = [{"role": "user", "content": "Say hello."}]


def sync() -> None:
    answer = litellm.completion(messages=MESSAGES, max_tokens=8, temperature=0, **COMMON)
    assert answer.choices[0].message.content == "hello he", answer
    assert answer.choices[0].finish_reason == "length" and answer.usage.completion_tokens == 8


def streamed() -> None:
    chunks = litellm.completion(messages=MESSAGES, max_tokens=8, stream=True, **COMMON)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == "hello he", text


def several() -> None:
    answer = litellm.completion(messages=MESSAGES, max_tokens=4, n=2, logprobs=True, top_logprobs=2, **COMMON)
    assert [choice.message.content for choice in answer.choices] == ["hell", "hell"]


def text() -> None:
    more = {**COMMON, "model": "text-completion-openai/script"}
    answer = litellm.text_completion(prompt="a", max_tokens=6, temperature=0, **more)
    assert answer.choices[0].text == "hello ", answer


async def _at_once() -> None:
    answers = await asyncio.gather(
        *(litellm.acompletion(messages=MESSAGES, max_tokens=8, **COMMON) for _ in range(20))
    )
    assert all(answer.choices[0].message.content == "hello he" for answer in answers)
    stream = await litellm.acompletion(messages=MESSAGES, max_tokens=8, stream=True, **COMMON)
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "hello he"


def at_once() -> None:
    asyncio.run(_at_once())


def faults() -> None:
    for change, kind in (
        ({"temperature": 9}, litellm.BadRequestError),
        ({"model": "openai/another"}, litellm.NotFoundError),
        ({"api_key": "wrong"}, litellm.AuthenticationError),
    ):
        try:
            litellm.completion(messages=MESSAGES, **{**COMMON, **change})
        except kind:
            continue
        raise AssertionError(f"{change} was taken")


if __name__ == "__main__":
    ASKS = (sync, streamed, several, text, at_once, faults)
    for ask in ASKS:
        ask()
    print(f"litellm {version('litellm')}: {len(ASKS)} ways of asking")
