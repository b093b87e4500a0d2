"""Chapter graphs: recorded work against the same work run step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from engine.conformance.capture import backend_of, captured, eager, piece_of, same, work_of
from engine.conformance.check import NotSupported, Wrong, said
from engine.conformance.rows import bands_of, suiting
from engine.work import BoundCall, Work
from platforms.contract import DeviceError, Kernel, Runtime, Verdict

if TYPE_CHECKING:
    from engine.conformance.subject import Subject
    from engine.ops import Op

REPLAYS = 50
SLACK = 16 << 20
"""Bytes by which a device's free memory may move for reasons of its own."""


def checks(subject: Subject) -> Iterator[tuple[str, Callable[[], str]]]:
    """Name and body of each check."""
    bodies = {
        "answer": _answer,
        "replay": _replay,
        "new-contents": _new_contents,
        "shared-pool": _shared_pool,
        "host-reads": _host_reads,
        "replay-allocates-nothing": _allocates_nothing,
        "close": _close,
    }
    for name, body in bodies.items():
        yield name, partial(body, subject)
    for row in subject.rows:
        if row.graph_safe and row.op in subject.ops:
            yield f"row/{row.op}/{row.name}", partial(_row, subject, row)


def _answer(subject: Subject) -> str:
    runtime = subject.runtime
    found, promised = runtime.graphs(), "graph.capture" in runtime.profile.features
    if isinstance(found, Verdict):
        if found or promised:
            raise Wrong(
                f"graphs() gave the verdict {found!r}, and the profile {'has' if promised else 'lacks'} "
                "graph.capture: both must say no, or a backend be given"
            )
        return f"none: {found.reason}"
    missing = [name for name in ("name", "new_pool", "capture") if not hasattr(found, name)]
    if missing:
        raise Wrong(f"graphs() gave a {type(found).__name__} without {', '.join(missing)}")
    if not promised:
        raise Wrong(f"graphs() gives the backend {found.name}, and the profile lacks graph.capture: no plan uses it")
    return found.name


def _replay(subject: Subject) -> str:
    import torch

    runtime, backend = backend_of(subject)
    with torch.inference_mode(), runtime.compute():
        piece = piece_of(runtime, 1)
        expected = eager(runtime, piece)
        graph = captured(runtime, backend, piece.work, backend.new_pool())
        for at in range(3):
            piece.out.zero_()
            graph.replay()
            same(runtime, piece.out, expected, f"the {at + 1}. time")
        nbytes = graph.nbytes
        graph.close()
    return f"3 replays, {nbytes} bytes"


def _new_contents(subject: Subject) -> str:
    import torch

    runtime, backend = backend_of(subject)
    with torch.inference_mode(), runtime.compute():
        piece = piece_of(runtime, 2)
        graph = captured(runtime, backend, piece.work, backend.new_pool())
        for at in range(3):
            piece.x.copy_(piece.x.roll(1, 0) * (at + 2))
            expected = eager(runtime, piece)
            graph.replay()
            same(runtime, piece.out, expected, "after its input was refilled")
        graph.close()
    return "3 contents"


def _shared_pool(subject: Subject) -> str:
    import torch

    runtime, backend = backend_of(subject)
    with torch.inference_mode(), runtime.compute():
        pool = backend.new_pool()
        pieces = [piece_of(runtime, seed, tokens) for seed, tokens in ((3, 8), (4, 2))]
        expected = [eager(runtime, piece) for piece in pieces]
        graphs = [captured(runtime, backend, piece.work, pool) for piece in pieces]
        for at in (0, 1, 1, 0):
            pieces[at].out.zero_()
            graphs[at].replay()
            same(runtime, pieces[at].out, expected[at], "beside a graph of the same pool")
        graphs[0].close()
        pieces[1].out.zero_()
        graphs[1].replay()
        same(runtime, pieces[1].out, expected[1], "after another graph of its pool was closed")
        graphs[1].close()
    return "2 graphs"


