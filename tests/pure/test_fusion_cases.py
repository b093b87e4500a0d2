"""Theme FUS of the handed cases, as far as a plan decides: what is matched, by which row, and what is said about it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.errors import UserError
from engine.explain.text import summary
from engine.fusion import RULES, all_ops
from engine.levels import FUSIONS
from engine.models import build_program
from engine.models.config import ModelConfig
from engine.plan import make
from tests.described_plans import TARGETS, chosen, described, on, plan, report
from tests.model_configs import BLOCK, LLAMA, STATIC

OPS = all_ops(RULES)
SUMMED = [rule for rule in RULES if rule.name == "fuse_allreduce_rms"]


@pytest.mark.parametrize("rule", SUMMED, ids=lambda rule: rule.op)
def test_H_FUS_02_a_residual_is_an_input_exactly_where_the_pattern_adds_one(rule):
    adds = any(line.startswith("add(") for line in rule.pattern)
    assert ("y" in OPS[rule.op].tensors) is adds


@pytest.fixture
def wide_norms(monkeypatch):
    """Every norm of a model has float32 weights, as some checkpoints have them."""

    def build(model, layout):
        program = build_program(model, layout)
        norms = {call.inputs[1] for call in program.calls if call.op == "rms_norm"}
        weights = {
            name: replace(weight, dtype="float32") if name in norms else weight
            for name, weight in program.weights.items()
        }
        return replace(program, weights=weights)

    monkeypatch.setattr(make, "build_program", build)


@pytest.mark.parametrize("model", [STATIC, BLOCK], ids=lambda model: model.name)
@pytest.mark.parametrize(("name", "target"), TARGETS)
def test_H_FUS_03_a_row_takes_mixed_types_only_if_it_declares_them(wide_norms, name, target, model):
    for without, ranks in (("", 1), ("triton", 1), ("", 2)):
        profile = described(name, target, without)
        found = plan(profile, model, "-cc.custom_ops+=all", f"--tensor-parallel-size={ranks}")
        for row in found.kernels:
            if "norm" in row.op and "float32[4096]" in row.call:
                assert row.chosen not in ("flashinfer", "aiter"), row
        if without and name != "cpu":
            assert not on(found) & {"fuse_norm_quant", "fuse_allreduce_rms"}
            assert chosen(found, "rms_norm") == {"reference"}


@pytest.mark.parametrize("architecture", ["GemmaForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM"])
def test_H_FUS_04_a_norm_with_an_offset_is_never_taken_for_the_plain_one(architecture):
    """No model with such a norm is known: it is refused by name, so that no rule can match it as the plain form."""
    with pytest.raises(UserError, match=architecture):
        ModelConfig.from_hf({"architectures": [architecture], "hidden_size": 64}, name="offset")


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize(("name", "target"), TARGETS)
def test_H_FUS_06_every_attribute_of_a_matched_call_is_in_the_fused_one(name, target, power):
    model = replace(BLOCK, quantization=replace(BLOCK.quantization, power_of_two=power))
    found = plan(described(name, target), model, "-cc.custom_ops+=all")
    fused = [call for one in found.ranges for call in one.program.calls if call.op.endswith("_quantize_dynamic")]
    for call in fused:
        assert set(call.attributes) == set(OPS[call.op].attributes)
        assert (call.attributes["columns"], call.attributes["power_of_two"]) == (128, power)
    if found["model.quantization"] and name != "cpu":
        assert fused
    if target in ("gfx942", "gfx950"):
        for op in ("add_rms_norm_quantize_dynamic", "silu_and_mul_quantize_dynamic"):
            assert chosen(found, op) == ({"triton"} if power or op.startswith("silu") else {"aiter"})


@pytest.mark.parametrize(("activation", "approximate"), [("gelu", "none"), ("gelu_tanh", "tanh")])
@pytest.mark.parametrize(("model", "fused"), [(STATIC, "static"), (BLOCK, "dynamic")], ids=["static", "block"])
@pytest.mark.parametrize(("name", "target"), TARGETS)
def test_H_FUS_06_the_form_of_a_gate_is_in_the_fused_call(name, target, model, fused, activation, approximate):
    found = plan(described(name, target), replace(model, activation=activation), "-cc.custom_ops+=all")
    calls = [call for one in found.ranges for call in one.program.calls if "and_mul" in call.op]
    assert calls and all(call.attributes["approximate"] == approximate for call in calls)
    quantises = any(call.op.startswith("quantize") for one in found.ranges for call in one.program.calls)
    acts = bool(report(found, "fuse_act_quant").matched)
    assert {call.op for call in calls} == {f"gelu_and_mul_quantize_{fused}" if acts else "gelu_and_mul"}
    assert acts is (quantises and name != "cpu")
    assert "reference" not in chosen(found, calls[0].op) or name == "cpu"


def test_a_program_without_a_kernel_for_its_gate_is_told_both_names():
    gelu = replace(STATIC, activation="gelu_tanh")
    for words, acts in [((), False), (("-cc.custom_ops+=+gelu_and_mul",), True)]:
        found = plan(described("cuda", "sm_90"), gelu, "-cc.custom_ops+=none", *words)
        row = report(found, "fuse_act_quant")
        assert bool(row.matched) is acts
        assert acts or "+silu_and_mul or +gelu_and_mul would bring one" in row.reason


@pytest.mark.parametrize(("name", "target"), TARGETS)
@pytest.mark.parametrize("rule", ["fuse_norm_quant", "fuse_act_quant"])
def test_H_FUS_09_a_rule_asked_for_on_a_model_that_is_not_quantised_is_told(name, target, rule):
    """A warning where the rule could act, an exit with the reason where it could not."""
    profile, words = described(name, target), ("-cc.custom_ops+=all", f"-cc.pass_config.{rule}=true")
    if not report(plan(profile, LLAMA, words[0]), rule).eligible:
        assert name == "cpu"
        with pytest.raises(UserError, match=f"{rule}=true.*no kernel in use for"):
            plan(profile, LLAMA, *words)
        return
    found = plan(profile, LLAMA, *words)
    row = report(found, rule)
    assert (row.requested, row.origin, row.eligible, row.matched) == (True, "command line", True, 0)
    said = [line for line in found.warnings if rule in line]
    assert len(said) == 1 and "matched nothing" in said[0] and "quantize" in said[0] and "stored dense" in said[0]


@pytest.mark.parametrize("rule", ["fuse_norm_quant", "fuse_act_quant"])
def test_H_FUS_09_a_rule_hidden_by_another_setting_is_refused_with_that_setting(rule):
    with pytest.raises(UserError) as error:
        plan(described("cuda", "sm_90"), STATIC, "-cc.custom_ops+=none", f"-cc.pass_config.{rule}=true")
    assert f"{rule}=true" in str(error.value) and "custom_ops" in str(error.value)


@pytest.mark.parametrize(("name", "target"), TARGETS)
def test_H_FUS_09_every_rule_is_reported_with_who_wanted_it_and_why_it_is_off(name, target):
    found = plan(described(name, target), STATIC, "-cc.pass_config.fuse_act_quant=false")
    assert [row.rule for row in found.fusions if row.rule in FUSIONS] == list(FUSIONS)
    for row in found.fusions:
        assert row.reason and row.origin == ("command line" if row.rule == "fuse_act_quant" else "level")
    assert not report(found, "fuse_act_quant").requested and not report(found, "fuse_act_quant").matched


@pytest.mark.parametrize("other", ["pipeline", "data"])
@pytest.mark.parametrize(("name", "target"), [row for row in TARGETS if row[0] != "cpu"])
def test_H_FUS_10_ranks_that_do_not_run_the_same_steps_are_not_summed_in_one_call(name, target, other):
    profile, words = described(name, target), ["--tensor-parallel-size=2", f"--{other}-parallel-size=2"]
    found = plan(profile, LLAMA, *words)
    row = report(found, "fuse_allreduce_rms")
    assert (row.eligible, row.matched) == (False, 0)
    assert not found["compilation.pass_config.fuse_allreduce_rms"]
    assert f"{other}_parallel_size = 2, needs 1" in row.reason
    with pytest.raises(UserError, match=rf"fuse_allreduce_rms=true.*{other}_parallel_size = 2"):
        plan(profile, LLAMA, *words, "-cc.pass_config.fuse_allreduce_rms=true")


NATIVE = ["-O2 -cc.mode=0", "-O1 -cc.mode=0", "-O2 -cc.custom_ops+=+rms_norm", "-O2 -cc.backend=eager"]


@pytest.mark.parametrize("words", NATIVE)
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_120"])
def test_a_residual_and_the_norm_after_it_are_one_call_where_a_kernel_norms(target, words):
    """All norms but the first, which has nothing before it to be added."""
    found = plan(described("cuda", target), LLAMA, *words.split())
    row = report(found, "fuse_add_norm")
    assert (row.requested, row.eligible, row.matched) == (True, True, 2 * LLAMA.num_layers)
    assert found["compilation.pass_config.fuse_add_norm"] and chosen(found, "add_rms_norm") == {"triton"}
    for one in found.ranges:
        ops = [call.op for call in one.program.calls]
        assert ops.count("rms_norm") == 1 and not ops.count("add") and ops.count("add_rms_norm") == row.matched
    assert ("", f"fuse_add_norm ×{row.matched}") in [(line.label, line.value) for line in summary(found)]


@pytest.mark.parametrize(("name", "target"), [row for row in TARGETS if row[0] == "cpu"])
def test_a_host_that_norms_by_its_own_kernel_adds_in_the_same_call(name, target):
    found = plan(described(name, target), LLAMA, "-O1")
    row = report(found, "fuse_add_norm")
    assert (row.requested, row.eligible, row.matched) == (True, True, 2 * LLAMA.num_layers)
    assert chosen(found, "add_rms_norm") == {"native"}


@pytest.mark.parametrize(("name", "target"), [row for row in TARGETS if row[0] != "cpu"])
def test_a_norm_that_the_compiler_makes_is_left_to_it(name, target):
    found = plan(described(name, target, "aiter"), LLAMA, "-O2")
    assert not {call.op for one in found.ranges for call in one.program.calls} & {"add_rms_norm"}
    row = report(found, "fuse_add_norm")
    assert (row.requested, row.eligible, row.matched) == (True, False, 0)
    assert row.reason == (
        "no kernel in use for rms_norm: the compiler fuses better; custom_ops with +rms_norm would bring one"
    )
    with pytest.raises(UserError, match=r"fuse_add_norm=true.*cannot be served: no kernel in use for rms_norm"):
        plan(described(name, target, "aiter"), LLAMA, "-cc.pass_config.fuse_add_norm=true")


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
def test_the_library_adds_and_norms_by_default_where_it_norms(target):
    for words, taken in [(("-O1",), {"aiter"}), (("-O2",), {"aiter"}), (("--enforce-eager",), {"triton"})]:
        assert chosen(plan(described("rocm", target), LLAMA, *words), "add_rms_norm") == taken


WIDER = ("fuse_norm_quant", "fuse_act_quant", "fuse_allreduce_rms")


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("model", [LLAMA, STATIC, BLOCK], ids=lambda model: model.name)
def test_rules_that_take_more_calls_come_before_the_one_of_two(model, ranks):
    words = ("-cc.mode=0", "-O2", f"--tensor-parallel-size={ranks}")
    off = "-cc.pass_config.fuse_add_norm=false"
    found, without = (plan(described("cuda", "sm_90"), model, *words, *more) for more in ((), (off,)))
    assert all(report(found, rule).ranges == report(without, rule).ranges for rule in WIDER)
    assert not report(without, "fuse_add_norm").matched
    row = report(found, "fuse_add_norm")
    if ranks > 1:
        assert not row.matched and "fuse_allreduce_rms took its calls" in row.reason
        small = plan(described("cuda", "sm_90"), model, *words, "-cc.pass_config.allreduce_max_size_mb=1")
        assert report(small, "fuse_add_norm").ranges[0][0] == report(small, "fuse_allreduce_rms").ranges[-1][1] + 1
    else:
        assert row.matched == (2 * model.num_layers if model is LLAMA else 1)


@pytest.mark.parametrize("pin", ["add", "rms_norm"])
def test_a_pinned_part_is_not_taken_into_the_sum_and_norm(pin):
    found = plan(described("cuda", "sm_90"), LLAMA, "-cc.mode=0", "--kernel", f"{pin}=triton")
    assert report(found, "fuse_add_norm").reason == f"--kernel {pin}=triton keeps its calls apart"
