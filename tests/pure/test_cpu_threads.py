"""Threads of the host's workers: topologies, quotas and variables that are not here."""

from __future__ import annotations

import pytest

from platforms.contract import DeviceError
from platforms.cpu.threads import MANY, read_threads, threads_for, written
from platforms.cpu.topology import Topology, from_rows
from platforms.cpu.variables import read_variables
from tests.fake_machines import machine

BIND, RESERVED = "ENGINE_CPU_OMP_THREADS_BIND", "ENGINE_CPU_NUM_OF_RESERVED_CPU"
NODES = "CPU_VISIBLE_MEMORY_NODES"


def topology(cores: int, siblings: int = 1, nodes: int = 1) -> Topology:
    """CPU ``c + s * cores`` is thread ``s`` of core ``c``; the nodes divide the cores in order."""
    return from_rows(
        {"cpu": core + thread * cores, "core": core, "socket": 0, "node": core * nodes // cores}
        for thread in range(siblings)
        for core in range(cores)
    )


def ask(path, found: Topology, environ=None, rank: int = 0, ranks: int = 1, quota: str = ""):
    files = {"sys/fs/cgroup/cpu.max": quota} if quota else {}
    box = machine(path, files, cpus=len(found.cpus))
    return threads_for(box, found, read_variables(environ or {}), rank, ranks)


def test_C71_auto_takes_one_thread_of_every_core(tmp_path):
    found = ask(tmp_path, topology(4, siblings=2))
    assert (found.cpus, found.count, found.nodes) == ((0, 1, 2, 3), 4, (0,))
    assert "8 CPUs in the affinity mask" in found.reasons and "one thread for each of 4 physical cores" in found.reasons


@pytest.mark.parametrize("text", ["auto", " AUTO ", ""])
def test_C71_auto_may_be_written(tmp_path, text):
    assert ask(tmp_path, topology(4), {BIND: text}).cpus == (0, 1, 2, 3)


def test_C71_each_rank_takes_a_memory_node_of_its_own(tmp_path):
    found = [ask(tmp_path, topology(8, siblings=2, nodes=2), rank=rank, ranks=2) for rank in range(2)]
    assert [one.cpus for one in found] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert [one.nodes for one in found] == [(0,), (1,)]
    assert ask(tmp_path, topology(8, siblings=2, nodes=2)).nodes == (0, 1)


@pytest.mark.parametrize(
    ("cores", "nodes", "ranks", "expected"),
    [
        (4, 1, 2, ["0-1", "2-3"]),
        (2, 1, 2, ["0", "1"]),
        (2, 1, 3, ["0", "0", "1"]),
        (8, 2, 4, ["0-1", "2-3", "4-5", "6-7"]),
        (6, 2, 3, ["0", "1-2", "3-5"]),
        (8, 4, 2, ["0-1", "2-3"]),
        (5, 1, 2, ["0-1", "2-4"]),
    ],
)
def test_C71_ranks_and_nodes_in_any_number(tmp_path, cores, nodes, ranks, expected):
    found = [ask(tmp_path, topology(cores, 2, nodes), rank=rank, ranks=ranks) for rank in range(ranks)]
    assert [written(one.cpus or ()) for one in found] == expected
    assert all(one.count == len(one.cpus or ()) and len(one.nodes) == 1 for one in found)


def test_C71_damaged_sibling_lists_do_not_lose_a_core_and_no_cpu_at_all_is_one_thread(tmp_path):
    assert ask(tmp_path, from_rows([{"cpu": 0, "core": "-"}, {"cpu": 1, "core": None}])).count == 2
    none = ask(tmp_path, Topology(()))
    assert (none.cpus, none.count, none.nodes) == (None, 1, (0,))


def test_C72_lists_belong_to_ranks_and_keep_their_order(tmp_path):
    found = [ask(tmp_path, topology(8, nodes=2), {BIND: "0-3|7, 4-5"}, rank, 2) for rank in range(2)]
    assert [one.cpus for one in found] == [(0, 1, 2, 3), (7, 4, 5)]
    assert [one.nodes for one in found] == [(0,), (1,)]
    assert any(f"{BIND}=0-3|7, 4-5: bound to CPUs 4-5,7" in reason for reason in found[1].reasons)


def test_C72_lists_may_name_both_threads_of_a_core_and_a_cpu_twice(tmp_path):
    found = ask(tmp_path, topology(2, siblings=2), {BIND: "0,2,0-1"})
    assert (found.cpus, found.count) == ((0, 2, 1), 3)


@pytest.mark.parametrize(("text", "ranks"), [("0-3|4-7", 1), ("0-3", 2), ("0|1|2", 2)])
def test_C72_a_wrong_number_of_lists_is_an_error(tmp_path, text, ranks):
    advice = "give one list for" if ranks > 1 else "serving takes one, as in 0-3,8"
    with pytest.raises(DeviceError, match=rf"{BIND}=.* found \d lists? of CPUs for {ranks} ranks?; {advice}"):
        ask(tmp_path, topology(8), {BIND: text}, ranks=ranks)


@pytest.mark.parametrize("text", ["0-8", "8", "0,9", "0-999999999", "0-3,700000000-999999999"])
def test_C72_cpus_outside_the_mask_are_an_error(tmp_path, text):
    with pytest.raises(DeviceError, match=rf"{BIND}={text}: CPU \d+ of rank 0 is not among .*\(0-7\); name others"):
        ask(tmp_path, topology(8), {BIND: text})
    with pytest.raises(DeviceError, match="of rank 1"):
        ask(tmp_path, topology(8), {BIND: f"0|{text}"}, ranks=2)


@pytest.mark.parametrize(
    "text",
    ["all", "0-", "-3", "0..3", "0 1", "0,,1", "|", "0|", "3-0", "0-3;4", "1.5", "²", "0x1", "0-3|auto", "\x1b[2J"],
)
def test_C72_what_is_no_list_says_what_to_write(tmp_path, text):
    with pytest.raises(DeviceError, match="give auto, nobind, or a list") as error:
        ask(tmp_path, topology(8), {BIND: text})
    assert str(error.value).startswith(f"{BIND}=") and "\x1b" not in str(error.value)


def test_C73_nobind_leaves_the_affinity_and_still_counts_cores_and_quota(tmp_path):
    free = ask(tmp_path, topology(4, siblings=2, nodes=2), {BIND: "nobind"})
    assert (free.cpus, free.count, free.nodes) == (None, 4, (0, 1))
    assert f"{BIND}=nobind: the system places the threads" in free.reasons
    assert ask(tmp_path, topology(4), {BIND: "nobind"}, quota="250000 100000").count == 2
    assert ask(tmp_path, topology(4, nodes=2), {BIND: "nobind"}, rank=1, ranks=2).nodes == (1,)


@pytest.mark.parametrize(("cores", "expected"), [(1, 1), (2, 2), (MANY - 1, MANY - 1), (MANY, MANY - 1), (64, 63)])
def test_C74_one_is_reserved_by_default_where_there_are_many(tmp_path, cores, expected):
    found = ask(tmp_path, topology(cores, siblings=2))
    assert found.count == expected == len(found.cpus or ())
    assert any("reserved" in reason for reason in found.reasons)


def test_C74_reserved_cpus_are_left_out_from_the_end_the_last_rank_first(tmp_path):
    assert ask(tmp_path, topology(4), {RESERVED: "1"}).cpus == (0, 1, 2)
    assert ask(tmp_path, topology(64), {RESERVED: "0"}).count == 64
    found = [ask(tmp_path, topology(8, nodes=2), {RESERVED: "3"}, rank, 2).cpus for rank in range(2)]
    assert found == [(0, 1, 2), (4, 5)]


def test_C74_reserved_cpus_come_off_the_quota_too(tmp_path):
    assert ask(tmp_path, topology(8), {RESERVED: "1"}, quota="400000 100000").count == 3


@pytest.mark.parametrize("text", ["4", "5", "99999999999999999999999", "-1", "one", "1.5", "0x1", "²"])
def test_C74_what_cannot_be_reserved_is_an_error(tmp_path, text):
    with pytest.raises(DeviceError, match=rf"^{RESERVED}={text[:1]}") as error:
        ask(tmp_path, topology(4), {RESERVED: text})
    assert "reserve at most 3" in str(error.value) or "give 0, 1, 2" in str(error.value)


@pytest.mark.parametrize("bind", ["nobind", "0-3"])
def test_C74_reserving_is_for_auto_alone_and_the_reason_says_so(tmp_path, bind):
    found = ask(tmp_path, topology(4), {BIND: bind, RESERVED: "2"})
    assert found.count == 4 and f"{RESERVED}=2 is for auto alone" in found.reasons


@pytest.mark.parametrize(("text", "nodes", "count"), [("1", (1,), 2), ("0,3", (0, 3), 4), ("1-2", (1, 2), 4)])
def test_C75_only_visible_nodes_are_used(tmp_path, text, nodes, count):
    found = ask(tmp_path, topology(8, siblings=2, nodes=4), {NODES: text})
    assert (found.nodes, found.count) == (nodes, count)
    assert any(reason.startswith(f"{NODES}={text}: ") for reason in found.reasons)


def test_C75_ranks_take_the_visible_nodes_in_turn(tmp_path):
    found = [ask(tmp_path, topology(8, nodes=4), {NODES: "1,3"}, rank, 2) for rank in range(2)]
    assert [one.nodes for one in found] == [(1,), (3,)] and found[1].cpus == (6, 7)


@pytest.mark.parametrize(
    ("text", "said"), [("2", "is of node 2"), ("0-999999999", "is of node 2"), ("x", "no list of")]
)
def test_C75_nodes_that_are_not_here_are_an_error(tmp_path, text, said):
    with pytest.raises(DeviceError, match=rf"^{NODES}={text}: .*{said}.*unset it$"):
        ask(tmp_path, topology(4, nodes=2), {NODES: text})


@pytest.mark.parametrize(
    ("quota", "expected"), [("150000 100000", 1), ("50000 100000", 1), ("250000 100000", 2), ("900000 100000", 4)]
)
def test_H_PLT_05_a_quota_gives_its_whole_cpus_and_the_reason_stays(tmp_path, quota, expected):
    found = ask(tmp_path, topology(4, siblings=2), quota=quota)
    assert found.count == expected
    words = f"quota {quota.replace(' ', '/')} = {int(quota.split()[0]) // 100000} whole CPU"
    assert any(words in reason for reason in found.reasons)
    assert (found.cpus is None) == (expected < 4), "a quota below the cores names none of them"


def test_H_PLT_05_bound_lists_are_cut_to_the_quota_and_ranks_share_it(tmp_path):
    found = ask(tmp_path, topology(8), {BIND: "4-7"}, quota="250000 100000")
    assert (found.cpus, found.count) == ((4, 5), 2)
    shares = [ask(tmp_path, topology(8), rank=rank, ranks=2, quota="500000 100000").count for rank in range(2)]
    assert shares == [2, 2]
    assert ask(tmp_path, topology(8), ranks=4, quota="200000 100000").count == 1


def test_our_names_win_over_those_users_bring_and_empty_ones_are_unset(tmp_path):
    foreign = {"VLLM_CPU_OMP_THREADS_BIND": "0-1", "VLLM_CPU_NUM_OF_RESERVED_CPU": "1"}
    assert ask(tmp_path, topology(4), foreign).cpus == (0, 1)
    assert ask(tmp_path, topology(4), {**foreign, BIND: " "}).cpus == (0, 1)
    both = {**foreign, BIND: "auto"}
    assert ask(tmp_path, topology(4), both).cpus == (0, 1, 2)
    assert read_variables(both).problems == (
        f"{BIND} wins over VLLM_CPU_OMP_THREADS_BIND, which says something else: unset one",
    )
    with pytest.raises(DeviceError, match=r"^VLLM_CPU_OMP_THREADS_BIND=here: "):
        ask(tmp_path, topology(4), {"VLLM_CPU_OMP_THREADS_BIND": "here"})


def test_the_machine_s_own_files_and_variables_are_read(tmp_path):
    files = {
        f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": f"{cpu % 2},{cpu % 2 + 2}" for cpu in range(4)
    }
    files |= {"sys/devices/system/node/node0/cpulist": "0,2", "sys/devices/system/node/node1/cpulist": "1,3"}
    assert read_threads(machine(tmp_path, files, cpus=4)).cpus == (0, 1)
    found = read_threads(machine(tmp_path, files, cpus=4, environ={NODES: "1"}))
    assert (found.cpus, found.nodes) == ((1,), (1,))
    files["sys/fs/cgroup/cpuset.cpus.effective"] = "2-3"
    inside = read_threads(machine(tmp_path, files, cpus=4))
    assert inside.cpus == (2, 3) and inside.reasons[0].startswith("4 CPUs in the affinity mask, 2 of them in /sys/fs")


def test_cpus_are_written_as_the_kernel_writes_them():
    assert [written(cpus) for cpus in ((), (3,), (2, 0, 1), (0, 2, 3, 9))] == ["", "3", "0-2", "0,2-3,9"]
