"""``make_plan``: precedence, reasons, refusals."""

import dataclasses
import itertools
import subprocess
import sys

import pytest
from hypothesis import given as forall
from hypothesis import strategies as st

from engine.errors import UserError
from engine.levels import FUSIONS, LEVELS
from engine.plan import Observations, Tables
from engine.plan.capture_sizes import capture_sizes
from engine.plan_values import Given
from platforms.contract import FusionOffer, Kernel, Setting, Verdict, always, fact
from tests.profiles import DEVICE, MODEL, ROPE_ROW, TABLES, plan

YES = Verdict(True, "a backend")
ATTENTION = Kernel("attention", "paged", "nowhere:paged")
BACKENDS = Tables((*TABLES.kernels, ATTENTION), TABLES.fusions, compiler=YES, graphs=YES)


def choice(found, op):
    return next(row for row in found.kernels if row.op == op)


def fusion(found, rule):
    return next(row for row in found.fusions if row.rule == rule)


@pytest.mark.parametrize("level", LEVELS, ids=lambda row: f"O{row.number}")
def test_a_level_is_what_its_row_says_where_backends_exist(level):
    found = plan(BACKENDS, optimization_level=level.number)
    for key, value in level.defaults.items():
        # No kernel rounds there, and what acts nowhere is not reported as on.
        assert found[key] == (value if key != "kernel_config.rounding" else False)
        assert found.decisions[key].origin == "level"


def test_what_has_no_backend_is_none_with_the_reason():
    found = plan()
    for key in ("compilation.mode", "compilation.graph_mode"):
        assert found[key] == "NONE"
        assert "absent" in found.decisions[key].reason


def test_without_a_code_generator_custom_ops_is_all_and_with_one_it_is_none():
    assert plan()["compilation.custom_ops"] == ["all"]
    assert plan(BACKENDS)["compilation.custom_ops"] == ["none"]
    assert plan(BACKENDS, optimization_level=0)["compilation.custom_ops"] == ["all"]


def test_custom_ops_none_leaves_an_op_to_its_reference_and_plus_brings_it_back():
    tables = Tables((Kernel("rms_norm", "fast", "nowhere:fast", priority=1),))
    assert choice(plan(tables), "rms_norm").chosen == "fast"
    assert choice(plan(tables, compilation__custom_ops=["none"]), "rms_norm").chosen == "reference"
    assert choice(plan(tables, compilation__custom_ops=["none", "+rms_norm"]), "rms_norm").chosen == "fast"
    assert choice(plan(tables, compilation__custom_ops=["-rms_norm"]), "rms_norm").chosen == "reference"


def test_a_rule_acts_from_its_level_on_and_the_user_may_switch_it_either_way():
    key = "compilation__pass_config__fuse_rope_kvcache"
    assert [fusion(plan(optimization_level=n), "fuse_rope_kvcache").matched for n in range(4)] == [0, 0, 2, 2]
    on = plan(optimization_level=0, **{key: True})
    assert fusion(on, "fuse_rope_kvcache").matched == 2
    assert on.decisions[key.replace("__", ".")].origin == "command line"
    assert fusion(plan(**{key: False}), "fuse_rope_kvcache").matched == 0


def test_a_rule_without_a_kernel_is_reported_and_does_not_rewrite():
    found = plan(Tables((), TABLES.fusions))
    report = fusion(found, "fuse_rope_kvcache")
    assert (report.requested, report.eligible, report.matched) == (True, False, 0)
    assert report.reason.startswith("no kernel for rotary_kv_write")
    assert {"rotary", "kv_write"} <= {row.op for row in found.kernels}


def test_a_rule_asked_for_that_cannot_act_is_refused_with_the_reason():
    with pytest.raises(UserError, match=r"fuse_gemm_comms=true.*no product is cut"):
        plan(compilation__pass_config__fuse_gemm_comms=True)
    with pytest.raises(UserError, match="not offered"):
        plan(Tables(), compilation__pass_config__fuse_rope_kvcache=True)
    with pytest.raises(UserError, match="no fusion is called 'fuse_rope'"):
        plan(compilation__pass_config__fuse_rope=True)


def test_H_FUS_09_a_rule_asked_for_that_matches_nothing_is_a_warning():
    row = Kernel("qk_norm_rotary", "fast", "nowhere:fast", priority=1)
    tables = Tables((row,), (FusionOffer("enable_qk_norm_rope_fusion", always("offered")),))
    found = plan(tables, compilation__pass_config__enable_qk_norm_rope_fusion=True)
    assert any("enable_qk_norm_rope_fusion" in line and "rms_norm" in line for line in found.warnings)


