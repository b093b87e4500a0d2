"""Rows are timed in turns: a machine that drifts or scatters chooses no row, and a faster one is found all the same."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from functools import partial
from math import exp
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine.plan.times import LOST, ROUNDS, faster
from engine.tuning import start
from engine.tuning.timing import FEW, Stopwatch
from platforms.contract import Kernel, Runtime
from platforms.discovery import select
from tests.anydevice.test_tuning import chosen, learnt, quick

CALL = 1e-4


class Machine:
    """A clock that calls move on. ``drift``: how much longer each takes than the one before; ``scatter``: how many
    times as long it may take."""

    def __init__(self, drift: float = 0.0, scatter: float = 0.0, seed: int = 0) -> None:
        self.now, self.calls, self.asked = 0.0, 0, dict[str, int]()
        self._drift, self._scatter, self._draw = drift, scatter, random.Random(seed)

    def clock(self) -> float:
        return self.now

    def spend(self, name: str, seconds: float) -> None:
        self.now += seconds * exp(self._drift * self.calls) * (1 + self._scatter * self._draw.random() ** 4)
        self.calls += 1
        self.asked[name] = self.asked.get(name, 0) + 1

    def takes(self, name: str, seconds: float) -> Callable[[], None]:
        return lambda: self.spend(name, seconds)


MACHINE = Machine()


def front(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    MACHINE.spend("front", CALL)
    return quick(x, weight, eps=eps)


def alike(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    MACHINE.spend("alike", CALL)
    return quick(x, weight, eps=eps)


def better(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    MACHINE.spend("better", CALL * 0.9)
    return quick(x, weight, eps=eps)


def failing(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    if x.shape[0] == 64:
        raise RuntimeError("no tile fits")
    return better(x, weight, eps=eps)


def row(name: str, priority: int) -> Kernel:
    return Kernel("rms_norm", name, f"{__name__}:{name}", priority=priority, batch_invariant=True)


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    selection = select("auto")
    opened = selection.plugin.open(selection.index)
    yield opened
    opened.close()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Machine]:
    """Makes the one whose clock rows are timed by."""

    def made(**how: float) -> Machine:
        found = Machine(**how)
        monkeypatch.setitem(globals(), "MACHINE", found)
        monkeypatch.setattr(start, "Stopwatch", partial(Stopwatch, clock=found.clock))
        return found

    return made


SETTINGS: dict[str, Any] = {"optimization_level": 3, "batch_invariant": True}
"""Without the reference, which does not move the clock."""


@pytest.mark.parametrize("drift", [-8e-4, 0.0, 8e-4])
def test_a_machine_that_drifts_chooses_nothing_and_hides_nothing(
    runtime: Runtime, tmp_path: Path, machine: Any, drift: float
) -> None:
    machine(drift=drift)
    found, _ = learnt(runtime, tmp_path / "alike", row("front", 2), row("alike", 1), **SETTINGS)
    assert chosen(found)[0] == "front" and chosen(found)[1].startswith("measured: ")
    machine(drift=drift)
    found, _ = learnt(runtime, tmp_path / "better", row("front", 2), row("better", 1), **SETTINGS)
    assert chosen(found)[0] == "better"


def test_rounds_are_kept_together_and_a_second_start_times_nothing(
    runtime: Runtime, tmp_path: Path, machine: Any
) -> None:
    rows = row("front", 2), row("better", 1)
    machine()
    found, first = learnt(runtime, tmp_path, *rows, **SETTINGS)
    again = machine()
    kept, second = learnt(runtime, tmp_path, *rows, **SETTINGS)
    assert kept == found and not again.calls
    assert (second.timing.done, second.timing.kept) == (0, first.timing.done) and first.timing.done
    _, third = learnt(runtime, tmp_path, *rows, row("alike", 0), **SETTINGS)
    assert third.timing.done and not third.timing.kept, "rounds of another time are nothing to compare with"


@pytest.mark.parametrize("content", ["[1]", "3", "null", "[0.5, -1.0]", "[NaN]"])
def test_damaged_rounds_are_timed_again(runtime: Runtime, tmp_path: Path, machine: Any, content: str) -> None:
    rows = row("front", 2), row("better", 1)
    machine()
    learnt(runtime, tmp_path, *rows, **SETTINGS)
    for file in (tmp_path / "tuned").iterdir():
        file.write_text(f'{{"found": {{"front": {content}, "better": [1e-5]}}}}')
    found, again = learnt(runtime, tmp_path, *rows, **SETTINGS)
    assert chosen(found)[0] == "better" and again.timing.done and not again.timing.kept


def test_a_row_that_raises_is_a_warning_and_the_others_are_timed_once(
    runtime: Runtime, tmp_path: Path, machine: Any, caplog: pytest.LogCaptureFixture
) -> None:
    rows = row("front", 3), row("failing", 2), row("better", 1)
    for again in (False, True):
        timed = machine()
        caplog.clear()
        with caplog.at_level(logging.WARNING, "engine"):
            found, learner = learnt(runtime, tmp_path, *rows, **SETTINGS)
        assert chosen(found)[0] == "better" and learner.timing.failed
        assert "failing of rms_norm is not timed: RuntimeError: no tile fits" in caplog.text
        assert bool(timed.calls) is not again


def rounds(runtime: Runtime, machine: Machine, graphs: Any = None, **functions: Callable[[], None]) -> dict[str, Any]:
    watch = Stopwatch(runtime, graphs, machine.clock)
    return watch.in_turns({name: watch.warm(function) for name, function in functions.items()})


def test_rows_that_scatter_alike_stay_where_they_are(runtime: Runtime) -> None:
    for seed in range(50):
        machine = Machine(scatter=10.0, seed=seed)
        found = rounds(runtime, machine, **{name: machine.takes(name, CALL) for name in ("one", "two", "three")})
        assert not any(faster([found[name]], [found["one"]]) for name in ("two", "three"))


def test_what_is_hopeless_or_slow_is_asked_seldom(runtime: Runtime) -> None:
    machine = Machine()
    takes = {"front": 1e-3, "behind": 2e-3, "slow": 0.2, "better": 5e-4}
    found = rounds(runtime, machine, **{name: machine.takes(name, seconds) for name, seconds in takes.items()})
    assert {name: len(one) for name, one in found.items()} == {
        "front": ROUNDS, "behind": LOST + 1, "slow": FEW, "better": ROUNDS,
    }  # fmt: skip
    assert machine.asked["slow"] <= 4
    assert all(one == pytest.approx(takes[name]) for name, many in found.items() for one in many)


def test_what_was_recorded_is_given_back_whatever_is_raised(runtime: Runtime) -> None:
    closed, machine = [], Machine()

    class Graphs:
        name = "some"

        def new_pool(self) -> None:
            return None

        def capture(self, work: Any, pool: Any) -> Any:
            machine.spend("captured", 0.0)

            def replay() -> None:
                if machine.asked["one"] > 40:
                    raise RuntimeError("lost")
                work()

            return SimpleNamespace(replay=replay, close=lambda: closed.append(1))

    found = rounds(runtime, machine, Graphs(), **{name: machine.takes(name, CALL) for name in ("one", "two")})
    assert len(closed) == machine.asked["captured"] == 2
    assert isinstance(found["one"], RuntimeError)
