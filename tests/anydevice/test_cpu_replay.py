"""Native calls recorded over buffers of an arena, and the team that replays them."""

from __future__ import annotations

import threading

import pytest
import torch

from engine.work import BoundCall, Work
from kernels_cpu.library import library, open_library
from kernels_cpu.native.norm import rms_norm
from kernels_cpu.record import call, empty, native
from platforms.contract import DeviceError
from platforms.cpu.arena import ALIGNMENT, Arena, ArenaRecorder
from platforms.cpu.compilers import KERNELS
from platforms.cpu.native import cache_folder, place_memory
from platforms.cpu.plugin import CpuPlugin
from platforms.cpu.threads import Threads
from tests.fake_machines import machine

NORM = {"eps": 1e-5}
WIDTH = 48


@pytest.fixture(scope="module", autouse=True)
def runtime():
    runtime = CpuPlugin().open(0)
    assert KERNELS in runtime.profile.features, runtime.profile.evidence[f"features.{KERNELS}"]
    return runtime


def norm(source: str, into: str) -> BoundCall:
    return BoundCall("rms_norm", "native", rms_norm, (source, "w"), (into,), NORM)


def copied(source: str) -> BoundCall:
    return BoundCall("copy", "", lambda kept, value: kept.copy_(value), ("out", source), ("out",), mutates=(0,))


def captured(runtime, calls, tokens=5, pool=None):
    given = {"x": torch.randn(tokens, WIDTH), "w": torch.randn(WIDTH), "out": torch.zeros(tokens, WIDTH)}
    backend = runtime.graphs()
    pool = backend.new_pool() if pool is None else pool
    return given, backend.capture(Work(calls, given), pool), pool


def by_hand(x, w, times):
    for _ in range(times):
        x = rms_norm(x, w, **NORM)
    return x


def test_a_replay_gives_what_the_calls_give_bit_for_bit(runtime):
    calls = [norm("x", "a"), norm("a", "b"), norm("b", "c"), copied("c")]
    given, graph, _ = captured(runtime, calls)
    for _ in range(3):
        given["x"].normal_()
        graph.replay()
        assert torch.equal(given["out"], by_hand(given["x"], given["w"], 3))


def test_functions_that_nobody_records_run_between_native_calls(runtime):
    calls = [
        norm("x", "a"),
        BoundCall("double", "", lambda a: a * 2, ("a",), ("b",)),
        norm("b", "c"),
        BoundCall("halves", "", lambda c: c.chunk(2, dim=-1), ("c",), ("d", "e")),
        BoundCall("joined", "", lambda d, e: torch.cat((e, d), -1), ("d", "e"), ("f",)),
        copied("f"),
    ]
    given, graph, _ = captured(runtime, calls)
    for _ in range(2):
        given["x"].normal_()
        graph.replay()
        c = rms_norm(rms_norm(given["x"], given["w"], **NORM) * 2, given["w"], **NORM)
        assert torch.equal(given["out"], torch.cat(c.chunk(2, dim=-1)[::-1], -1))


