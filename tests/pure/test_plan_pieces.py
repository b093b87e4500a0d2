"""Which pieces a plan has, who makes their code, and for which sizes of steps."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.compile.cut import cut
from engine.errors import UserError
from engine.fusion import RULES, all_ops
from engine.plan import Plan, Tables
from engine.plan.ranges import with_fixed
from engine.plan_values import TokenRange
from platforms.contract import FusionOffer, Kernel, Setting, Verdict, always
from tests.described_plans import described, own_rules
from tests.described_plans import plan as plan_of
from tests.model_configs import LLAMA, MODELS, MOE
from tests.profiles import DEVICE, MODEL, ROPE_ROW, plan

YES = Verdict(True, "a backend")
ATTENTION = Kernel("attention", "paged", "nowhere:paged")
ABLE = Tables((ATTENTION, ROPE_ROW), (FusionOffer("fuse_rope_kvcache", always("y")),), compiler=YES, graphs=YES)
OPS = all_ops((*RULES, *own_rules("cpu")))
HOPPER, HOST = described("cuda", "sm_90"), described("cpu", "x86-64-v3")


def forms(found: Plan) -> dict[str, tuple[int, int, str]]:
    return {row.name: (row.count, row.calls, row.generator) for row in found.ranges[0].pieces}


@pytest.mark.parametrize("layers", [1, 2, 30, 80])
def test_the_number_of_forms_does_not_depend_on_depth(layers):
    found = forms(plan(ABLE, model=replace(MODEL, num_layers=layers)))
    expected = {"first": 1, "middle": layers - 1, "last": 1}
    assert {name: count for name, (count, _, _) in found.items()} == {n: c for n, c in expected.items() if c}


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_forms_are_those_of_the_cut(model):
    for profile in (HOPPER, HOST):
        found = plan_of(profile, model, "-O2")
        assert found.between == tuple(sorted(set(found.between))) and found.between
        for one in found.ranges:
            pieces = [row for row in cut(one.program, found.between, OPS) if row.kind == "piece"]
            alike = {row.structure: [p for p in pieces if p.structure == row.structure] for row in pieces}
            assert [(len(of), len(of[0].calls)) for of in alike.values()] == [(r.count, r.calls) for r in one.pieces]
            assert len({row.name for row in one.pieces}) == len(one.pieces) and all(row.reason for row in one.pieces)


def test_layers_of_two_kinds_are_numbered():
    model = replace(MOE, num_layers=6, moe=replace(MOE.moe, dense_layers=2))
    counts = {name: count for name, (count, _, _) in forms(plan_of(HOPPER, model)).items()}
    assert counts == {"first": 1, "middle 1": 2, "middle 2": 3, "last": 1}


def test_one_piece_is_the_whole():
    assert list(forms(plan(ABLE, compilation__splitting_ops=()))) == ["whole"]
    assert plan(ABLE, compilation__splitting_ops=()).between == ()


@pytest.mark.parametrize("words", ["-O0", "--enforce-eager", "-cc.mode=1", "-cc.mode=2"])
def test_other_modes_cut_nothing(words):
    found = plan_of(HOPPER, LLAMA, words)
    assert found.between == () and all(one.pieces == () for one in found.ranges)


ALL = tuple(Kernel(name, "fast", "nowhere:fast") for name in OPS if name not in ("moe",))


def test_a_piece_of_kernels_alone_is_given_to_no_generator():
    found = plan(Tables(ALL, compiler=YES, graphs=YES), compilation__custom_ops=("all",))
    assert {row.generator for row in found.ranges[0].pieces} == {"native"}
    assert {row.reason for row in found.ranges[0].pieces} == {"every call is a kernel of its own"}
    none = plan(Tables(ALL, compiler=YES, graphs=YES), compilation__custom_ops=("none",))
    assert {row.generator for row in none.ranges[0].pieces} == {"inductor"}


def test_what_writes_or_waits_for_ranks_stays_apart():
    piece = plan_of(HOPPER, LLAMA, "-O1", "-tp", "2", "--kernel", "kv_write=reference").ranges[0].pieces[1]
    assert piece.generator == "inductor" and "kv_write" in piece.reason and "all_reduce" in piece.reason
    assert "stay apart" in piece.reason
    alone = tuple(row for row in ALL if row.op != "kv_write")
    found = plan(Tables(alone, compiler=YES, graphs=YES), compilation__custom_ops=("all",), optimization_level=1)
    assert {row.generator for row in found.ranges[0].pieces} == {"native"}
    assert "kv_write stays apart" in found.ranges[0].pieces[0].reason


def test_a_backend_that_generates_nothing_leaves_calls_as_they_are():
    own = replace(ABLE, settings=lambda *_: (Setting("compilation.backend", "toy", "its own"),))
    for found in (plan(own), plan(ABLE, compilation__backend="eager")):
        assert {row.generator for row in found.ranges[0].pieces} == {"native"}
        assert all("as written: backend" in row.reason for row in found.ranges[0].pieces)


def test_generators_are_part_of_the_fingerprint_and_of_what_machines_get():
    one, other = plan(ABLE), plan(ABLE, compilation__backend="eager")
    assert one.hash != other.hash
    body = json.loads(json.dumps(one.to_json()))
    assert body["between"] == ["attention"] and body["ranges"][0]["start"] == 1
    row = one.ranges[0].pieces[0]
    assert body["ranges"][0]["pieces"][0] == {name: getattr(row, name) for name in type(row).__slots__}


# Compiled sizes.
def spans(found: Plan) -> list[tuple[int, int]]:
    return [(one.start, one.end) for one in found.ranges]


def test_a_compiled_size_is_a_range_of_its_own():
    found = plan(ABLE, compilation__compile_sizes=(8, 1, 9, 2048))
    assert spans(found) == [(1, 1), (2, 7), (8, 8), (9, 9), (10, 2047), (2048, 2048)]
    assert len({id(one.program) for one in found.ranges}) == 1 and all(one.pieces for one in found.ranges)
    assert found["compilation.compile_ranges_endpoints"] == [2048]
    assert found["compilation.compile_sizes"] == (8, 1, 9, 2048)


def test_the_word_for_captured_sizes_stands_for_them():
    found = plan(ABLE, compilation__compile_sizes=("capture_sizes", 7), compilation__capture_sizes=(4, 7))
    assert spans(found) == [(1, 3), (4, 4), (5, 6), (7, 7), (8, 2048)]
    without = plan(ABLE, compilation__compile_sizes=("capture_sizes",), compilation__graph_mode="NONE")
    assert spans(without) == [(1, 2048)]


@pytest.mark.parametrize("values", [{"mode": "NONE"}, {"backend": "eager"}, {"mode": "STOCK_TORCH_COMPILE"}])
def test_without_generated_code_a_compiled_size_has_no_effect(values):
    asked = {f"compilation__{name}": value for name, value in values.items()}
    found = plan(ABLE, compilation__compile_sizes=(8,), **asked)
    assert (8, 8) not in spans(found)
    assert any("compile_sizes=8 (command line) has no effect" in line for line in found.warnings)


@settings(max_examples=100, deadline=None)
@given(sizes=st.sets(st.integers(1, 30)), ends=st.sets(st.integers(1, 30), min_size=1))
def test_ranges_cover_every_size_once(sizes, ends):
    program = plan(ABLE).program
    plain = [TokenRange(low + 1, high, program, {"rule": high}) for low, high in pairwise([0, *sorted(ends)])]
    found = with_fixed(plain, sizes)
    assert [size for one in found for size in range(one.start, one.end + 1)] == list(range(1, max(ends) + 1))
    assert {one.start for one in found if one.start == one.end} >= {size for size in sizes if size <= max(ends)}
    for one in found:
        (of,) = {row.end for row in plain if row.start <= one.start and one.end <= row.end}
        assert one.matched == {"rule": of}


def test_a_size_that_padding_changes_is_a_warning_or_a_contradiction():
    found = plan(ABLE, compilation__compile_sizes=(3,))
    assert any("no step has 3 tokens" in line for line in found.warnings)
    with pytest.raises(UserError, match=r"compile_sizes=3 .* and --capture-sizes=2,4 .* contradict"):
        plan(ABLE, compilation__compile_sizes=(3,), compilation__capture_sizes=(2, 4))
    able = {"compilation__compile_sizes": (3,), "compilation__capture_sizes": (2, 4)}
    assert (3, 3) in spans(plan(ABLE, **able, compilation__graph_mode="FULL_DECODE_ONLY"))


# Backends.
@pytest.mark.parametrize("mode", ["STOCK_TORCH_COMPILE", "DYNAMO_TRACE_ONCE"])
def test_modes_of_torch_say_what_they_do_and_are_refused_without_a_generator(mode):
    found = plan_of(HOST, LLAMA, f"-cc.mode={mode}")
    assert "torch.compile" in found.decisions["compilation.mode"].reason
    assert (found["compilation.backend"], found.decisions["compilation.backend"].origin) == ("inductor", "derived")
    assert all(not row.eligible and mode in row.reason for row in found.fusions if row.rule == "fuse_rope_kvcache")
    why = {"features.compile.inductor": "no g++"}
    bare = replace(HOST, features=HOST.features - {"compile.inductor"}, evidence=why)
    with pytest.raises(UserError, match=rf"mode={mode} .*compile.inductor absent: no g\+\+"):
        plan_of(bare, LLAMA, f"-cc.mode={mode}")
    assert plan_of(bare, LLAMA, f"-cc.mode={mode}", "-cc.backend=eager")["compilation.mode"] == mode
    with pytest.raises(UserError, match="native makes pieces"):
        plan_of(HOST, LLAMA, f"-cc.mode={mode}", "-cc.backend=native")


def test_pieces_need_the_backend_that_is_asked_for():
    bare = replace(HOST, features=HOST.features - {"compile.inductor"})
    assert plan_of(bare, LLAMA)["compilation.mode"] == "PIECEWISE"
    with pytest.raises(UserError, match=r"backend=inductor .*compile.inductor absent"):
        plan_of(bare, LLAMA, "-cc.backend=inductor")
    neither = replace(HOPPER, features=HOPPER.features - {"compile.inductor"})
    row = plan_of(neither, LLAMA).decisions["compilation.mode"]
    assert row.value == "NONE" and "compile.inductor absent" in row.reason
    eager = plan_of(neither, LLAMA, "-cc.backend=eager")
    assert (eager["compilation.mode"], eager["compilation.graph_mode"]) == ("PIECEWISE", "FULL_AND_PIECEWISE")


def test_a_platform_with_a_compiler_of_its_own_needs_no_setting():
    able = replace(DEVICE, features={*DEVICE.features, "compile.native", "graph.capture"})
    found = plan(Tables((ATTENTION,)), able)
    assert (found["compilation.backend"], found["compilation.graph_mode"]) == ("native", "FULL_AND_PIECEWISE")


# Where things are written.
@pytest.mark.parametrize("words", ["--cache-dir=a", "-cc.cache_dir=a", "-cc.debug_dump_path=a"])
@pytest.mark.parametrize("level", ["-O0", "-O2"])
def test_H_CCH_05_a_folder_changes_no_fingerprint(words, level):
    plain, found = plan_of(HOPPER, LLAMA, level), plan_of(HOPPER, LLAMA, level, words)
    assert plain.hash == found.hash
    key = "compilation.debug_dump_path" if "dump" in words else "compilation.cache_dir"
    assert (found[key], found.decisions[key].origin) == ("a", "command line")
    idle = level == "-O0" and "dump" not in words
    assert [line for line in found.warnings if "has no effect" in line] == (
        ["--cache-dir=a (command line) has no effect: nothing is compiled."] if idle else []
    )