def test_rules_that_cover_more_come_first():
    rows = tuple(Kernel(op, "fast", "nowhere:f", priority=1) for op in ("qk_norm_rotary_kv_write", "rotary_kv_write"))
    offers = tuple(FusionOffer(name, always("y")) for name in ("fuse_rope_kvcache", "fuse_qk_norm_rope_kvcache"))
    found = plan(Tables(rows, offers), model=dataclasses.replace(MODEL, qk_norm=True))
    assert fusion(found, "fuse_qk_norm_rope_kvcache").matched == 2
    assert fusion(found, "fuse_rope_kvcache").matched == 0


def test_kernels_considered_keep_their_verdicts_and_the_highest_willing_priority_wins():
    rows = (
        Kernel("rms_norm", "big", "a:b", priority=9, accepts=fact("hidden_size", lambda n: n > 99, "> 99")),
        Kernel("rms_norm", "good", "a:b", priority=5),
        Kernel("rms_norm", "slow", "a:b", priority=1),
    )
    row = choice(plan(Tables(rows)), "rms_norm")
    assert row.chosen == "good"
    assert [(name, verdict.ok) for name, verdict in row.considered] == [("big", False), ("good", True), ("slow", True)]
    assert "needs > 99" in row.considered[0][1].reason


def test_equal_priorities_that_both_accept_are_an_error_and_a_pin_settles_it():
    rows = tuple(Kernel("rms_norm", name, "a:b", priority=1) for name in ("one", "two"))
    with pytest.raises(UserError, match="one and two of rms_norm share priority 1"):
        plan(Tables(rows))
    assert choice(plan(Tables(rows), kernel_pins={"rms_norm": "two"}), "rms_norm").chosen == "two"


def test_a_pin_never_degrades():
    rows = (Kernel("rms_norm", "big", "a:b", accepts=fact("hidden_size", lambda n: n > 99, "> 99")),)
    with pytest.raises(UserError, match=r"rms_norm=big cannot be served: hidden_size = 16"):
        plan(Tables(rows), kernel_pins={"rms_norm": "big"})
    with pytest.raises(UserError, match="has no row 'nope'"):
        plan(Tables(rows), kernel_pins={"rms_norm": "nope"})
    with pytest.raises(UserError, match=r"no op is called 'rms_nrom'.*rms_norm"):
        plan(Tables(rows), kernel_pins={"rms_nrom": "x"})


def test_first_touch_refusals_are_verdicts_of_a_new_plan():
    observed = Observations({("rotary_kv_write", "fast"): "RuntimeError: no such instruction"})
    report = fusion(plan(observations=observed), "fuse_rope_kvcache")
    assert not report.eligible
    assert "first touch: RuntimeError: no such instruction" in report.reason


def test_reference_only_uses_no_row_and_no_fusion():
    found = plan(kernels="reference")
    assert {row.chosen for row in found.kernels} == {"reference"}
    assert fusion(found, "fuse_rope_kvcache").matched == 0


def test_platform_settings_win_over_levels_and_defaults_and_lose_to_users():
    tables = Tables(settings=lambda profile, facts, level: (Setting("cache.block_size", 64, "wide loads"),))
    assert plan(tables).decisions["cache.block_size"].origin == "platform"
    assert plan(tables)["cache.block_size"] == 64
    assert plan(tables, cache__block_size=8)["cache.block_size"] == 8


def test_H_OPT_01_graph_mode_without_compiled_pieces_is_refused_with_both_names():
    for level in range(4):
        for tables in (TABLES, BACKENDS):
            with pytest.raises(UserError, match=r"(?s)graph_mode.*mode"):
                plan(
                    tables,
                    optimization_level=level,
                    compilation__mode="NONE",
                    compilation__graph_mode="PIECEWISE",
                )


def test_H_OPT_02_explicit_values_survive_every_level():
    for level in LEVELS:
        explicit = {
            "compilation.mode": ("NONE", "PIECEWISE"),
            "compilation.graph_mode": ("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"),
            "kernel_config.autotune": (True, False),
            "compilation.pass_config.fuse_rope_kvcache": (True, False),
            **{f"compilation.pass_config.{name}": (False,) for name in FUSIONS},
        }
        for key, values in explicit.items():
            for value in values:
                found = plan(BACKENDS, optimization_level=level.number, **{key.replace(".", "__"): value})
                assert found[key] == value, (level.number, key)
                assert found.decisions[key].origin == "command line"


