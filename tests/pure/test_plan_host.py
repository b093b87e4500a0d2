"""What levels and flags come to on a host processor."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.config import collect
from engine.models.blocks import Blocks
from engine.plan import Plan, plan_for
from platforms.cpu.plugin import CpuPlugin
from platforms.cpu.probe import find_generator
from platforms.machine import Machine
from tests.described_plans import TARGETS, chosen, described, plan
from tests.model_configs import LLAMA

HOSTS = [target for name, target in TARGETS if name == "cpu"]
STORED = replace(LLAMA, weight_format="gguf", blocks=Blocks("Q4_1"))
V3 = described("cpu", "x86-64-v3")
FEW, WIDER = list(range(1, 17)), list(range(24, 129, 8))


def captured(found: Plan) -> tuple[str, str, list[int]]:
    return found["compilation.mode"], found["compilation.graph_mode"], list(found["compilation.capture_sizes"])


@pytest.mark.parametrize("target", HOSTS)
@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("-O0", ("NONE", "NONE", [])),
        ("-O1", ("PIECEWISE", "PIECEWISE", FEW + WIDER)),
        ("-O2", ("PIECEWISE", "FULL_AND_PIECEWISE", FEW + WIDER)),
        ("-O3", ("PIECEWISE", "FULL_AND_PIECEWISE", FEW + WIDER)),
        ("--enforce-eager", ("NONE", "NONE", [])),
    ],
)
def test_levels_differ_in_what_runs(target, level, expected):
    """A described host and one that is here are planned for alike."""
    described_plan = plan(described("cpu", target), LLAMA, level)
    assert captured(described_plan) == expected
    here = replace(described("cpu", target), origin="measured")
    assert captured(plan(here, LLAMA, level)) == expected
    assert {row.generator for row in described_plan.ranges[0].pieces} <= {"native"}


@pytest.mark.parametrize(
    ("words", "sizes"),
    [
        ("--max-num-seqs=5", [1, 2, 3, 4, 5]),
        ("--max-num-seqs=300", [*FEW, *range(24, 297, 8), 300]),
        ("--max-num-batched-tokens=64", [*FEW, *range(24, 65, 8)]),
        ("--max-capture-size=3", [1, 2, 3]),
        ("--max-num-seqs=17", [*FEW, 17]),
        ("--max-capture-size=200", [*FEW, *range(24, 201, 8)]),
        ("--capture-sizes=2,16", [2, 16]),
        ("--max-num-seqs=3 -cc.graph_mode=FULL_DECODE_ONLY", [1, 2, 3]),
    ],
)
def test_small_counts_of_tokens_are_captured_one_by_one_and_larger_ones_by_eights(words, sizes):
    found = plan(V3, LLAMA, *words.split())
    assert list(found["compilation.capture_sizes"]) == sizes
    assert found["compilation.max_capture_size"] == sizes[-1]


def test_an_offline_host_captures_as_many_as_it_runs():
    given = collect([], {}).given
    found = plan_for(CpuPlugin(), V3, LLAMA, given, offline=True)
    assert list(found["compilation.capture_sizes"]) == [*FEW, *range(24, 257, 8)]


def test_a_code_generator_takes_plain_calls_and_with_none_norms_and_activations_too():
    found = plan(V3, LLAMA, "-cc.backend=inductor")
    pieces = found.ranges[0].pieces
    assert {(row.generator, row.reason) for row in pieces} == {("native", "every call is a kernel of its own")}
    without = ("-cc.custom_ops+=all", "-cc.custom_ops+=-embedding")
    first, *others = plan(V3, LLAMA, "-cc.backend=inductor", *without).ranges[0].pieces
    assert first.reason == "1 plain call becomes generated code, around 5 calls of kernels"
    assert first.generator == "inductor" and {row.generator for row in others} == {"native"}
    assert found["compilation.custom_ops"] == ["all"] and chosen(found, "rms_norm") != {"reference"}
    handed = plan(V3, LLAMA, "-cc.backend=inductor", "-cc.custom_ops=none")
    assert chosen(handed, "rms_norm") == chosen(handed, "silu_and_mul") == {"reference"}
    assert chosen(handed, "linear") == chosen(handed, "attention") == {"native"}
    (middle,) = [row for row in handed.ranges[0].pieces if row.name == "middle"]
    assert middle.generator == "inductor" and middle.reason.startswith("6 plain calls become generated code")


def machine(environ: dict[str, str], *there: str) -> Machine:
    return Machine(environ=environ, which=lambda name: f"/opt/{name}" if name in there else None)


@pytest.mark.parametrize(
    ("environ", "there", "expected", "said"),
    [
        ({}, ("g++",), True, "/opt/g++"),
        ({}, ("c++", "clang++"), False, "g++, which is not found"),
        ({"CXX": "clang++"}, ("clang++",), True, "/opt/clang++"),
        ({"CXX": "icpx"}, ("g++",), False, "icpx (CXX), which is not found"),
        ({"CXX": ""}, ("g++",), True, "/opt/g++"),
    ],
)
def test_torch_s_generator_needs_the_compiler_that_it_calls(environ, there, expected, said):
    """It takes ``CXX``, else g++, and looks for no other."""
    found, why = find_generator(machine(environ, *there))
    assert found is expected and said in why


def test_features_say_how_they_are_known():
    profile = CpuPlugin(machine({}, "g++")).probe().profiles[0]
    for name in ("compile.native", "graph.capture", "compile.inductor"):
        assert name in profile.features and profile.evidence[f"features.{name}"]
    bare = CpuPlugin(machine({})).probe().profiles[0]
    assert {"compile.native", "graph.capture"} <= bare.features and "compile.inductor" not in bare.features
    assert any("code generator absent" in line for line in CpuPlugin(machine({})).probe().evidence)


@pytest.mark.parametrize("target", HOSTS)
def test_weights_in_blocks_stay_as_they_are_where_a_compiler_is(target):
    found = plan(described("cpu", target), STORED)
    decision = found.decisions["model.quantization"]
    assert decision.value == "gguf"
    assert decision.reason.startswith("GGUF blocks (Q4_1, 5 bits a weight): multiplied as they are by ")
    assert chosen(found, "scaled_block_linear") <= set(decision.reason.partition(" by ")[2].split(", "))
    assert not chosen(found, "linear") and "reference" not in chosen(found, "scaled_block_linear")


def test_weights_in_blocks_are_said_to_be_unpacked_where_none_is():
    bare = replace(V3, features=V3.features - {"kernel.cxx"})
    found = plan(bare, STORED, "-cc.pass_config.fuse_attn_quant=true")
    decision, dense = found.decisions["model.quantization"], plan(bare, LLAMA).decisions["model.quantization"]
    said = f"GGUF blocks (Q4_1, 5 bits a weight): unpacked to {found['model.dtype']} when loaded"
    assert decision.value is None and decision.reason.startswith(f"{said}; ")
    assert "avx2: kernel.cxx absent" in decision.reason and chosen(found, "linear") == {"torch_transposed"}
    assert dense.reason == "the linear layers are stored dense"
    assert any("fuse_attn_quant=true (command line) matched nothing" in row and said in row for row in found.warnings)


def test_another_type_of_activations_than_the_hosts_own_is_served_with_a_warning():
    found = plan(V3, LLAMA, "--dtype=float16")
    assert found["model.dtype"] == "float16" and chosen(found, "linear") == {"widened"}
    (warning,) = found.warnings
    assert warning.startswith("--dtype=float16 (command line) is served, and slower than the platform's own choice: ")
    assert "float32 (of activations: compiled kernels compute in float32" in warning
    for words in ((), ("--dtype=float32",), ("--dtype=auto",)):
        assert not plan(V3, LLAMA, *words).warnings
    amx = plan(described("cpu", "amx"), LLAMA, "--dtype=bfloat16")
    assert chosen(amx, "linear") == {"torch_transposed"}
