"""The graph backend of torch-driven devices on a recording double of torch's graph calls: what it asks for, in which
order, and how it leaves the device. What a device does is in ``tests/device``."""

from __future__ import annotations

import gc
import weakref
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from platforms.contract import DeviceError
from platforms.torch_graphs import _ABANDONED, TorchGraphs

GIB, MIB = 1 << 30, 1 << 20
INVALID = "CUDA error: operation failed due to a previous error during capture"


class OutOfMemory(RuntimeError):
    pass


class Stream:
    cuda_stream = 7

    def __init__(self, torch):
        self.torch = torch

    def synchronize(self):
        assert self.torch.capturing is None, "a capturing stream cannot be waited for"
        self.torch.say("synchronize")


class MemPool:
    """``segments``: sizes of what it took of the device; ``used``: bytes of them in use by the capture under way."""

    def __init__(self, torch):
        self.torch, self.id = torch, (0, len(torch.pools) + 1)
        self.users, self.segments, self.used = 1, [], 0
        torch.pools[self.id] = self
        torch.say(f"pool {self.id[1]}")

    def use_count(self):
        return self.users

    def snapshot(self):
        return [{"total_size": size} for size in self.segments]


class Graph:
    def __init__(self, torch):
        self.torch, self.pool, self.ended, self.queued = torch, None, False, []

    def capture_end(self):
        torch, self.torch.capturing = self.torch, None
        torch.say("end")
        if torch.invalid:
            torch.invalid = False
            if not torch.leaves_recording:
                torch.recording = None
            raise RuntimeError(f"{INVALID}\nmore")
        torch.recording, self.ended = None, True

    def replay(self):
        assert self.ended and self.torch.current is self.torch.the_stream
        self.torch.say("replay")
        if self.torch.fails_at_launch:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        self.torch.driver += self.torch.upload
        self.torch.upload = 0

    def reset(self):
        self.torch.say("reset")
        if self.pool is not None and (self.ended or self.torch.reset_releases):
            self.pool.users -= 1
            self.pool = None
        self.ended = False

    def __del__(self):
        if self.ended:
            self.reset()


class FakeTorch(SimpleNamespace):
    """``leaves_recording``, ``reset_releases``: how releases of torch differ after a capture that failed. ``upload``:
    bytes that the driver takes at the next first launch."""

    def __init__(self, leaves_recording=False, reset_releases=False):
        super().__init__(said=[], pools={}, capturing=None, recording=None, current=None, driver=0, upload=0)
        self.leaves_recording, self.reset_releases = leaves_recording, reset_releases
        self.invalid = self.fails_at_launch = False
        self.collecting = []
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

    def say(self, what):
        self.said.append(what)

    def reserved(self):
        return sum(sum(pool.segments) for pool in self.pools.values())

    @contextmanager
    def _stream(self, stream):
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    @contextmanager
    def _graph(self, graph, pool, stream, capture_error_mode):
        self.say(f"begin pool={pool[1]} mode={capture_error_mode}")
        assert stream is self.the_stream
        if self.recording == pool:
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        graph.pool = self.pools[pool]
        graph.pool.users, graph.pool.used = graph.pool.users + 1, 0
        self.current, self.capturing, self.recording = stream, graph, pool
        try:
            yield
        finally:
            # As torch: where ending the capture raises, the stream stays the current one.
            graph.capture_end()

    def _end_recording(self, index, pool):
        if self.recording != pool:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.recording = None

    def _release(self, index, pool):
        assert self.pools[pool].users > 1
        self.pools[pool].users -= 1

    def work(self, nbytes=0, raises=None, invalidates=False):
        """Work that takes ``nbytes``, and ends as told."""

        def run():
            self.say("work")
            self.collecting.append(gc.isenabled())
            assert self.current is self.the_stream
            pool = self.pools[self.capturing.pool.id]
            pool.used += nbytes
            if (short := pool.used - sum(pool.segments)) > 0:
                pool.segments.append(short)
            self.invalid = invalidates
            if raises:
                raise raises

        return run


def backend_of(torch, **arguments):
    return TorchGraphs(torch, SimpleNamespace(index=0), torch.the_stream, **arguments)


