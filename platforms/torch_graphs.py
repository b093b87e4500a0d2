"""Capture and replay through ``torch.cuda``, which drives CUDA and HIP graphs alike."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from platforms.contract import CapturedGraph, DeviceError, Work


@dataclass(slots=True)
class Pool:
    """Memory that captures share. ``memory``: a ``torch.cuda.MemPool``. It counts as a user of its own, where torch
    refuses to capture into the bare handle of a pool whose last graph has gone."""

    memory: Any


class TorchGraphs:
    """A ``GraphBackend``. ``stream``: the runtime's own, on which captures and replays run. ``shared_memory``: the host
    allocates from the device's memory. ``capture_error_mode``: which calls of other threads end a capture;
    ``thread_local`` none, since another device may be at work beside this one."""

    name = "torch graphs"

    def __init__(
        self,
        torch: Any,
        device: Any,
        stream: Any,
        shared_memory: bool = False,
        capture_error_mode: str = "thread_local",
    ) -> None:
        self._torch, self._device, self._stream = torch, device, stream
        self._shared_memory, self._mode = shared_memory, capture_error_mode

    def new_pool(self) -> Pool:
        """Garbage is collected here, once for all captures into the pool: dead cycles may hold device memory."""
        gc.collect()
        with self._torch.cuda.stream(self._stream):
            return Pool(self._torch.cuda.MemPool())

    def capture(self, work: Work, pool: Pool) -> CapturedGraph:
        """Run ``work``, so that what kernels and libraries do when first called is done, record it, and launch the
        graph once, so that what the driver uploads with a first launch is counted. ``nbytes`` is what the pool's
        segments grew by, 0 where it had room, and what the driver took beside torch's allocator since the run; the
        latter is the device's free memory, so another program's moves at this moment count too, and it is left out
        where the host shares the memory. Raises ``DeviceError`` for any of the three; the stream and the pool stay
        usable."""
        torch, memory = self._torch, pool.memory
        graph, users, advice = torch.cuda.CUDAGraph(), memory.use_count(), _BROKEN
        try:
            with torch.cuda.stream(self._stream):
                _do(work)
                self._stream.synchronize()
                advice = _UNFIT
                before = self._taken(memory)
                with (
                    _uncollected(),
                    torch.cuda.graph(graph, pool=memory.id, stream=self._stream, capture_error_mode=self._mode),
                ):
                    _do(work)
                graph.replay()
                self._stream.synchronize()
                after = self._taken(memory)
        # A kernel is strangers' code and may raise anything.
        except Exception as error:
            raise self._failed(error, graph, pool, users, advice) from error
        return TorchGraph(torch, self._device, self._stream, graph, (work, memory), _grown(before, after))

    def _taken(self, memory: Any) -> tuple[int, int]:
        """Bytes now: of the pool, and taken of the device beside torch's allocator."""
        cuda = self._torch.cuda
        segments = sum(segment["total_size"] for segment in memory.snapshot())
        if self._shared_memory:
            return segments, 0
        free, total = cuda.mem_get_info(self._device)
        return segments, total - free - cuda.memory_reserved(self._device)

    def _failed(self, error: Exception, graph: Any, pool: Pool, users: int, advice: str) -> DeviceError:
        """What to raise, once the device is as it was."""
        cause = _cause(error)
        said = _said(cause)
        # Frames of the work hold tensors of the pool for as long as somebody holds the error.
        for raised in (error, error.__context__, cause):
            traceback.clear_frames(raised.__traceback__ if raised else None)
        try:
            self._abandon(graph, pool, users)
        except RuntimeError as failure:
            return DeviceError(f"{said}; the device did not recover from it ({_said(failure)}): start again")
        if isinstance(cause, self._torch.cuda.OutOfMemoryError):
            return DeviceError(
                f"{said}; leave more memory free for graphs (a lower --gpu-memory-utilization), or capture fewer and "
                "smaller sizes"
            )
        return DeviceError(f"{said}; {advice}")

    def _abandon(self, graph: Any, pool: Pool, users: int) -> None:
        """Undo what a failed capture set up. Releases of torch differ in how far they do so: in some an invalid capture
        leaves the allocators recording into the pool, and a reset lets go of the pool only if the capture ended well.
        So each step looks first."""
        torch, memory = self._torch, pool.memory
        with torch.cuda.stream(self._stream):
            if torch.cuda.is_current_stream_capturing():
                # The end of an invalid capture is an error that ends it.
                with suppress(RuntimeError):
                    graph.capture_end()
            graph.reset()
            if self._left_recording(memory):
                # The allocator of pinned memory was left so too, and nothing tells it: it refuses this pool from now
                # on, and asks the graph which allocations are its own.
                pool.memory = torch.cuda.MemPool()
                _ABANDONED.append(graph)
            while memory.use_count() > users:
                torch._C._cuda_releasePool(self._device.index, memory.id)
            self._stream.synchronize()

    def _left_recording(self, memory: Any) -> bool:
        """Whether torch still took allocations for those of an ended capture. Afterwards it does not."""
        try:
            self._torch._C._cuda_endAllocateToPool(self._device.index, memory.id)
        except RuntimeError:
            return False
        return True


_BROKEN = (
    "nothing was being recorded yet, so steps without graphs may fail there too: pin another kernel for that op "
    "(--kernel OP=NAME)"
)
_UNFIT = (
    "work in a graph must not wait for the device, read its values on the host or leave its stream: run that kernel "
    "outside of graphs (graph_safe=False in its row)"
)
_ABANDONED: list[Any] = []
"""Graphs to which an allocator of torch keeps a bare pointer for the life of the process."""


class TorchGraph:
    """A ``CapturedGraph``. ``held``: what the recorded addresses point into."""

    def __init__(self, torch: Any, device: Any, stream: Any, graph: Any, held: Any, nbytes: int) -> None:
        self._torch, self._index, self._stream = torch, device.index, stream
        self._graph, self._held, self.nbytes = graph, held, nbytes
        self._raw = stream.cuda_stream

    def replay(self) -> None:
        # A graph is launched on the current stream. Entering the one that is current costs as much as the launch.
        if self._torch._C._cuda_getCurrentRawStream(self._index) == self._raw:
            self._graph.replay()
            return
        with self._torch.cuda.stream(self._stream):
            self._graph.replay()

    def close(self) -> None:
        if self._graph is None:
            return
        self._stream.synchronize()
        self._graph.reset()
        self._graph = self._held = None


class _Raised(Exception):
    """Of the work itself; its cause is what the work raised."""


def _do(work: Work) -> None:
    try:
        work()
    except Exception as error:
        raise _Raised from error


def _cause(error: Exception) -> BaseException:
    """What the work raised, where it did; the end of its capture may have raised in turn."""
    found = next((raised for raised in (error, error.__context__) if isinstance(raised, _Raised)), error)
    return found.__cause__ if isinstance(found, _Raised) and found.__cause__ else found


def _grown(before: tuple[int, int], after: tuple[int, int]) -> int:
    return sum(max(now - then, 0) for then, now in zip(before, after, strict=True))


def _said(error: BaseException) -> str:
    """Type and first line of what was raised, where, and what was noted about it."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    frames = traceback.extract_tb(error.__traceback__)
    where = f" (in {frames[-1].name}, {Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    said = f"{type(error).__name__}{': ' + lines[0] if lines else ''}{where}"
    return "; ".join([said, *getattr(error, "__notes__", ())])


@contextmanager
def _uncollected() -> Iterator[None]:
    """No garbage is collected meanwhile: a finalizer may free device memory, which ends a capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
