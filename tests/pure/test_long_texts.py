"""Texts that take long to tokenise."""

from __future__ import annotations

import threading

import pytest

from engine.errors import RequestError
from engine.tokenizer.tokenizer import SHORT
from tests.pure.tokenizer_toys import builtin

LINE = "<|im_start|>user\nnaïve €5 text<|im_end|>\n"


def test_H_SRV_06_a_long_text_lets_other_threads_go_on() -> None:
    ticks, ended = 0, threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not ended.wait(0.001):
            ticks += 1

    once = builtin().encode(LINE, add_special_tokens=False)
    watcher = threading.Thread(target=tick)
    watcher.start()
    before = ticks
    ids = builtin().encode(LINE * 50_000, add_special_tokens=False)
    during = ticks - before
    ended.set()
    watcher.join()
    assert during > 10 and ids == once * 50_000


def test_half_of_a_surrogate_pair_in_a_long_text_is_a_request_error() -> None:
    with pytest.raises(RequestError, match="surrogate") as caught:
        builtin().encode("a" * SHORT + "\ud800")
    assert caught.value.param == "prompt"
