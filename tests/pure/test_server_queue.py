"""How many wait, and how fast one key may go: by numbers and a clock of our own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.batch import Stats
from engine.config import value_of
from engine.errors import RequestError
from engine.sampling_params import CAPS
from engine.server.limits import Limits, limits_of
from engine.server.queue import Queue
from engine.server.rate import RateLimit, RateMiddleware


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def state(running: int = 0, waiting: int = 0) -> Stats:
    return Stats(running, waiting, 0.0, 0, 0, 0, 0, 0, 0)


def test_defaults_of_the_settings_are_those_of_the_values() -> None:
    found = limits_of({})
    assert found == Limits(queued_choices=4096)
    assert (value_of({}, "server.max_n"), value_of({}, "model.max_logprobs")) == CAPS[:2]


def test_what_has_no_place_in_a_step_waits() -> None:
    seen = state()
    queue = Queue(Limits(queued_choices=2, queued_tokens=10**6), 4, lambda: seen)
    first = queue.enter([10, 10, 10])
    second = queue.enter([7, 5, 5])
    assert queue.waiting() == (2, 10)
    with pytest.raises(RequestError, match=r"2 requests wait.*--max-num-queued-reqs") as refused:
        queue.enter([1])
    assert (refused.value.status, refused.value.retry_after) == (429, 1)
    first.start(0)
    assert queue.waiting() == (2, 10)  # one more runs, and one place less is free
    first.end(0)
    assert queue.waiting() == (1, 5)
    queue.enter([1]).leave()
    first.leave()
    assert queue.waiting() == (0, 0)
    second.start(2)
    second.leave()
    assert (queue.waiting(), queue._started, queue._waiting) == ((0, 0), 0, {})


def test_a_cache_that_is_full_leaves_fewer_places() -> None:
    seen = state()
    queue = Queue(Limits(queued_choices=1), 64, lambda: seen)
    running = queue.enter([5, 5])
    for choice in range(2):
        running.start(choice)
    queue.enter([5])
    assert queue.waiting() == (0, 0)
    seen = state(running=2, waiting=1)
    assert queue.waiting()[0] == 1
    with pytest.raises(RequestError):
        queue.enter([1])


def test_who_finds_it_full_is_counted_with_the_limit() -> None:
    counted: list[str] = []
    queue = Queue(Limits(queued_choices=3, queued_tokens=50), 1, state, refused=counted.append)
    queue.enter([5])
    queue.enter([60])
    for _ in range(2):
        with pytest.raises(RequestError):
            queue.enter([1])
    queue.limits = Limits(queued_choices=1)
    with pytest.raises(RequestError):
        queue.enter([1, 1])
    assert counted == ["queued_tokens", "queued_tokens", "queued_requests"]


def test_requests_of_other_front_ends_count() -> None:
    queue = Queue(Limits(queued_choices=3), 2, lambda: state(running=2, waiting=3))
    with pytest.raises(RequestError, match="3 requests wait"):
        queue.enter([1])


def test_tokens_have_a_limit_of_their_own() -> None:
    queue = Queue(Limits(queued_tokens=100), 1, state)
    queue.enter([5000])
    queue.enter([60])
    queue.enter([60])
    with pytest.raises(RequestError, match=r"120 prompt tokens wait.*--max-num-queued-tokens"):
        queue.enter([1])


def test_when_to_come_back_follows_the_pace() -> None:
    clock = Clock()
    queue = Queue(Limits(queued_choices=10), 1, state, clock)
    tickets = [queue.enter([1]) for _ in range(11)]
    for ticket in tickets[:5]:
        clock.now += 4
        ticket.start(0)
        ticket.leave()
    tickets = [queue.enter([1]) for _ in range(5)]
    with pytest.raises(RequestError) as refused:
        queue.enter([1])
    assert refused.value.retry_after == 16  # ten wait, one starts every 3.2 seconds
    clock.now += 3600
    with pytest.raises(RequestError) as refused:
        queue.enter([1])
    assert refused.value.retry_after == 1


def test_a_key_has_a_minute_s_worth_and_then_its_pace() -> None:
    clock, due = Clock(), [0.0, 0.0]
    rate = RateLimit(6, due, clock)
    assert [rate.refused(0) for _ in range(7)] == [0, 0, 0, 0, 0, 0, pytest.approx(10)]
    assert rate.refused(1) == 0
    clock.now += 9
    assert rate.refused(0) == pytest.approx(1)
    clock.now += 1
    assert rate.refused(0) == 0 and rate.refused(0) == pytest.approx(10)
    clock.now += 3600
    assert [bool(rate.refused(0)) for _ in range(7)] == [False] * 6 + [True]


def test_what_is_asked_before_there_is_a_model_does_not_count() -> None:
    passed: list[bool] = []
    loaded = False

    async def app(scope: Any, receive: Any, send: Any) -> None:
        passed.append(loaded)

    async def send(message: Any) -> None:
        return None

    limited = RateMiddleware(app, RateLimit(1, [0.0], Clock()), lambda reason: None, lambda: loaded)
    for there in (False, False, True, True):
        loaded = there
        asyncio.run(limited({"type": "http", "method": "POST", "headers": []}, None, send))
    assert passed == [False, False, True]
