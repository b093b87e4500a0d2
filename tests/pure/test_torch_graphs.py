"""The graph backend of torch-driven devices on a recording double of torch's graph calls: what it asks for, in which
order, and how it leaves the device. What a device does is in ``tests/device``."""

from __future__ import annotations

import gc
import weakref

import pytest

from platforms.contract import DeviceError
from platforms.torch_graphs import _ABANDONED
from tests.torch_double import INVALID, MIB, FakeTorch, Graph, OutOfMemory, backend_of, host_read


def test_work_runs_once_is_recorded_and_is_launched_once_all_on_the_runtime_s_stream():
    torch = FakeTorch()
    backend = backend_of(torch)
    pool = backend.new_pool()
    graph = backend.capture(torch.work(), pool)
    begin = "begin pool=1 mode=thread_local"
    assert torch.said == ["pool 1", "work", "synchronize", begin, "work", "end", "replay", "synchronize"]
    assert torch.on == [torch.the_stream] * len(torch.said)
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


def test_what_is_taken_when_work_first_runs_is_not_the_graph_s():
    torch = FakeTorch()
    backend, inner = backend_of(torch), torch.work(8 * MIB)

    def work():
        if not torch.capturing:
            torch.driver += MIB
            torch.take(64 * MIB)
        inner()

    assert backend.capture(work, backend.new_pool()).nbytes == 8 * MIB and torch.driver == MIB


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
    assert collected == 1 and torch.collecting == [True, False] * 4 and gc.isenabled()


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


@pytest.mark.parametrize("warm", [False, True])
def test_H_GRF_04_out_of_memory_says_what_to_change_and_smaller_sizes_still_fit(warm):
    torch = FakeTorch()
    backend = backend_of(torch)
    pool = backend.new_pool()
    error = OutOfMemory("CUDA out of memory. Tried to allocate 96.00 MiB")
    with pytest.raises(DeviceError, match=r"OutOfMemory: CUDA out of memory. Tried to allocate 96.00 MiB") as caught:
        backend.capture(torch.work(0, error, warm=warm), pool)
    assert "--gpu-memory-utilization" in str(caught.value) and "graph_safe" not in str(caught.value)
    assert any(said.startswith("begin") for said in torch.said) is not warm
    assert pool.memory.use_count() == 1
    backend.capture(torch.work(MIB), pool).replay()


def test_work_that_fails_before_it_is_recorded_leaves_nothing_capturing():
    torch = FakeTorch(leaves_recording=True)
    backend = backend_of(torch)
    pool = backend.new_pool()
    first = backend.capture(torch.work(8 * MIB), pool)
    memory, abandoned = pool.memory, len(_ABANDONED)
    torch.said.clear()
    with pytest.raises(DeviceError, match=r"^ValueError: no such tile \(in run, .*nothing was being rec.*--kernel"):
        backend.capture(torch.work(raises=ValueError("no such tile"), warm=True), pool)
    assert torch.said == ["work", "reset", "synchronize"]
    assert torch.current is torch.capturing is torch.recording is None
    assert pool.memory is memory and memory.use_count() == 2 and len(_ABANDONED) == abandoned
    first.replay()
    backend.capture(torch.work(MIB), pool).replay()


def test_a_device_lost_before_anything_is_recorded_says_so():
    torch = FakeTorch()
    backend = backend_of(torch)
    pool = backend.new_pool()

    def lost():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    torch.the_stream.synchronize = lost
    with pytest.raises(DeviceError, match=r"illegal memory access.*did not recover from it.*: start again"):
        backend.capture(torch.work(), pool)
    assert torch.said == ["pool 1", "work", "reset"]


@pytest.mark.parametrize("warm", [False, True])
def test_what_failed_holds_nothing_though_somebody_holds_the_error(warm):
    torch = FakeTorch()
    backend = backend_of(torch)

    class Tensor:
        pass

    made = []

    def work():
        tensor = Tensor()
        made.append(weakref.ref(tensor))
        if warm or torch.capturing:
            raise host_read()

    gc.disable()
    try:
        with pytest.raises(DeviceError) as caught:
            backend.capture(work, backend.new_pool())
        assert not any(found() for found in made) and len(made) == (1 if warm else 2)
        assert isinstance(caught.value.__cause__, Exception)
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
    pool, wait = backend.new_pool(), torch.the_stream.synchronize
    torch.fails_at_launch = True

    def lost():
        wait()
        if "replay" in torch.said:
            raise RuntimeError("CUDA error: unspecified launch failure")

    torch.the_stream.synchronize = lost
    with pytest.raises(DeviceError, match=r"illegal memory.*unspecified launch failure.*: start again"):
        backend.capture(torch.work(), pool)


@pytest.mark.parametrize("warm", [False, True])
def test_an_interrupt_is_no_error_of_the_device(warm):
    torch = FakeTorch()
    backend = backend_of(torch)
    with pytest.raises(KeyboardInterrupt):
        backend.capture(torch.work(raises=KeyboardInterrupt(), warm=warm), backend.new_pool())
    assert torch.capturing is None and gc.isenabled()