def test_a_capture_runs_on_the_runtime_s_stream_and_is_launched_once():
    torch = FakeTorch()
    backend = backend_of(torch)
    pool = backend.new_pool()
    graph = backend.capture(torch.work(), pool)
    begin = "begin pool=1 mode=thread_local"
    assert torch.said == ["pool 1", "synchronize", begin, "work", "end", "replay", "synchronize"]
    assert graph.nbytes == 0
    assert torch.current is None, "the caller's stream is current again"


def test_which_calls_end_a_capture_is_an_argument():
    torch = FakeTorch()
    backend = backend_of(torch, capture_error_mode="relaxed")
    backend.capture(torch.work(), backend.new_pool())
    assert "begin pool=1 mode=relaxed" in torch.said


def test_one_pool_serves_all_captures_and_later_ones_cost_nothing():
    torch = FakeTorch()
    backend = backend_of(torch)
    pool = backend.new_pool()
    sizes = [backend.capture(torch.work(nbytes), pool).nbytes for nbytes in (64 * MIB, 32 * MIB, 65 * MIB)]
    assert sizes == [64 * MIB, 0, MIB]
    assert [said for said in torch.said if said.startswith(("pool", "begin"))] == [
        "pool 1",
        *["begin pool=1 mode=thread_local"] * 3,
    ]


@pytest.mark.parametrize(("shared", "driver"), [(False, 3 * MIB), (True, 0)])
def test_what_the_driver_takes_at_the_first_launch_is_counted_where_it_can_be_told(shared, driver):
    torch = FakeTorch()
    torch.upload = 3 * MIB
    backend = backend_of(torch, shared_memory=shared)
    assert backend.capture(torch.work(8 * MIB), backend.new_pool()).nbytes == 8 * MIB + driver


def test_no_garbage_is_collected_in_a_capture_and_once_before_all():
    torch = FakeTorch()
    backend = backend_of(torch)
    runs = []

    def count(phase, details):
        runs.append(phase)

    gc.callbacks.append(count)
    try:
        pool = backend.new_pool()
        collected = runs.count("start")
        runs.clear()
        for _ in range(3):
            backend.capture(torch.work(), pool)
        with pytest.raises(DeviceError):
            backend.capture(torch.work(raises=ValueError("no")), pool)
    finally:
        gc.callbacks.remove(count)
    assert collected == 1 and torch.collecting == [False] * 4 and gc.isenabled()


def test_a_caller_that_collects_no_garbage_finds_it_so():
    torch = FakeTorch()
    backend = backend_of(torch)
    gc.disable()
    try:
        backend.capture(torch.work(), backend.new_pool())
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_replay_goes_to_the_runtime_s_stream():
    torch = FakeTorch()
    backend = backend_of(torch)
    graph = backend.capture(torch.work(), backend.new_pool())
    torch.said.clear()
    graph.replay()
    with torch.cuda.stream(torch.the_stream):
        graph.replay()
    assert torch.said == ["replay", "replay"] and torch.current is None


def test_closing_waits_resets_and_lets_go_and_may_be_said_twice():
    torch = FakeTorch()
    backend = backend_of(torch)
    pool, work = backend.new_pool(), torch.work(MIB)
    graph = backend.capture(work, pool)
    assert pool.memory.use_count() == 2
    held, memory = weakref.ref(work), pool.memory
    del work
    assert held() is not None, "the buffers of the work are where the graph finds them"
    torch.said.clear()
    graph.close()
    graph.close()
    assert torch.said == ["synchronize", "reset"]
    assert held() is None and memory.use_count() == 1


def host_read():
    return RuntimeError("CUDA error: operation not permitted when stream is capturing\nCompile with DSA")


