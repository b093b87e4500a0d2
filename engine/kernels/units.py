"""Units of work ahead of time, for every row that says yes to a call of a plan. torch is imported when asked."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from engine.bind import load_target
from engine.errors import UserError
from engine.ops import Op, Spec
from engine.ops.compare import with_packed
from engine.plan.kernels import describe, input_specs
from engine.plan.sampling import sampling_calls
from engine.plan_values import Plan, TokenRange
from engine.program import Call
from platforms.contract import DeviceProfile, Kernel

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Step:
    """A step that shapes are taken from: how many new tokens, of how many requests, and how many blocks the longest of
    these has."""

    tokens: int
    requests: int
    blocks: int = 64

    def size(self, dim: int | str) -> int:
        """A size of a program in this step. ``name+1`` is one more than ``name``. Raises ``KeyError`` for a symbol
        that programs do not have."""
        if isinstance(dim, int):
            return dim
        name, _, more = dim.partition("+")
        known = {"tokens": self.tokens, "blocks": self.blocks, "pool": POOL}
        return (known | dict.fromkeys(("rows", "requests", "slots"), self.requests))[name] + int(more or 0)


POOL = 1 << 18
"""Blocks of a cache: beyond 2 GiB, as on devices that serve, whatever a model keeps of a token."""
STEPS = (Step(1, 1), Step(8, 8, 4), Step(8, 8), Step(32, 8), Step(64, 8), Step(1024, 2))
"""A new token of one request, of a few (short ones and long ones), and prompts."""


@dataclass(slots=True)
class Units:
    """``rows``: unit → the rows (``op/name``) that start it, both in order of first appearance. ``problems``: what rows
    raised instead of naming units, each said once; ``failed``: that → the rows that raised it."""

    rows: dict[Any, dict[str, None]]
    problems: dict[str, None]
    failed: dict[str, dict[str, None]] = field(default_factory=dict)

    def add(
        self, row: Kernel, op: Op, profile: DeviceProfile, specs: Sequence[Spec], attributes: Mapping[str, Any]
    ) -> None:
        """The units of one call; ``specs`` with numbers alone, of which a build for ``any_call`` sees nothing."""
        import torch

        name = f"{row.op}/{row.name}"
        # Rows are strangers' code: whatever they raise is an answer. A module that does not import is the user's to
        # repair, and says so.
        try:
            build = load_target(row.build)
            given = [
                torch.empty([int(size) for size in spec.shape], dtype=getattr(torch, spec.dtype), device="meta")
                for spec in (() if any_call(row) else specs)
            ]
            if row.pack and not any_call(row):
                given = with_packed(op, load_target(row.pack), given, attributes)
            for unit in build(profile, row.target, given, attributes):
                self.rows.setdefault(unit, {})[name] = None
        except UserError:
            raise
        except Exception as error:
            where = f"{profile.platform}:{profile.arch} (build {row.build})"
            self._fail(name, f"no units of work for {where}: {type(error).__name__}: {error}")

    def _fail(self, name: str, why: str) -> None:
        """One sentence for all rows that raise the same."""
        names = self.failed.setdefault(why, {})
        if name not in names:
            self.problems.pop(_sentence(names, why), None)
            names[name] = None
            self.problems[_sentence(names, why)] = None


def any_call(row: Kernel) -> bool:
    """Whether the row's units are the same for all calls, as its build says of itself: it is asked once, without
    tensors. Raises ``UserError`` for one that cannot be loaded."""
    return getattr(load_target(row.build), "any_call", False) is True


def _sentence(names: Iterable[str], why: str) -> str:
    *others, last = names or ("",)
    return f"{', '.join(others)} and {last} name {why}" if others else f"{last} names {why}"


def units_of(
    plan: Plan, rows: Sequence[Kernel], ops: Mapping[str, Op], steps: Iterable[Step] = STEPS, *, chosen: bool = False
) -> Units:
    """Of every row that can be made ahead of time and says yes to a call of the plan; ``chosen``: only of those that
    compute one. Raises ``UserError`` for a row that cannot be loaded."""
    found = Units({}, {})
    asked = set()
    for one, row, call, specs in willing(plan, rows, chosen=chosen):
        if any_call(row):
            if (row.op, row.name) not in asked:
                found.add(row, ops[call.op], plan.profile, (), call.attributes)
            asked.add((row.op, row.name))
            continue
        sizes = (
            tuple(Spec(spec.dtype, tuple(step.size(dim) for dim in spec.shape)) for spec in specs)
            for step in fitting(one, tuple(steps))
        )
        for sized in dict.fromkeys(sizes):
            found.add(row, ops[call.op], plan.profile, sized, call.attributes)
    return found


def willing(
    plan: Plan, rows: Sequence[Kernel], *, chosen: bool = False
) -> Iterator[tuple[TokenRange, Kernel, Call, tuple[Spec, ...]]]:
    """Each kind of call of each range, and of the sampler after it, with each row that can be made ahead of time and
    says yes to it."""
    said = {(choice.op, choice.call): choice for choice in plan.kernels}
    for one in plan.ranges:
        program = one.program
        vocab = program.values[program.outputs["logits"]].shape[-1]
        sampled = sampling_calls(vocab) if isinstance(vocab, int) else ()
        seen = set()
        for call, specs in (*((call, input_specs(program, call)) for call in program.calls), *sampled):
            key = call.op, describe(call, specs)
            if key in seen or key not in said:
                continue
            seen.add(key)
            names = {name for name, verdict in said[key].considered if verdict}
            if chosen:
                names &= {said[key].chosen}
            for row in rows:
                if row.op == call.op and row.name in names and row.build:
                    yield one, row, call, specs


def fitting(one: TokenRange, steps: Sequence[Step]) -> Sequence[Step]:
    """The steps of a range, or its smallest where it holds none of them."""
    inside = [step for step in steps if one.start <= step.tokens <= one.end]
    return inside or [Step(one.start, 1)]


def make(unit: Any) -> dict[str, Any]:
    """What ``unit.make()`` says; what it raises is a problem."""
    try:
        return dict(unit.make())
    except Exception as error:
        first = str(error).strip().splitlines() or [""]
        return {"figures": {}, "problems": (f"cannot be made: {type(error).__name__}: {first[0]}",)}


def make_all(units: Sequence[Any], processes: int) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Each unit with what came of it, as they are done. Whoever stops early, by Ctrl-C too, leaves no process and no
    file behind."""
    if processes < 2 or len(units) < 2 * processes:
        yield from ((unit, make(unit)) for unit in units)
        return
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import active_children, get_context
    from tempfile import TemporaryDirectory

    before = set(active_children())
    with TemporaryDirectory() as folder:
        pool = ProcessPoolExecutor(processes, get_context("spawn"), _work_in, (folder,))
        try:
            # What a process blocks when it starts others, these block from their first instruction on.
            with _held_interrupt():
                waiting = {pool.submit(make, unit): unit for unit in units}
            for done in as_completed(waiting):
                yield waiting[done], done.result()
        except BaseException:
            with _held_interrupt():
                for child in set(active_children()) - before:
                    child.terminate()
                pool.shutdown(cancel_futures=True)
            raise
        pool.shutdown()


def _work_in(folder: str) -> None:
    """Keep what compilers write in between where the parent removes it."""
    import tempfile

    tempfile.tempdir = folder


@contextmanager
def _held_interrupt() -> Iterator[None]:
    """A Ctrl-C meanwhile counts afterwards. Signals reach whichever thread takes them, so blocking them in this one is
    not enough."""
    ours = threading.current_thread() is threading.main_thread()
    pressed: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number)) if ours else None
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if ours:
            signal.signal(signal.SIGINT, handler)
        if pressed:
            signal.raise_signal(signal.SIGINT)