def test_H_OPT_05_eager_changes_mode_and_graph_mode_and_nothing_else():
    plain, eager = (plan(BACKENDS, enforce_eager=flag).decisions for flag in (False, True))
    changed = {key for key in plain if plain[key].value != eager[key].value}
    names = ("custom_ops", "capture_sizes", "max_capture_size", "splitting_ops", "compile_ranges_endpoints")
    derived = {f"compilation.{name}" for name in names}
    assert changed - derived == {"enforce_eager", "compilation.mode", "compilation.graph_mode"}


def test_eager_with_an_explicit_mode_is_refused_naming_both():
    with pytest.raises(UserError, match=r"--enforce-eager=true.* and .*mode"):
        plan(BACKENDS, enforce_eager=True, compilation__mode="PIECEWISE")


@pytest.mark.parametrize("maximum", [1, 3, 42, 257, 300])
def test_H_OPT_07_the_requested_maximum_is_captured(maximum):
    found = plan(BACKENDS, compilation__max_capture_size=maximum)["compilation.capture_sizes"]
    assert max(found) == maximum
    assert found == sorted(set(found))


def test_H_OPT_07_the_widest_decode_shape_of_a_draft_is_captured():
    assert 42 in capture_sizes(6, 2048, 42, query=7)
    found = capture_sizes(256, 2048, query=5)
    assert len(found) == 57 and {5, 10, 20, 280, 360, 440} <= set(found)


@pytest.mark.parametrize(
    ("seqs", "tokens", "cap", "count", "tail"),
    [
        (1, 2048, 512, 2, [1, 2]),
        (5, 2048, 512, 6, [5, 8, 10]),
        (16, 2048, 512, 7, [24, 32]),
        (256, 2048, 512, 51, [512]),
    ],
)
def test_default_capture_sizes_follow_the_known_grid(seqs, tokens, cap, count, tail):
    found = capture_sizes(seqs, tokens, cap=cap)
    assert len(found) == count
    assert found[-len(tail) :] == tail


def test_scheduler_limits_that_contradict_each_other_name_both():
    with pytest.raises(UserError, match=r"max-num-batched-tokens=4.*max_num_seqs 9"):
        plan(scheduler__max_num_batched_tokens=4, scheduler__max_num_seqs=9)
    with pytest.raises(UserError, match=r"max-num-batched-tokens=64.*max_model_len 256"):
        plan(scheduler__enable_chunked_prefill=False, scheduler__max_num_batched_tokens=64)
    with pytest.raises(UserError, match=r"max-model-len=512.*256"):
        plan(scheduler__max_model_len=512)


def test_blocks_are_a_decision_and_hold_the_longest_sequence_that_nobody_named():
    observed = Observations(blocks=4, space="what is left")
    found = plan(observations=observed)
    assert (found["cache.num_blocks"], found["scheduler.max_model_len"]) == (4, 64)
    assert found.decisions["scheduler.max_model_len"].origin == "derived"
    assert plan(observations=observed, scheduler__max_model_len="auto")["scheduler.max_model_len"] == 64
    kept = plan(observations=observed, scheduler__max_model_len=128)
    assert kept["scheduler.max_model_len"] == 128
    assert any("holds 64 tokens" in line for line in kept.warnings)


def test_defaults_follow_explicit_limits_with_a_reason():
    found = plan(scheduler__max_num_batched_tokens=8)
    assert found["scheduler.max_num_seqs"] == 8
    assert found.decisions["scheduler.max_num_seqs"].origin == "derived"
    assert plan(scheduler__enable_chunked_prefill=False)["scheduler.max_num_batched_tokens"] == 2048


def test_a_dtype_without_arithmetic_is_refused_or_for_a_default_replaced():
    with pytest.raises(UserError, match=r"bfloat16.*Test device computes in float32"):
        plan(model__dtype="bfloat16")
    found = plan(model=dataclasses.replace(MODEL, dtype="bfloat16"))
    assert found["model.dtype"] == "float32"
    assert "no bfloat16" in found.decisions["model.dtype"].reason


def setting(key, value):
    return dataclasses.replace(BACKENDS, settings=lambda profile, facts, level: (Setting(key, value, "platform says"),))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("compilation.mode", "NONE"),
        ("compilation.graph_mode", "PIECEWISE"),
        ("cache.kv_cache_dtype", "float16"),
        ("scheduler.max_model_len", 128),
        ("model.dtype", "float16"),
        ("compilation.pass_config.fuse_rope_kvcache", False),
        ("kernel_config.autotune", False),
    ],
)
def test_a_platform_setting_of_any_key_is_honoured(key, value):
    able = dataclasses.replace(DEVICE, features={*DEVICE.features, "dtype.float16"})
    row = plan(setting(key, value), able).decisions[key]
    assert (row.value, row.origin) == (value, "platform")


