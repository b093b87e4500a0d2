"""A piece of work on fixed buffers, run step by step and recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.conformance.check import NotSupported, Wrong
from engine.ops import OPS
from engine.ops.compare import same_bits
from engine.work import BoundCall, Work
from platforms.contract import CapturedGraph, GraphBackend, Runtime, Verdict

if TYPE_CHECKING:
    from engine.conformance.subject import Subject

WIDTH = 1024


def backend_of(subject: Subject) -> tuple[Runtime, GraphBackend]:
    """The device and what records on it. Raises ``NotSupported``."""
    runtime = subject.runtime
    found = runtime.graphs()
    if isinstance(found, Verdict):
        raise NotSupported(found.reason)
    return runtime, found


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a decoder on fixed buffers. ``x``: what it reads, ``out``: what it writes."""

    x: Any
    out: Any
    work: Work


def work_of(calls: Sequence[BoundCall], given: Mapping[str, Any], results: Mapping[str, Any]) -> Work:
    """``calls``, then a copy of each of ``results`` into its buffer. ``given``: tensors by name, where they stay."""
    kept = {f"{name} kept": buffer for name, buffer in results.items()}
    copies = [BoundCall("copy", "", copy, (f"{name} kept", name), (f"{name} kept",), {}, (0,)) for name in results]
    return Work([*calls, *copies], {**given, **kept})


def copy(buffer: Any, value: Any) -> Any:
    return buffer.copy_(value)


def piece_of(runtime: Runtime, seed: int, tokens: int = 4) -> Piece:
    """A norm, a product and a gate, added to what they read. ``x`` is [tokens, ``WIDTH``] in float32."""
    import torch

    rng = torch.Generator().manual_seed(seed)
    weights = [torch.randn(shape, generator=rng).to(runtime.device) / 32 for shape in ((WIDTH,), (2 * WIDTH, WIDTH))]
    x, out = (runtime.zeros((tokens, WIDTH), torch.float32) for _ in range(2))
    x.copy_(torch.randn((tokens, WIDTH), generator=rng).to(runtime.device))
    calls = [
        BoundCall("rms_norm", "", OPS["rms_norm"].reference, ("x", "scale"), ("normed",), {"eps": 1e-6}),
        BoundCall("linear", "", OPS["linear"].reference, ("normed", "matrix"), ("wide",)),
        BoundCall("silu_and_mul", "", OPS["silu_and_mul"].reference, ("wide",), ("inner",)),
        BoundCall("add", "", OPS["add"].reference, ("x", "inner"), ("sum",)),
    ]
    return Piece(x, out, work_of(calls, {"x": x, "scale": weights[0], "matrix": weights[1]}, {"sum": out}))


def eager(runtime: Runtime, piece: Piece) -> Any:
    """What the piece gives for what is in its buffer now."""
    piece.work()
    runtime.synchronize()
    found = piece.out.clone()
    piece.out.zero_()
    return found


def captured(runtime: Runtime, backend: GraphBackend, work: Work, pool: Any) -> CapturedGraph:
    """``work`` recorded; a run before that is the backend's to make. Raises ``Wrong`` where the graph has no size."""
    runtime.synchronize()
    graph = backend.capture(work, pool)
    if not isinstance(graph.nbytes, int) or graph.nbytes < 0:
        raise Wrong(f"nbytes of a graph is {graph.nbytes!r}, not a number of bytes")
    return graph


def same(runtime: Runtime, found: Any, expected: Any, when: str) -> None:
    """Raises ``Wrong`` where a bit differs. ``when``: begins the sentence."""
    runtime.synchronize()
    got, wanted = (runtime.fetch(x).wait() for x in (found, expected))
    if not same_bits(got, wanted):
        off = float((got.double() - wanted.double()).abs().max())
        raise Wrong(f"{when}, a replay differs from the same work run step by step by {off:.3g}")