def test_memory_of_dead_values_is_used_again_and_shared_by_graphs(runtime):
    chain = [norm("x" if at == 0 else f"v{at - 1}", f"v{at}") for at in range(40)]
    given, graph, pool = captured(runtime, [*chain, copied("v39")])
    block = -(-5 * WIDTH * 4 // ALIGNMENT) * ALIGNMENT
    assert graph.nbytes == pool.nbytes == 2 * block, "one that is read and one that is written"
    smaller, second, _ = captured(runtime, [*chain, copied("v39")], tokens=3, pool=pool)
    assert second.nbytes == 0 and pool.nbytes == 2 * block
    for values, one in ((given, graph), (smaller, second), (given, graph)):
        one.replay()
        assert torch.equal(values["out"], by_hand(values["x"], values["w"], 40))


def test_what_is_copied_at_the_end_is_made_where_it_is_copied_to(runtime):
    given, graph, pool = captured(runtime, [norm("x", "a"), copied("a")])
    graph.replay()
    assert pool.nbytes == 0 and torch.equal(given["out"], by_hand(given["x"], given["w"], 1))
    given, graph, pool = captured(
        runtime, [norm("out", "a"), norm("a", "b"), norm("out", "c"), copied("b"), copied("c")]
    )
    before = given["out"].normal_().clone()
    graph.replay()
    assert pool.nbytes and torch.equal(given["out"], by_hand(before, given["w"], 1)), (
        "it was read before it was written"
    )


def backwards(x, w):
    """Makes memory for its results from last to first."""
    second, first = empty(x.shape, x.dtype), empty(x.shape, x.dtype)
    call("engine_add", (x, x, first), (*x.shape, x.stride(0), x.stride(0)))
    call("engine_add", (first, x, second), (*x.shape, x.stride(0), x.stride(0)))
    return first, second


@pytest.mark.parametrize("wanted", ["first", "second", "both"])
def test_results_reach_their_own_buffers_in_whatever_order_a_function_makes_them(runtime, wanted):
    x = torch.randn(5, WIDTH)
    given = {"x": x, "w": x, "of first": torch.zeros_like(x), "of second": torch.zeros_like(x)}
    names = ("first", "second") if wanted == "both" else (wanted,)
    calls = [BoundCall("both", "native", native(backwards), ("x", "w"), ("first", "second"))]
    for name in names:
        kept = f"of {name}"
        calls.append(BoundCall("copy", "", lambda kept, value: kept.copy_(value), (kept, name), (kept,), mutates=(0,)))
    graph = runtime.graphs().capture(Work(calls, given), runtime.graphs().new_pool())
    for _ in range(2):
        x.normal_()
        graph.replay()
        for name in names:
            assert torch.equal(given[f"of {name}"], {"first": x + x, "second": x + x + x}[name])


def test_a_view_keeps_its_memory_until_all_views_are_dead():
    arena = Arena()
    recorder = ArenaRecorder(arena)
    whole = recorder.empty((4, 32), torch.float32)
    recorder.hold([whole])
    left, right = whole.chunk(2, dim=-1)
    recorder.hold([left, right])
    recorder.drop([whole])
    recorder.settle()
    recorder.drop([left])
    recorder.settle()
    assert recorder.empty((4, 32), torch.float32).data_ptr() != whole.data_ptr()
    recorder.drop([right])
    recorder.settle()
    assert recorder.empty((4, 32), torch.float32).data_ptr() == whole.data_ptr()


def test_two_threads_of_python_may_call_kernels_at_once():
    x, w = torch.randn(64, WIDTH), torch.randn(WIDTH)
    expected, found = rms_norm(x, w, **NORM), []

    def work() -> None:
        found.append(all(torch.equal(rms_norm(x, w, **NORM), expected) for _ in range(300)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 4


@pytest.mark.parametrize("members", [1, 2, 3, 5])
def test_results_do_not_depend_on_the_number_of_threads(members, runtime):
    x, w = torch.randn(67, WIDTH), torch.randn(WIDTH)
    expected = rms_norm(x, w, **NORM)

    path = library().path
    try:
        open_library(path, members, None)
        assert all(torch.equal(rms_norm(x, w, **NORM), expected) for _ in range(20))
    finally:
        open_library(path, runtime.profile.limits["threads"], None)


def test_columns_that_lie_apart_are_refused_and_not_copied():
    with pytest.raises(ValueError, match="make the tensor contiguous"):
        rms_norm(torch.randn(WIDTH, 4).t(), torch.randn(WIDTH), **NORM)


def test_a_library_that_does_not_load_says_so(tmp_path):
    (tmp_path / "kernels.so").write_text("nothing")
    with pytest.raises(DeviceError, match="remove"):
        open_library(tmp_path / "kernels.so", 1, None)


def test_the_library_lies_below_the_engines_cache(tmp_path):
    assert cache_folder({"ENGINE_CACHE_ROOT": str(tmp_path)}) == tmp_path / "kernels_cpu"
    assert cache_folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "engine" / "kernels_cpu"


def test_memory_is_asked_for_on_the_nodes_of_bound_threads(tmp_path):
    path = library().path
    one = machine(tmp_path / "one", {"sys/devices/system/node/node0/cpulist": "0-1"})
    two = machine(tmp_path / "two", {f"sys/devices/system/node/node{n}/cpulist": f"{n}" for n in (0, 1)})
    bound = Threads((0,), 1, (0,), ())
    assert place_memory(path, one, bound) == {}, "there is no other node"
    assert place_memory(path, two, Threads(None, 1, (0,), ())) == {}, "threads that are not bound have no node"
    told = place_memory(path, two, bound)["limits.numa_nodes"]
    assert told.startswith("memory comes from node 0")
    assert "refused" in place_memory(path, two, Threads((0,), 1, (60,), ()))["limits.numa_nodes"], "there is none"