def test_eager_wins_over_a_platform_setting_and_keeps_its_own_origin():
    from engine.plan import make_plan, model_facts

    config = {"enforce_eager": Given(True, "environment")}
    tables = setting("compilation.graph_mode", "FULL")
    row = make_plan(DEVICE, model_facts(MODEL), config, tables, Observations()).decisions["compilation.graph_mode"]
    assert (row.value, row.origin) == ("NONE", "environment")


def test_a_value_that_follows_from_another_says_so():
    row = plan(BACKENDS, compilation__mode="NONE").decisions["compilation.graph_mode"]
    assert (row.value, row.origin) == ("FULL_DECODE_ONLY", "derived")
    row = plan(BACKENDS, optimization_level=0, compilation__graph_mode="PIECEWISE").decisions["compilation.mode"]
    assert (row.value, row.origin) == ("PIECEWISE", "derived")


def test_a_platform_setting_nobody_knows_is_a_warning():
    assert any("cache.blok_size" in line for line in plan(setting("cache.blok_size", 4)).warnings)


def test_settings_of_pieces_are_refused_without_a_compiler_and_idle_by_choice():
    for key, value in (("backend", "inductor"), ("compile_sizes", [4]), ("splitting_ops", ["attention"])):
        with pytest.raises(UserError, match="nothing is compiled"):
            plan(**{f"compilation__{key}": value})
        found = plan(compilation__mode="NONE", **{f"compilation__{key}": value})
        assert any(key in line and "no effect" in line for line in found.warnings)


def test_custom_ops_of_an_op_that_does_not_exist_is_a_warning():
    assert any("+nonsense" in line for line in plan(compilation__custom_ops=["all", "+nonsense"]).warnings)


def test_fusion_predicates_see_which_ops_have_a_native_row():
    seen = []

    def when(profile, facts):
        seen.append(facts["native_ops"])
        return Verdict(True, "seen")

    plan(Tables((ROPE_ROW, Kernel("rms_norm", "fast", "a:b")), (FusionOffer("fuse_rope_kvcache", when),)))
    assert seen == [frozenset({"rms_norm"})]


def test_the_hash_follows_what_decides_and_not_the_card():
    other = dataclasses.replace(DEVICE, memory_bytes=1, evidence={"x": "y"})
    assert plan(profile=other).hash == plan().hash
    assert plan(profile=dataclasses.replace(DEVICE, limits={"threads": 3})).hash != plan().hash
    room, more = (plan(observations=Observations(blocks=blocks, space="what is left")) for blocks in (900, 901))
    assert room.hash == more.hash == plan().hash


def test_every_decision_has_an_origin_and_a_reason_and_json_is_stable():
    found = plan()
    assert all(row.origin and row.reason for row in found.decisions.values())
    assert plan().to_json() == found.to_json()
    assert found.hash == plan().hash != plan(optimization_level=0).hash


def test_invariant_5_no_level_takes_away_what_a_lower_one_gave():
    modes = ["NONE", "PIECEWISE", "FULL_AND_PIECEWISE"]
    plans = [plan(BACKENDS, optimization_level=n) for n in range(4)]
    for low, high in itertools.pairwise(plans):
        assert {f.rule for f in low.fusions if f.matched} <= {f.rule for f in high.fusions if f.matched}
        assert modes.index(low["compilation.graph_mode"]) <= modes.index(high["compilation.graph_mode"])


@forall(
    st.dictionaries(st.sampled_from([f"compilation.pass_config.{name}" for name in FUSIONS]), st.booleans()),
    st.integers(0, 3),
)
def test_any_set_of_switches_is_honoured_or_refused_by_name(switches, level):
    from engine.plan import make_plan, model_facts

    given = {key: Given(value, "command line") for key, value in switches.items()}
    try:
        found = make_plan(
            DEVICE, model_facts(MODEL), {**given, "optimization_level": Given(level, "x")}, TABLES, Observations()
        )
    except UserError as error:
        assert any(key.split(".")[-1] in str(error) for key, value in switches.items() if value)
    else:
        assert all(found[key] == value for key, value in switches.items())


def test_planning_imports_no_torch():
    code = "import sys; from tests.profiles import plan; plan(); sys.exit(bool({'torch', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_row_may_not_use_a_reserved_name():
    with pytest.raises(ValueError, match="reserved"):
        dataclasses.replace(ROPE_ROW, name="reference")


def test_sizes_asked_for_are_named_as_they_are_typed():
    with pytest.raises(UserError, match=r"--capture-sizes=4,99999999 \("):
        plan(BACKENDS, compilation__capture_sizes=(4, 99999999))