@pytest.mark.parametrize("leaves_recording", [False, True])
@pytest.mark.parametrize("reset_releases", [False, True])
def test_H_GRF_06_a_refused_capture_names_the_cause_and_leaves_the_pool_usable(leaves_recording, reset_releases):
    torch = FakeTorch(leaves_recording, reset_releases)
    backend = backend_of(torch)
    pool = backend.new_pool()
    first = backend.capture(torch.work(8 * MIB), pool)
    memory = pool.memory
    with pytest.raises(DeviceError) as caught:
        backend.capture(torch.work(MIB, host_read(), invalidates=True), pool)
    said = str(caught.value)
    assert said.startswith("RuntimeError: CUDA error: operation not permitted when stream is capturing (in run, ")
    assert INVALID not in said and "\n" not in said and "graph_safe=False" in said
    assert torch.current is torch.capturing is torch.recording is None
    assert memory.use_count() == 2, "its own, and the first graph's"
    assert (pool.memory is memory) is not leaves_recording, "an allocator that records on refuses the pool"
    first.replay()
    later = backend.capture(torch.work(MIB), pool)
    later.replay()
    first.close()
    assert memory.use_count() == (2 if pool.memory is memory else 1)


def test_an_allocator_that_records_on_finds_its_graph():
    torch = FakeTorch(leaves_recording=True)
    backend, before = backend_of(torch), len(_ABANDONED)
    with pytest.raises(DeviceError):
        backend.capture(torch.work(0, host_read(), invalidates=True), backend.new_pool())
    assert len(_ABANDONED) == before + 1


def test_H_GRF_04_out_of_memory_says_what_to_change_and_smaller_sizes_still_fit():
    torch = FakeTorch()
    backend = backend_of(torch)
    pool = backend.new_pool()
    with pytest.raises(DeviceError, match=r"OutOfMemory: CUDA out of memory. Tried to allocate 96.00 MiB") as caught:
        backend.capture(torch.work(0, OutOfMemory("CUDA out of memory. Tried to allocate 96.00 MiB")), pool)
    assert "--gpu-memory-utilization" in str(caught.value) and "graph_safe" not in str(caught.value)
    assert pool.memory.use_count() == 1
    backend.capture(torch.work(MIB), pool).replay()


def test_what_failed_holds_nothing_though_somebody_holds_the_error():
    torch = FakeTorch()
    backend = backend_of(torch)

    class Tensor:
        pass

    made = []

    def work():
        tensor = Tensor()
        made.append(weakref.ref(tensor))
        raise host_read()

    gc.disable()
    try:
        with pytest.raises(DeviceError) as caught:
            backend.capture(work, backend.new_pool())
        assert made[0]() is None and isinstance(caught.value.__cause__, Exception)
    finally:
        gc.enable()


def test_notes_of_what_was_raised_are_told():
    torch = FakeTorch()
    backend = backend_of(torch)
    error = ValueError("no such size")
    error.add_note("in linear (wide)")
    with pytest.raises(DeviceError, match=r"ValueError: no such size \(in run, .*\); in linear \(wide\); work in a"):
        backend.capture(torch.work(raises=error), backend.new_pool())


def test_work_that_left_its_stream_capturing_is_ended():
    torch = FakeTorch()
    backend = backend_of(torch)
    end, left = Graph.capture_end, []

    def elsewhere(graph):
        if not left:
            left.append(graph)
            raise RuntimeError("Capture must end on the same stream it began on.")
        end(graph)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Graph, "capture_end", elsewhere)
        with pytest.raises(DeviceError, match="must end on the same stream"):
            backend.capture(torch.work(), backend.new_pool())
    assert torch.capturing is torch.recording is torch.current is None


def test_a_launch_that_fails_is_a_failed_capture():
    torch = FakeTorch()
    backend = backend_of(torch)
    pool = backend.new_pool()
    torch.fails_at_launch = True
    with pytest.raises(DeviceError, match="illegal memory access"):
        backend.capture(torch.work(), pool)
    gc.collect()
    assert pool.memory.use_count() == 1


def test_a_device_that_does_not_recover_says_so():
    torch = FakeTorch()
    backend = backend_of(torch)
    pool = backend.new_pool()
    torch.fails_at_launch = True

    def lost():
        raise RuntimeError("CUDA error: unspecified launch failure")

    torch.the_stream.synchronize = lost
    with pytest.raises(DeviceError, match=r"unspecified launch failure.*did not recover from it.*: start again"):
        backend.capture(torch.work(), pool)


def test_an_interrupt_is_no_error_of_the_device():
    torch = FakeTorch()
    backend = backend_of(torch)
    with pytest.raises(KeyboardInterrupt):
        backend.capture(torch.work(raises=KeyboardInterrupt()), backend.new_pool())
    assert torch.capturing is None and gc.isenabled()