def _host_reads(subject: Subject) -> str:
    """A capture that reads a value on the host is refused, or replays what the value is then."""
    import torch

    runtime, backend = backend_of(subject)
    with torch.inference_mode(), runtime.compute():
        piece = piece_of(runtime, 5)

        def reads(out: Any, x: Any) -> Any:
            return out.fill_(x[0, 0].item())

        call = BoundCall("fill", "reads_on_the_host", reads, ("out", "x"), ("out",), {}, (0,))
        work, pool = work_of([call], {"x": piece.x, "out": piece.out}, {}), backend.new_pool()
        work()
        runtime.synchronize()
        try:
            graph = backend.capture(work, pool)
        except DeviceError as error:
            said_so = f"refused: {str(error).splitlines()[0] if str(error) else 'without a message'}"
        except Exception as error:
            raise Wrong(f"a host read in a capture raised {said(error)}; it must be a DeviceError") from error
        else:
            piece.x.fill_(12.0)
            graph.replay()
            same(runtime, piece.out, torch.full_like(piece.out, 12.0), "with a host read captured")
            graph.close()
            said_so = "taken, and replayed with the value of the time"
        expected = eager(runtime, piece)
        graph = captured(runtime, backend, piece.work, pool)
        piece.out.zero_()
        graph.replay()
        same(runtime, piece.out, expected, "after a capture that reads on the host")
        graph.close()
    return said_so


def _available(runtime: Runtime) -> int:
    runtime.synchronize()
    return runtime.memory().available


def _allocates_nothing(subject: Subject) -> str:
    import torch

    runtime, backend = backend_of(subject)
    if runtime.memory().shared_with_host:
        raise NotSupported("the memory is shared with other programs, whose moves hide those of a replay")
    with torch.inference_mode(), runtime.compute():
        piece = piece_of(runtime, 6, tokens=1024)
        graph = captured(runtime, backend, piece.work, backend.new_pool())
        graph.replay()
        before = _available(runtime)
        for _ in range(REPLAYS):
            graph.replay()
        lost = before - _available(runtime)
        graph.close()
    if lost > SLACK:
        raise Wrong(f"{REPLAYS} replays took {lost} bytes of the device")
    return f"{REPLAYS} replays"


def _close(subject: Subject) -> str:
    import torch

    runtime, backend = backend_of(subject)
    with torch.inference_mode(), runtime.compute():
        piece = piece_of(runtime, 7, tokens=8192)
        before, pool = _available(runtime), backend.new_pool()
        graph = captured(runtime, backend, piece.work, pool)
        graph.replay()
        graph.close()
        graph.close()
        del graph, pool
        lost = before - _available(runtime)
    if runtime.memory().shared_with_host:
        return "may be said twice; the memory is shared with other programs, and was not looked at"
    if lost > SLACK:
        raise Wrong(f"after close() {lost} bytes of the device are still taken")
    return f"may be said twice; {max(lost, 0)} bytes are left behind"


def _row(subject: Subject, row: Kernel) -> str:
    """A row that says it may be captured: replayed with new contents, it gives what it gives by itself."""
    import torch

    from engine.bind import load_target
    from engine.ops.compare import as_tuple

    runtime, backend = backend_of(subject)
    op, function = subject.ops[row.op], load_target(row.target)
    calls = suiting(subject, row, runtime, op.cases)
    call = min(calls, key=lambda call: sum(x.numel() for x in call.inputs))
    given = [band.tensor for band in bands_of(op, row, call, runtime)]
    with torch.inference_mode(), runtime.compute():
        kept = [x.clone() for x in given]

        def refill(factor: float) -> None:
            for at, (x, old) in enumerate(zip(given, kept, strict=True)):
                scaled = x.is_floating_point() and at not in op.weights and x.element_size() > 1
                x.copy_(old * factor if scaled else old)

        def alone(factor: float) -> list[Any]:
            refill(factor)
            results = [x.clone() for x in as_tuple(function(*given, **call.case.attributes))]
            runtime.synchronize()
            return results

        fresh = [torch.zeros_like(x) for x in alone(1.0)]
        fresh = fresh[: len(fresh) - len(op.mutates)]
        work = _work(op, row, function, call.case.attributes, given, fresh)
        refill(1.0)
        graph = captured(runtime, backend, work, backend.new_pool())
        for factor in (1.0, 0.5):
            expected = alone(factor)
            refill(factor)
            for x in fresh:
                x.zero_()
            graph.replay()
            for found, wanted in zip([*fresh, *(given[at] for at in op.mutates)], expected, strict=True):
                same(runtime, found, wanted, f"on {call}")
        graph.close()
    return f"2 contents of {call}"


def _work(
    op: Op, row: Kernel, function: Callable[..., Any], attributes: Mapping[str, Any], given: list[Any], fresh: list[Any]
) -> Work:
    """One call of the row on ``given``; results that are no input of it go to ``fresh``."""
    inputs, results = ({f"{kind} {at}": x for at, x in enumerate(xs)} for kind, xs in (("input", given), ("of", fresh)))
    written = [f"input {at}" for at in op.mutates]
    call = BoundCall(op.name, row.name, function, tuple(inputs), (*results, *written), attributes, op.mutates)
    return work_of([call], inputs, results)
