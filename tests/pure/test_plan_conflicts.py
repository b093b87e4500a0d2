"""What a user asks for is in the plan, or refused naming what it contradicts; what has no effect is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.config import collect
from engine.errors import UserError
from engine.explain.flags import explicit
from engine.explain.same import parts_apart, same
from engine.plan import plan_for
from tests.described_plans import AITER, PLUGINS, TARGETS, chosen, described, on, plan, report
from tests.model_configs import LLAMA, MLA, QWEN3, STATIC

HOPPER = described("cuda", "sm_90")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("-cc.graph_mode=FULL_DECODE_ONLY --capture-sizes=8,2048", ["capture-sizes=8,2048", "graph_mode=FULL_DECODE"]),
        ("-cc.graph_mode=PIECEWISE -cc.splitting_ops=moe", ["graph_mode=PIECEWISE", "splitting_ops=moe"]),
        ("-cc.graph_mode=FULL_AND_PIECEWISE -cc.splitting_ops=linear", ["graph_mode", "splitting_ops=linear"]),
        ("--kernels=reference -cc.graph_mode=FULL", ["--kernels=reference", "graph_mode=FULL"]),
        ("--kernel=attention=reference -cc.graph_mode=FULL", ["--kernel=attention=reference", "graph_mode=FULL"]),
        ("-cc.custom_ops=-attention -cc.graph_mode=FULL", ["custom_ops=-attention", "graph_mode=FULL"]),
        ("-cc.custom_ops=-rms_norm --kernel=rms_norm=triton", ["custom_ops=-rms_norm", "--kernel rms_norm=triton"]),
        ("-cc.mode=1 -cc.graph_mode=PIECEWISE", ["mode=STOCK_TORCH_COMPILE", "graph_mode=PIECEWISE"]),
        ("-cc.backend=bogus", ["backend=bogus", "inductor, eager"]),
        ("-cc.compile_sizes=3 --capture-sizes=1,8", ["compile_sizes=3", "--capture-sizes=1,8", "no step has 3 tokens"]),
        ("-cc.mode=1 -cc.pass_config.fuse_rope_kvcache=true", ["fuse_rope_kvcache=true", "mode STOCK_TORCH_COMPILE"]),
        ("-cc.mode=2 -cc.pass_config.fuse_rope_kvcache=true", ["fuse_rope_kvcache=true", "mode DYNAMO_TRACE_ONCE"]),
        ("-cc.compile_sizes=9000", ["compile_sizes=9000", "max_num_batched_tokens"]),
        ("-cc.compile_ranges_endpoints=64,9000", ["compile_ranges_endpoints=64,9000", "max_num_batched_tokens"]),
        ("-pp 3", ["--pipeline-parallel-size=3", "each stage needs a layer", "2 in all"]),
        ("-cc.custom_ops=+quant_fp8,-quantize_static", ["+quant_fp8", "-quantize_static"]),
        ("-cc.custom_ops=-rotary_embedding,+apply_rotary_emb", ["-rotary_embedding", "+apply_rotary_emb"]),
        ("-cc.custom_ops=+rms_norm,-fused_add_rms_norm", ["+rms_norm", "-fused_add_rms_norm"]),
    ],
)
def test_wishes_that_cannot_both_be_served(words, named):
    with pytest.raises(UserError) as error:
        plan(HOPPER, LLAMA, *words.split())
    assert all(word in str(error.value) for word in named), error.value


@pytest.mark.parametrize("mode", ["STOCK_TORCH_COMPILE", "DYNAMO_TRACE_ONCE"])
def test_any_backend_of_torch_s_is_taken_where_torch_compiles_the_whole(mode):
    assert plan(HOPPER, LLAMA, f"-cc.mode={mode}", "-cc.backend=aot_eager")["compilation.backend"] == "aot_eager"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("-cc.mode=1 -cc.splitting_ops=attention", "cuts no pieces"),
        ("-cc.splitting_ops=attention,mla_attention", "no call of that name"),
        ("-cc.splitting_ops=attention,nonsense", "nonsense"),
        ("-cc.compile_sizes=3,8", "no step has 3 tokens"),
        ("-cc.mode=1 -cc.compile_sizes=8", "compile_sizes=8 (command line) has no effect: mode STOCK_TORCH_COMPILE"),
        ("-cc.mode=2 --cache-dir=x", "--cache-dir=x (command line) has no effect: mode DYNAMO_TRACE_ONCE"),
        ("-cc.backend=eager --cache-dir=x", "--cache-dir=x (command line) has no effect: backend eager"),
        ("-O0 --cache-dir=x", "--cache-dir=x (command line) has no effect: nothing is compiled"),
        ("-cc.pass_config.allreduce_max_size_mb=8", "act nowhere here: fuse_allreduce_rms"),
        ("-O0 -cc.pass_config.rope_kvcache_max_tokens=8", "act nowhere here: fuse_rope_kvcache"),
        ("-O0 --kernel rotary_kv_write=triton", "--kernel rotary_kv_write=triton (command line) has no effect"),
        ("--kernel mla_attention=reference", "no call of mla_attention"),
    ],
)
def test_what_has_no_effect_is_told(words, said):
    assert any(said in line for line in plan(HOPPER, LLAMA, *words.split()).warnings)


def test_a_fused_call_stands_where_its_parts_stand():
    """Attention is between the pieces, fused with what follows it or not."""
    words = ("-cc.pass_config.fuse_attn_quant=true", "-cc.graph_mode=PIECEWISE", "-cc.splitting_ops=attention")
    found = plan(HOPPER, STATIC, *words)
    assert found["compilation.graph_mode"] == "PIECEWISE" and "fuse_attn_quant" in on(found)
    assert found["compilation.splitting_ops"] == ("attention",)
    assert not any("splitting" in line for line in found.warnings)


def test_splitting_ops_have_the_names_users_know():
    words = "-cc.splitting_ops=vllm::unified_attention_with_output,vllm::unified_mla_attention_with_output"
    for model in (LLAMA, MLA):
        found = plan(HOPPER, model, words, "-cc.graph_mode=PIECEWISE")
        assert found["compilation.splitting_ops"] == ("attention", "mla_attention")


@pytest.mark.parametrize("row", ["triton", "reference"])
@pytest.mark.parametrize(
    ("op", "rule"),
    [("rotary", "fuse_rope_kvcache"), ("kv_write", "fuse_rope_kvcache"), ("attention", "fuse_attn_quant")],
)
def test_a_pinned_op_is_not_taken_into_a_fused_one(op, rule, row):
    """The kernel that was asked for computes every call; asked for too, the rule is refused with the pin."""
    pin = ("--kernel", f"{op}={row}")
    found = plan(HOPPER, STATIC, *pin)
    assert chosen(found, op) == {row} and rule not in on(found)
    assert found.decisions["kernel_pins"].value == {op: row} and not any("no effect" in line for line in found.warnings)
    with pytest.raises(UserError) as error:
        plan(HOPPER, STATIC, *pin, f"-cc.pass_config.{rule}=true")
    assert f"{rule}=true" in str(error.value) and f"--kernel {op}={row}" in str(error.value)


def test_a_pin_holds_back_only_the_patterns_it_is_in():
    found = plan(HOPPER, STATIC, "--kernel", "add=reference", "-cc.custom_ops=all")
    assert report(found, "fuse_norm_quant").matched and chosen(found, "add_rms_norm_quantize_static") == set()
    assert chosen(found, "rms_norm_quantize_static") == {"flashinfer"} and chosen(found, "add") == {"reference"}


@pytest.mark.parametrize("words", ["--kernel rotary_kv_write=reference", "--kernels reference"])
def test_a_fused_op_held_to_its_reference_is_no_fusion(words):
    assert "fuse_rope_kvcache" not in on(plan(HOPPER, LLAMA, *words.split()))
    with pytest.raises(UserError, match=r"fuse_rope_kvcache=true.*asked for with --kernel"):
        plan(HOPPER, LLAMA, *words.split(), "-cc.pass_config.fuse_rope_kvcache=true")


@pytest.mark.parametrize("rule", ["fuse_rope_kvcache", "enable_qk_norm_rope_fusion"])
def test_H_FUS_09_a_rule_whose_calls_another_took_says_which(rule):
    found = plan(HOPPER, QWEN3, f"-cc.pass_config.{rule}=true")
    assert "fuse_qk_norm_rope_kvcache took its calls" in report(found, rule).reason
    assert sum(rule in line and "fuse_qk_norm_rope_kvcache" in line for line in found.warnings) == 1
    alone = plan(HOPPER, QWEN3, f"-cc.pass_config.{rule}=true", "-cc.pass_config.fuse_qk_norm_rope_kvcache=false")
    assert rule in on(alone)


@pytest.mark.parametrize(("name", "target"), TARGETS)
def test_a_limit_that_a_user_sets_holds_on_every_platform(name, target):
    found = plan(described(name, target), LLAMA, "-O2", "-cc.pass_config.rope_kvcache_max_tokens=100")
    assert report(found, "fuse_rope_kvcache").ranges[-1][1] == 100
    assert [one.end for one in found.ranges] == [100, found["scheduler.max_num_batched_tokens"]]


def test_equal_plans_have_equal_hashes_whoever_asked(tmp_path):
    file = tmp_path / "f.yaml"
    file.write_text("max-num-seqs: 7\n")
    sources = [((f"--config={file}",), {}), (("--max-num-seqs=7",), {}), ((), {"ENGINE_MAX_NUM_SEQS": "7"})]
    plans = [plan_for(PLUGINS["cuda"], HOPPER, LLAMA, collect(words, env).given) for words, env in sources]
    assert len({found.hash for found in plans}) == 1
    assert plans[0].hash != plan(HOPPER, LLAMA).hash
    assert plan(HOPPER, LLAMA, "-O3").hash == plan(HOPPER, LLAMA, "-O2").hash


@pytest.mark.parametrize(("name", "target"), [("cuda", "sm_90"), ("rocm", "gfx942"), ("cpu", "x86-64-v4")])
def test_a_wish_for_what_runs_anyway_changes_no_hash(name, target):
    profile = described(name, target)
    plain = plan(profile, LLAMA)
    pins = {row.op: row.chosen for row in plain.kernels if row.target and len(chosen(plain, row.op)) == 1}
    acting = [f"-cc.pass_config.{rule}=true" for rule in on(plain)]
    assert pins and acting
    for op, row in pins.items():
        pinned = plan(profile, LLAMA, "--kernel", f"{op}={row}")
        assert (pinned.hash == plain.hash) is (not parts_apart(pinned, plain)), op
    assert plan(profile, LLAMA, *acting).hash == plain.hash
    eager = plan(profile, LLAMA, "--enforce-eager")
    assert eager.hash == plan(profile, LLAMA, "-cc.mode=NONE", "-cc.graph_mode=NONE").hash != plain.hash
    assert plan(profile, LLAMA, "--kernel-config.autotune=false").hash != plain.hash, "tuning changes what runs"
    assert plan(profile, LLAMA, "--kernels=reference").hash != plain.hash


def test_every_setting_of_what_runs_is_in_the_hash():
    plain = plan(described("cuda", "sm_90"), LLAMA)
    for words in ("--max-num-seqs=7", "--block-size=32", "-cc.max_capture_size=8", "-cc.splitting_ops+=linear",
                  "--kernel=attention=reference", "-cc.pass_config.rope_kvcache_max_tokens=9", "-O0"):  # fmt: skip
        assert plan(described("cuda", "sm_90"), LLAMA, words).hash != plain.hash, words


MI300 = described("rocm", "gfx942", aiter=AITER)


@pytest.mark.parametrize(
    ("profile", "model", "words"),
    [
        (MI300, MLA, ("-cc.mode=2", "--kernel=mla_attention=reference")),
        (MI300, MLA, ("-cc.mode=NONE", "--kernel=mla_attention=reference")),
        (replace(MI300, features=MI300.features - {"graph.capture"}), LLAMA, ()),
    ],
    ids=["attention, torch compiles", "attention, nothing compiled", "device"],
)
def test_no_kernel_is_chosen_for_graphs_that_attention_or_the_device_rule_out(profile, model, words):
    """What a level requests is not what can be had: the same plan is written out under -O0, which requests none."""
    found = plan(profile, model, *words)
    assert found["compilation.graph_mode"] == "NONE" and found.decisions["compilation.graph_mode"].origin == "derived"
    assert "aiter" not in chosen(found, "rms_norm")
    given = collect(words, {}).given

    def make(values):
        return plan_for(PLUGINS["rocm"], profile, model, values, environment={})

    assert same(found, make(collect(explicit(found, given, make), {}, "explain").given))


def test_H_FUS_09_a_rule_without_a_match_says_that_the_weights_are_unpacked():
    """On a device that has no arithmetic for the stored type the program holds nothing quantised."""
    found = plan(described("cuda", "sm_80"), STATIC, "-cc.custom_ops=all", "-cc.pass_config.fuse_norm_quant=true")
    said = [line for line in found.warnings if "fuse_norm_quant" in line]
    assert len(said) == 1 and "unpacked to bfloat16" in said[0] and "fp8" in said[0]


def test_stages_are_said_to_be_recorded_only():
    one, two = (plan(described("cuda", "sm_90"), LLAMA, *words) for words in ((), ("-pp", "2")))
    row = two.decisions["parallel.pipeline_parallel_size"]
    assert (row.value, row.reason) == (2, "recorded only: layers are not cut into stages")
    (said,) = (text for text in two.warnings if "pipeline_parallel_size" in text)
    assert "recorded only" in said and "planned for" not in said
    assert two["model.weight_bytes"] == one["model.weight_bytes"], "a plan that cuts layers says so no more"
    (other,) = (text for text in plan(described("cuda", "sm_90"), LLAMA, "-tp", "2").warnings if "above 1" in text)
    assert "tensor_parallel_size above 1 can be planned for" in other and "pipeline" not in other
