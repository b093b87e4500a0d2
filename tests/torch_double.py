"""A recording double of torch's graph calls: what is asked of it, in which order, and what becomes of its memory."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

from platforms.torch_graphs import TorchGraphs

GIB, MIB = 1 << 30, 1 << 20
INVALID = "CUDA error: operation failed due to a previous error during capture"


class OutOfMemory(RuntimeError):
    pass


def host_read() -> RuntimeError:
    return RuntimeError("CUDA error: operation not permitted when stream is capturing\nCompile with DSA")


class Stream:
    cuda_stream = 7

    def __init__(self, torch: FakeTorch) -> None:
        self.torch = torch

    def synchronize(self) -> None:
        assert self.torch.capturing is None, "a capturing stream cannot be waited for"
        self.torch.say("synchronize")


class MemPool:
    """``segments``: sizes of what it took of the device; ``used``: bytes of them in use by the capture under way."""

    def __init__(self, torch: FakeTorch) -> None:
        self.torch, self.id = torch, (0, len(torch.pools) + 1)
        self.users, self.used = 1, 0
        self.segments: list[int] = []
        torch.pools[self.id] = self
        torch.say(f"pool {self.id[1]}")

    def use_count(self) -> int:
        return self.users

    def snapshot(self) -> list[dict[str, int]]:
        return [{"total_size": size} for size in self.segments]


class Graph:
    """``queued``: what a launch does."""

    def __init__(self, torch: FakeTorch) -> None:
        self.torch, self.ended, self.launched = torch, False, False
        self.pool: MemPool | None = None
        self.queued: list[Callable[[], None]] = []

    def capture_end(self) -> None:
        torch, self.torch.capturing = self.torch, None
        torch.say("end")
        if torch.invalid:
            torch.invalid = False
            if not torch.leaves_recording:
                torch.recording = None
            raise RuntimeError(f"{INVALID}\nmore")
        torch.recording, self.ended = None, True

    def replay(self) -> None:
        assert self.ended and self.torch.current is self.torch.the_stream
        self.torch.say("replay")
        if self.torch.fails_at_launch:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if not self.launched:
            self.torch.driver += self.torch.upload
        self.launched = True
        for call in self.queued:
            call()

    def reset(self) -> None:
        self.torch.say("reset")
        if self.pool is not None and (self.ended or self.torch.reset_releases):
            self.pool.users -= 1
            self.pool = None
        self.ended, self.queued = False, []

    def __del__(self) -> None:
        if self.ended:
            self.reset()


class FakeTorch:
    """``leaves_recording``, ``reset_releases``: how releases of torch differ after a capture that failed. ``upload``:
    bytes that the driver takes at each first launch. ``said``: what was asked, and ``on``: on which stream."""

    def __init__(self, leaves_recording: bool = False, reset_releases: bool = False) -> None:
        self.leaves_recording, self.reset_releases = leaves_recording, reset_releases
        self.said: list[str] = []
        self.on: list[Stream | None] = []
        self.pools: dict[tuple[int, int], MemPool] = {}
        self.capturing: Graph | None = None
        self.recording: tuple[int, int] | None = None
        self.current: Stream | None = None
        self.driver = self.upload = self.cached = 0
        self.invalid = self.fails_at_launch = False
        self.collecting: list[bool] = []
        self.the_stream = Stream(self)
        self.cuda = SimpleNamespace(
            CUDAGraph=lambda: Graph(self),
            MemPool=lambda: MemPool(self),
            OutOfMemoryError=OutOfMemory,
            stream=self._stream,
            graph=self._graph,
            is_current_stream_capturing=lambda: self.capturing is not None,
            mem_get_info=lambda device: (80 * GIB - self.reserved() - self.driver, 80 * GIB),
            memory_reserved=lambda device: self.reserved(),
        )
        self._C = SimpleNamespace(
            _cuda_endAllocateToPool=self._end_recording,
            _cuda_releasePool=self._release,
            _cuda_getCurrentRawStream=lambda index: self.current.cuda_stream if self.current else 0,
        )

    def say(self, what: str) -> None:
        self.said.append(what)
        self.on.append(self.current)

    def reserved(self) -> int:
        return self.cached + sum(sum(pool.segments) for pool in self.pools.values())

    def take(self, nbytes: int) -> None:
        """Of the pool that is captured into, else of what the allocator keeps for everybody."""
        pool = self.capturing.pool if self.capturing else None
        if pool is None:
            self.cached += nbytes
            return
        pool.used += nbytes
        if (short := pool.used - sum(pool.segments)) > 0:
            pool.segments.append(short)

    def recorder(self, graph: Graph) -> AbstractContextManager[Any]:
        """Around what is captured."""
        return nullcontext()

    @contextmanager
    def _stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    @contextmanager
    def _graph(self, graph: Graph, pool: tuple[int, int], stream: Stream, capture_error_mode: str) -> Iterator[None]:
        self.say(f"begin pool={pool[1]} mode={capture_error_mode}")
        assert stream is self.the_stream and self.capturing is None
        # As torch: what nobody uses goes back to the device first.
        self.cached = 0
        if self.recording == pool:
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        graph.pool = self.pools[pool]
        graph.pool.users, graph.pool.used = graph.pool.users + 1, 0
        self.current, self.capturing, self.recording = stream, graph, pool
        try:
            with self.recorder(graph):
                yield
        finally:
            # As torch: where ending the capture raises, the stream stays the current one.
            graph.capture_end()

    def _end_recording(self, index: int, pool: tuple[int, int]) -> None:
        if self.recording != pool:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.recording = None

    def _release(self, index: int, pool: tuple[int, int]) -> None:
        assert self.pools[pool].users > 1
        self.pools[pool].users -= 1

    def work(
        self, nbytes: int = 0, raises: BaseException | None = None, invalidates: bool = False, warm: bool = False
    ) -> Any:
        """Work that takes ``nbytes``, and ends as told: while captured, or with ``warm`` whenever it runs."""

        def run() -> None:
            self.say("work")
            self.collecting.append(gc.isenabled())
            self.take(nbytes)
            if raises and (warm or self.capturing):
                self.invalid = invalidates
                raise raises

        return run


def backend_of(torch: Any, **arguments: Any) -> TorchGraphs:
    return TorchGraphs(torch, SimpleNamespace(index=0), torch.the_stream, **arguments)
