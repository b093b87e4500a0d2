"""Compilations that do not end: they cost their own requests, and few threads."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from engine.batch import Request
from engine.errors import RequestError
from engine.grammar import GrammarError, Vocabulary, compilations
from engine.grammar.compilations import MAX_THREADS, Compilations
from engine.grammar.live import Grammars
from engine.sampling_params import SamplingParams
from engine.structured_outputs import StructuredOutputsParams

LONG_S = 30.0
EXITS = """
import threading
from engine.grammar.compilations import Compilations
compilations, begun = Compilations(), threading.Event()
compilations.submit(lambda: (begun.set(), threading.Event().wait()))
begun.wait()
compilations.close()
"""


class Stubborn:
    """A compiler in whose hands a regex that starts with "slow" waits for ``go``."""

    words = 1

    def __init__(self, go: threading.Event) -> None:
        self.go = go

    def compile(self, params: StructuredOutputsParams) -> Stubborn:
        if (params.regex or "").startswith("slow"):
            self.go.wait(LONG_S)
        if params.regex == "wrong":
            raise GrammarError("it is wrong")
        if params.regex == "bug":
            raise ValueError("a secret")
        return self

    def copy(self) -> Stubborn:
        return self


@pytest.fixture
def go() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def grammars(go: threading.Event, monkeypatch: pytest.MonkeyPatch) -> Iterator[Grammars]:
    monkeypatch.setattr("engine.grammar.live._make", lambda vocabulary: Stubborn(go))
    made = Grammars()
    made.learn(Vocabulary([], [], []))
    yield made
    made.close()


def hurry(monkeypatch: pytest.MonkeyPatch, limit: float = 0.05) -> None:
    monkeypatch.setattr(compilations, "LIMIT_S", limit)
    monkeypatch.setattr(compilations, "PATIENCE_S", 0.01)


def until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG_S
    while not done():
        assert time.monotonic() < end
        time.sleep(0.01)


def asked(grammars: Grammars, *patterns: str) -> dict[str, RequestError | None]:
    """What becomes of requests of that name."""
    for pattern in patterns:
        grammars.compile(Request(pattern, [1], SamplingParams(), 0.0), StructuredOutputsParams(regex=pattern))
    told: dict[str, RequestError | None] = {}
    until(lambda: told.update(grammars.compiled()) or len(told) == len(patterns))
    return told


def test_what_takes_too_long_is_refused_and_others_go_on(grammars, go, monkeypatch):
    hurry(monkeypatch)
    told = asked(grammars, "slow", "a", "wrong", "bug")
    assert told["a"] is None
    late, wrong, bug = told["slow"], told["wrong"], told["bug"]
    assert (late.status, late.param) == (400, "structured_outputs") and "make it smaller" in late.message
    assert (wrong.status, wrong.message) == (400, "it is wrong")
    assert bug.status == 500 and "secret" not in bug.message
    begin = time.monotonic()
    assert asked(grammars, "slow")["slow"].status == 400 and time.monotonic() - begin < LONG_S / 3
    go.set()
    until(lambda: asked(grammars, "slow")["slow"] is None)


def test_few_threads_are_ever_stuck_and_then_new_forms_are_refused_for_a_while(grammars, go, monkeypatch):
    before = set(threading.enumerate())
    hurry(monkeypatch)
    told = asked(grammars, *(f"slow {place}" for place in range(2 * MAX_THREADS)))
    assert sorted(error.status for error in told.values()) == [400] * MAX_THREADS + [503] * MAX_THREADS
    assert asked(grammars, "new")["new"].status == 503
    assert len(set(threading.enumerate()) - before) == MAX_THREADS - 1  # it had one
    go.set()
    until(lambda: asked(grammars, "new")["new"] is None)


def test_one_thread_is_enough_while_nothing_takes_long(monkeypatch):
    monkeypatch.setattr(compilations, "PATIENCE_S", LONG_S)
    before, many = set(threading.enumerate()), Compilations()
    results = [many.submit(lambda place=place: place) for place in range(50)]
    assert [each.result(LONG_S) for each in results] == list(range(50))
    assert len(set(threading.enumerate()) - before) == 1
    many.close()
    until(lambda: not set(threading.enumerate()) - before)


def test_a_process_ends_although_a_compilation_does_not():
    assert subprocess.run([sys.executable, "-c", EXITS], timeout=60).returncode == 0
