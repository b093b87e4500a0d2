"""What levels resolve to on described devices: `optimization-levels.md` sections 1, 2, 3 and 6 of the project's
references, with the exceptions that the design decides (rotation and cache write need offer, level and kernel only;
``custom_ops`` gates norm+quant and act+quant alone) and without the bugs recorded there."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from engine.errors import UserError
from engine.levels import FUSIONS, LEVELS
from platforms.contract import Verdict
from tests.described_plans import AITER, TARGETS, chosen, described, offered, on, own_rules, plan, report
from tests.model_configs import BLOCK, LLAMA, MLA, QWEN3, STATIC

FIRST = {"fuse_norm_quant", "fuse_act_quant", "fuse_act_padding", "fuse_mla_dual_rms_norm"}
SECOND = {"fuse_allreduce_rms", "fuse_rope_kvcache", "fuse_qk_norm_rope_kvcache", "fuse_rope_kvcache_cat_mla"}
LEVEL_TABLE = {0: set(), 1: FIRST, 2: FIRST | SECOND, 3: FIRST | SECOND}
MODES = {0: ("NONE", "NONE"), 1: ("PIECEWISE", "PIECEWISE"), 2: ("PIECEWISE", "FULL_AND_PIECEWISE")}
MODES[3] = MODES[2]
DATA_CENTRE = ("sm_90", "sm_100", "sm_103")
COMPILED = [(name, target) for name, target in TARGETS if name != "cpu"]
QUANT = {"fuse_norm_quant", "fuse_act_quant"}


# Section 1: the level table.
@pytest.mark.parametrize("level", LEVELS, ids=lambda row: f"O{row.number}")
@pytest.mark.parametrize(("name", "target"), TARGETS)
def test_what_a_level_asks_for(name, target, level):
    found = plan(described(name, target), STATIC, f"-O{level.number}")
    own = {rule.name for rule in own_rules(name)}
    assert own == {"fuse_add_norm"}
    beside = own if level.number else set()
    assert {row.rule for row in found.fusions if row.requested} == LEVEL_TABLE[level.number] | beside
    assert {row.rule for row in found.fusions} == {*FUSIONS, *own} and len(FUSIONS) == 12
    assert found["kernel_config.autotune"] is (level.number > 0)
    assert (found["compilation.mode"], found["compilation.graph_mode"]) == MODES[level.number]


@pytest.mark.parametrize(("name", "target"), TARGETS)
def test_level_three_is_level_two_but_for_kernels_that_round(name, target):
    two, three = (plan(described(name, target), BLOCK, f"-O{number}") for number in (2, 3))
    different = {key for key in two.decisions if two[key] != three[key]}
    rounding = {"kernel_config.rounding"} if three["kernel_config.rounding"] else set()
    assert different == {"optimization_level"} | rounding and on(two) == on(three)
    assert bool(rounding) == (target == "amx")


# Section 2, norm+quant and act+quant.
@pytest.mark.parametrize("model", [STATIC, BLOCK], ids=lambda model: model.name)
@pytest.mark.parametrize(
    ("words", "rules"),
    [
        (["none"], set()),
        (["none", "+rms_norm"], {"fuse_norm_quant"}),
        (["none", "+silu_and_mul"], {"fuse_act_quant"}),
        (["none", "+quant_fp8"], QUANT),
        (["none", "+rms_norm", "+silu_and_mul"], QUANT),
        (["none", "+rotary_embedding"], set()),
        (["all"], QUANT),
        (["all", "-quant_fp8"], QUANT),
        (["all", "-rms_norm", "-quant_fp8"], {"fuse_act_quant"}),
        (["all", "-silu_and_mul", "-quant_fp8"], {"fuse_norm_quant"}),
        (["all", "-rms_norm", "-silu_and_mul", "-quant_fp8"], set()),
    ],
    ids=lambda value: " ".join(sorted(value)) or "nothing",
)
@pytest.mark.parametrize("target", ["sm_90", "sm_120"])
def test_quantisation_joins_a_norm_or_an_activation_where_a_kernel_backs_one_of_the_two(target, words, rules, model):
    if model is BLOCK and not any("quant_fp8" in word for word in words):
        words = [*words, "-quant_fp8"]
    found = plan(described("cuda", target), model, *(f"-cc.custom_ops+={word}" for word in words))
    assert on(found) & QUANT == rules
    for rule in QUANT - rules:
        assert "compiler fuses better" in report(found, rule).reason


# Section 2, all-reduce + norm.
@pytest.mark.parametrize("invariant", [False, True], ids=["", "batch_invariant"])
@pytest.mark.parametrize("without", ["", "flashinfer"], ids=["flashinfer", "bare"])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("target", ["sm_80", "sm_87", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120"])
def test_the_fused_all_reduce_on_one_vendor(target, ranks, without, invariant):
    words = [f"--tensor-parallel-size={ranks}", *(["--batch-invariant"] if invariant else [])]
    profile = described("cuda", target, without)
    found = plan(profile, LLAMA, *words)
    expected = ranks > 1 and target in DATA_CENTRE and "flashinfer" in profile.libraries and not invariant
    row = report(found, "fuse_allreduce_rms")
    assert (row.requested, row.eligible, row.matched > 0) == (True, expected, expected)
    assert found["compilation.pass_config.fuse_allreduce_rms"] is expected
    assert chosen(found, "all_reduce_add_rms_norm") == ({"flashinfer"} if expected else set())
    if ranks == 1 or invariant:
        assert ("tensor_parallel_size = 1" if ranks == 1 else "batch_invariant = True") in row.reason
    assert report(plan(profile, LLAMA, "-O1", *words), "fuse_allreduce_rms").matched == 0


@pytest.mark.parametrize("target", ["sm_110", "sm_121", "sm_107"])
def test_a_larger_number_is_not_a_newer_kind(target):
    family = {"sm_110": "jetson-thor", "sm_121": "blackwell-client", "sm_107": "unknown"}[target]
    profile = replace(described("cuda", "sm_100"), arch=target, family=family)
    assert not report(plan(profile, LLAMA, "--tensor-parallel-size=2"), "fuse_allreduce_rms").eligible


SWITCHES = [
    ({}, True),
    ({"VLLM_ROCM_USE_AITER": "1"}, True),
    ({"VLLM_ROCM_USE_AITER": "0"}, False),
    ({"VLLM_ROCM_USE_AITER": "False"}, False),
    ({"VLLM_ROCM_USE_AITER_CUSTOM_AR": "0"}, False),
    ({"VLLM_ROCM_USE_AITER": "1", "VLLM_ROCM_USE_AITER_CUSTOM_AR": "1"}, True),
    ({"VLLM_ROCM_USE_AITER_MHA": "0"}, True),
]


@pytest.mark.parametrize("invariant", [False, True], ids=["", "batch_invariant"])
@pytest.mark.parametrize(("environment", "allowed"), SWITCHES, ids=lambda value: str(value)[-40:])
@pytest.mark.parametrize("installed", [True, False], ids=["aiter", "bare"])
@pytest.mark.parametrize("target", ["gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201"])
def test_the_fused_all_reduce_on_the_other_vendor(target, installed, environment, allowed, invariant):
    profile = described("rocm", target, "aiter", **({"aiter": AITER} if installed else {}))
    for ranks in (1, 2):
        words = [f"--tensor-parallel-size={ranks}", *(["--batch-invariant"] if invariant else [])]
        found = plan(profile, LLAMA, *words, environment=environment)
        expected = ranks > 1 and installed and allowed and target in ("gfx942", "gfx950") and not invariant
        row = report(found, "fuse_allreduce_rms")
        assert (row.eligible, row.matched > 0) == (expected, expected), row.reason
        assert chosen(found, "all_reduce_add_rms_norm") == ({"aiter"} if expected else set())


@pytest.mark.parametrize(("name", "target"), TARGETS)
def test_what_the_largest_fused_sum_is_and_that_a_user_may_move_it(name, target):
    table = {"sm_90": (64, 2, 0.5), "sm_100": (64, 32, 1), "sm_103": (64, 64, 4)}
    table |= dict.fromkeys(("gfx942", "gfx950"), (64, 64, 64))
    profile, row_bytes = described(name, target), 2 * LLAMA.hidden_size
    for ranks, mebibytes in zip((2, 4, 8), table.get(target, ()), strict=target in table):
        words = (f"--tensor-parallel-size={ranks}", "--max-num-batched-tokens=65536")
        tokens = int(mebibytes * 2**20) // row_bytes
        usual = plan(profile, LLAMA, *words)
        assert report(usual, "fuse_allreduce_rms").ranges[-1][1] == tokens
        moved = plan(profile, LLAMA, *words, "-cc.pass_config.fi_allreduce_fusion_max_size_mb=3")
        assert report(moved, "fuse_allreduce_rms").ranges[-1][1] == 3 * 2**20 // row_bytes
        assert 3 * 2**20 // row_bytes in moved["compilation.compile_ranges_endpoints"]
    two = plan(profile, LLAMA, "--tensor-parallel-size=2")
    assert report(two, "fuse_allreduce_rms").eligible is (target in table)


# Section 2, what AITER alone has.
@pytest.mark.parametrize("installed", [True, False], ids=["aiter", "bare"])
@pytest.mark.parametrize(("name", "target"), TARGETS)
def test_padded_and_paired_norms_are_for_one_library_on_its_families(name, target, installed):
    profile = described(name, target, "aiter", **({"aiter": AITER} if installed else {}))
    expected = installed and target in ("gfx942", "gfx950")
    paired = plan(profile, MLA, "-O1")
    assert (report(paired, "fuse_mla_dual_rms_norm").matched > 0) is expected
    assert chosen(paired, "dual_rms_norm") == ({"aiter"} if expected else set())
    narrow = replace(LLAMA, hidden_size=2880, num_heads=64, head_dim=64, rope=replace(LLAMA.rope, dim=64))
    for model, width in ((narrow, True), (LLAMA, False)):
        row = report(plan(profile, model, "-O1"), "fuse_act_padding")
        assert row.eligible is (expected and width) and row.matched == 0
    if expected:
        for variable in ("VLLM_ROCM_USE_AITER", "VLLM_ROCM_USE_AITER_RMSNORM"):
            off = plan(profile, MLA, "-O1", environment={variable: "0"})
            assert "= 0" in report(off, "fuse_mla_dual_rms_norm").reason


# Section 2, rotation and cache write: offer, level and kernel, whatever custom_ops and splitting say.
@pytest.mark.parametrize("words", [(), ("-cc.custom_ops+=all", "-cc.splitting_ops=[]")], ids=str)
@pytest.mark.parametrize(
    ("model", "rule"),
    [(LLAMA, "fuse_rope_kvcache"), (QWEN3, "fuse_qk_norm_rope_kvcache"), (MLA, "fuse_rope_kvcache_cat_mla")],
    ids=lambda value: getattr(value, "name", value),
)
@pytest.mark.parametrize(("name", "target"), COMPILED)
def test_rotation_and_cache_write_are_one_from_level_two_on(name, target, model, rule, words):
    profile = described(name, target)
    assert rule in on(plan(profile, model, *words)) and rule not in on(plan(profile, model, "-O1", *words))
    row = report(plan(profile, model, *words), rule)
    limited = name == "rocm" and rule != "fuse_rope_kvcache_cat_mla"
    assert (row.ranges[-1][1] == 256) is limited
    if limited:
        moved = plan(profile, model, *words, "-cc.pass_config.rope_kvcache_fusion_max_token_num=99")
        assert report(moved, rule).ranges == ((1, 99, row.matched),)


# Section 3.
@pytest.mark.parametrize(
    ("words", "mode", "custom_ops", "graphs", "rules"),
    [
        ("-O0", "NONE", "all", "NONE", set()),
        ("-O1", "PIECEWISE", "none", "PIECEWISE", set()),
        ("-O2", "PIECEWISE", "none", "FULL_AND_PIECEWISE", set()),
        ("-O3", "PIECEWISE", "none", "FULL_AND_PIECEWISE", set()),
        ("-O2 -cc.custom_ops+=+rms_norm", "PIECEWISE", "+rms_norm", "FULL_AND_PIECEWISE", {"fuse_norm_quant"}),
        ("-O2 -cc.custom_ops+=none,+quant_fp8", "PIECEWISE", "none", "FULL_AND_PIECEWISE", QUANT),
        (
            "-O2 -cc.custom_ops+=all,-rms_norm,-quant_fp8",
            *("PIECEWISE", "all", "FULL_AND_PIECEWISE", {"fuse_act_quant"}),
        ),
        ("-O2 -cc.mode=0", "NONE", "all", "FULL_DECODE_ONLY", QUANT),
        ("-O2 -cc.mode=1", "STOCK_TORCH_COMPILE", "none", "FULL_DECODE_ONLY", set()),
        ("-O2 -cc.mode=2", "DYNAMO_TRACE_ONCE", "none", "FULL_DECODE_ONLY", set()),
        ("-O1 -cc.mode=0", "NONE", "all", "NONE", QUANT),
        ("-O0 -cc.mode=3", "PIECEWISE", "none", "NONE", set()),
        ("-O0 -cc.cudagraph_mode=FULL", "NONE", "all", "FULL", set()),
        ("-O2 -cc.backend=eager", "PIECEWISE", "all", "FULL_AND_PIECEWISE", QUANT),
        ("-O2 -cc.splitting_ops=[]", "PIECEWISE", "none", "FULL", set()),
        ("-O1 -cc.splitting_ops=[]", "PIECEWISE", "none", "NONE", set()),
    ],
)
def test_what_levels_and_flags_resolve_to(words, mode, custom_ops, graphs, rules):
    found = plan(described("cuda", "sm_90"), STATIC, *words.split())
    assert (found["compilation.mode"], found["compilation.graph_mode"]) == (mode, graphs)
    assert custom_ops in found["compilation.custom_ops"]
    pieces = "-cc.mode=1" not in words and "-cc.mode=2" not in words
    rope = {"fuse_rope_kvcache"} if pieces and ("-O2" in words or "-O3" in words) else set()
    by_hand = "-rms_norm" not in words and (custom_ops == "all" or "+rms_norm" in words)
    added = {"fuse_add_norm"} if by_hand and "-O0" not in words else set()
    assert on(found) == rules | rope | added
    norms = chosen(found, "rms_norm") | chosen(found, "add_rms_norm")
    assert (norms == ({"triton"} if added else {"flashinfer"})) is by_hand


@pytest.mark.parametrize("graphs", ["PIECEWISE", "FULL_AND_PIECEWISE"])
def test_pieces_asked_for_at_level_zero_are_made(graphs):
    """Theirs drops them; here the explicit wish decides the compile mode, which nobody gave, and says so."""
    found = plan(described("cuda", "sm_90"), STATIC, "-O0", f"-cc.cudagraph_mode={graphs}")
    assert (found["compilation.mode"], found["compilation.graph_mode"]) == ("PIECEWISE", graphs)
    assert graphs in found.decisions["compilation.mode"].reason


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
@pytest.mark.parametrize(
    ("words", "base", "rules"),
    [
        ("-O0", "all", set()),
        ("-O1", "none", QUANT),
        ("-O2", "none", QUANT | {"fuse_rope_kvcache"}),
        ("-O2 --tensor-parallel-size=2", "none", QUANT | {"fuse_rope_kvcache", "fuse_allreduce_rms"}),
    ],
)
def test_what_levels_resolve_to_with_aiter(target, words, base, rules):
    found = plan(described("rocm", target), STATIC, *words.split())
    assert on(found) == rules | ({"fuse_add_norm"} if rules else set())
    assert found["compilation.custom_ops"] == [base, "+rms_norm", "+quantize_static", "+quantize_dynamic"]
    assert found.decisions["compilation.custom_ops"].origin == "platform"
    bare = plan(described("rocm", target, "aiter"), STATIC, *words.split())
    assert found["compilation.custom_ops"][:1] == bare["compilation.custom_ops"]
    assert on(bare) == rules - QUANT - {"fuse_allreduce_rms"}


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4", "amx", "armv8.2"])
def test_what_levels_resolve_to_on_a_host(target):
    """Hand-written kernels lead at every level there; theirs leaves all of them to a code generator from -O1 on."""
    for level in LEVELS:
        found = plan(described("cpu", target), LLAMA, f"-O{level.number}")
        assert found["compilation.custom_ops"] == ["all"]
        assert not report(found, "fuse_allreduce_rms").eligible


# Section 6.
def test_modes_have_their_names_and_numbers():
    profile = described("cuda", "sm_90")
    names = ("NONE", "STOCK_TORCH_COMPILE", "DYNAMO_TRACE_ONCE", "PIECEWISE")
    for number, name in enumerate(names):
        for word in (str(number), name, name.lower()):
            assert plan(profile, LLAMA, f"-cc.mode={word}")["compilation.mode"] == name
    assert plan(profile, LLAMA, "-O0", "-cc.mode=VLLM_COMPILE")["compilation.mode"] == "PIECEWISE"


@pytest.mark.parametrize(
    "words", [("all", "none"), ("+rms_norm", "-rms_norm"), ("rms_norm",), ("everything",)], ids=" ".join
)
def test_custom_ops_that_contradict_or_say_nothing_are_refused(words):
    with pytest.raises(UserError, match="custom_ops"):
        plan(described("cuda", "sm_90"), LLAMA, *(f"-cc.custom_ops+={word}" for word in words))


def test_an_unknown_op_is_only_warned_of():
    found = plan(described("cuda", "sm_90"), LLAMA, "-cc.custom_ops+=+sparse_attn_indexer")
    assert any("sparse_attn_indexer" in line for line in found.warnings)


@pytest.mark.parametrize(("name", "target"), COMPILED)
def test_block_scaled_weights_bring_their_quantiser(name, target):
    found = plan(described(name, target, "aiter"), BLOCK)
    assert "+quantize_dynamic" in found["compilation.custom_ops"]
    off = plan(described(name, target, "aiter"), BLOCK, "-cc.custom_ops+=-quant_fp8")
    assert "+quantize_dynamic" not in off["compilation.custom_ops"]


@pytest.mark.parametrize("target", ["gfx90a", "gfx942", "gfx1201"])
def test_batch_invariance_brings_a_norm_that_declares_it(target):
    found = plan(described("rocm", target, "aiter"), LLAMA, "--batch-invariant")
    assert "+rms_norm" in found["compilation.custom_ops"] and chosen(found, "rms_norm") == {"triton"}
    assert "+rms_norm" not in plan(described("rocm", target, "aiter"), LLAMA)["compilation.custom_ops"]


@pytest.mark.parametrize("mode", ["NONE", "STOCK_TORCH_COMPILE", "DYNAMO_TRACE_ONCE", "PIECEWISE"])
def test_full_graphs_need_no_compilation(mode):
    found = plan(described("cuda", "sm_90"), LLAMA, f"-cc.mode={mode}", "-cc.cudagraph_mode=FULL")
    assert found["compilation.graph_mode"] == "FULL"


# Recorded bugs.
@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
def test_a_norm_for_graphs_is_not_chosen_where_none_are_captured(target):
    """Theirs asks before the level is applied, so that nothing is known to be NONE."""
    profile = described("rocm", target)
    for words in (("-O0",), ("--enforce-eager",), ("-O2", "-cc.cudagraph_mode=NONE")):
        found = plan(profile, LLAMA, *words)
        assert "aiter" not in chosen(found, "rms_norm") | chosen(found, "add_rms_norm_quantize_dynamic")
        said = next(row for row in found.kernels if row.op == "rms_norm").considered
        assert "graph mode NONE" in dict(said)["aiter"].reason
    for words in (("-O1",), ("-O2",), ("-O0", "-cc.cudagraph_mode=FULL")):
        assert chosen(plan(profile, LLAMA, *words), "rms_norm") == {"aiter"}


@pytest.mark.parametrize("model", [LLAMA, BLOCK, MLA], ids=lambda model: model.name)
@pytest.mark.parametrize(("name", "target"), TARGETS)
def test_a_range_of_sizes_ends_where_an_active_rule_does_and_nowhere_else(name, target, model):
    """Theirs leaves a range behind for a fusion that is switched off later."""
    for ranks, words in itertools.product((1, 2), ((), ("-cc.pass_config.fuse_rope_kvcache=false",))):
        found = plan(described(name, target), model, f"--tensor-parallel-size={ranks}", *words)
        most = found["scheduler.max_num_batched_tokens"]
        ends = {row.ranges[-1][1] for row in found.fusions if row.matched}
        assert {one.end for one in found.ranges} == ends | {most}
        if found["compilation.mode"] != "NONE":
            assert set(found["compilation.compile_ranges_endpoints"]) == ends | {most}


@pytest.mark.parametrize(
    "facts", [{}, {"mla": True}, {"tensor_parallel_size": 2}, {"native_ops": frozenset()}], ids=str
)
@pytest.mark.parametrize(("name", "target"), TARGETS)
def test_a_predicate_answers_with_a_verdict_whatever_is_unknown(name, target, facts):
    """Theirs stores what a predicate returned, ``None`` where it was not asked to the end."""
    for rule in FUSIONS:
        for profile in (described(name, target), replace(described(name, target), libraries={}, features=frozenset())):
            verdict = offered(profile, rule, **facts)
            assert type(verdict) is Verdict and type(verdict.ok) is bool and verdict.reason


@pytest.mark.parametrize("words", ["-O0", "-O2", "-O2 -cc.mode=0", "-O1 -cc.mode=0", "-O2 --enforce-eager"])
@pytest.mark.parametrize("model", [LLAMA, STATIC, MLA], ids=lambda model: model.name)
@pytest.mark.parametrize(("name", "target"), TARGETS)
def test_a_rule_is_reported_on_where_it_acts_and_only_there(name, target, model, words):
    """Theirs keeps a flag true where no pass runs."""
    found = plan(described(name, target), model, *words.split())
    acting = {row.rule for row in found.fusions if row.matched}
    known = {row.rule for row in found.fusions}
    assert known >= set(FUSIONS) and acting == {rule for rule in known if found[f"compilation.pass_config.{rule}"]}
    fused = {call.op for one in found.ranges for call in one.program.calls}
    assert bool(acting) is bool(fused & FUSED)
    assert all(row.reason and (not row.matched or row.eligible) for row in found.fusions)


FUSED = {
    *("add_rms_norm_quantize_static", "add_rms_norm_quantize_dynamic", "rms_norm_quantize_static"),
    *("rms_norm_quantize_dynamic", "silu_and_mul_quantize_static", "silu_and_mul_quantize_dynamic"),
    *("rotary_kv_write", "qk_norm_rotary_kv_write", "rotary_mla_write", "dual_rms_norm", "add_rms_norm"),
}
