"""A plugin that gives a plan something it cannot rely on: one message that names the plugin, or a recorded no."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from toy_plans import ABLE, KERNELS, PROFILE, ToyPlugin, toy_model

from engine.config import collect
from engine.errors import UserError
from engine.plan import Observations, Plan, make_plan, model_facts, plan_for
from platforms.contract import FusionOffer, FusionRule, Kernel, Setting, Verdict, always

ASKED = "-cc.pass_config.fuse_rope_kvcache=true"
PLACES = toy_model().num_layers


def plan(*words: str, **members: Any) -> Plan:
    """``members``: what the plugin answers with, by member."""

    def answering(answer: Any) -> Callable[..., Any]:
        return lambda *asked: answer

    plugin = type("Stranger", (ToyPlugin,), {name: answering(answer) for name, answer in members.items()})()
    return plan_for(plugin, PROFILE, toy_model(), collect(words, {}).given, environment={})


def raises(profile, facts):
    raise RuntimeError("boom")


def leaves(profile, facts):
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (raises, "its limit raised RuntimeError: boom"),
        (leaves, "its limit raised SystemExit"),
        (lambda profile, facts: None, "its limit is None"),
        (lambda profile, facts: "12", "its limit is '12'"),
        (lambda profile, facts: 12.5, "its limit is 12.5"),
        (lambda profile, facts: True, "its limit is True"),
        (lambda profile, facts: 0, "no step is small enough"),
        (lambda profile, facts: -5, "no step is small enough"),
        (7, "its limit raised TypeError"),
    ],
)
def test_an_offer_whose_limit_is_no_count_of_tokens_is_a_no(tokens, said):
    offers = (FusionOffer("fuse_rope_kvcache", always("y"), tokens),)
    report = next(row for row in plan(fusions=offers).fusions if row.rule == "fuse_rope_kvcache")
    assert (report.eligible, report.matched) == (False, 0) and said in report.reason
    with pytest.raises(UserError, match="fuse_rope_kvcache=true") as error:
        plan(ASKED, fusions=offers)
    assert said in str(error.value)


def test_a_limit_above_every_step_is_none():
    found = plan(fusions=(FusionOffer("fuse_rope_kvcache", always("y"), lambda profile, facts: 10**30),))
    assert [(one.start, one.end) for one in found.ranges] == [(1, found["scheduler.max_num_batched_tokens"])]


def test_a_rule_hidden_in_small_steps_by_a_wider_one_still_acts_in_larger_ones():
    """Its limit ends a range although it rewrites nothing in the first."""
    wide = FusionRule("wide", "norm_linear", ("rms_norm(x, w) -> n", "linear(n, m) -> y"), ("y",), 1)
    narrow = FusionRule("narrow", "my_norm", ("rms_norm(x, w) -> n",), ("n",), 1)
    rows = (*KERNELS, Kernel("norm_linear", "own", "a:b"), Kernel("my_norm", "own", "a:b"))
    offers = (
        FusionOffer("wide", always("y"), lambda profile, facts: 100),
        FusionOffer("narrow", always("y"), lambda profile, facts: 1000),
    )
    found = plan(kernels=rows, fusions=(wide, narrow, *offers))
    assert [(one.start, one.end) for one in found.ranges] == [(1, 100), (101, 1000), (1001, 2048)]
    acting = [{rule for rule, count in one.matched.items() if count} for one in found.ranges]
    assert {"wide"} <= acting[0] and acting[1:] == [{"narrow"}, set()]
    assert all(low.program != high.program for low, high in pairwise(found.ranges))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ((Kernel("rms_norm", "q", "a:b", priority="high"),), "rms_norm/q is 'high'"),
        ((Kernel("attention", "q", "a:b", graph_batches="sometimes"),), "attention/q is 'sometimes'"),
        ((Kernel("rms_norm", "q", "a:b"), Kernel("rms_norm", "q", "a:c", priority=2)), "two rows are called rms_norm"),
    ],
)
def test_a_row_that_nothing_can_be_decided_by(rows, said):
    with pytest.raises(UserError, match="platform toy: kernels") as error:
        plan(kernels=rows)
    assert said in str(error.value)


@pytest.mark.parametrize("name", ["rms_norm", "rotary_kv_write"])
def test_rows_that_tie_are_an_error_that_a_pin_settles(name):
    rows = tuple(Kernel(name, row, "a:b", priority=1) for row in ("p", "q"))
    with pytest.raises(UserError, match=f"p and q of {name} share priority 1"):
        plan(kernels=rows)
    assert {row.chosen for row in plan("--kernel", f"{name}=q", kernels=rows).kernels if row.op == name} == {"q"}


@pytest.mark.parametrize("field", ["needs", "accepts"])
@pytest.mark.parametrize("answer", [raises, leaves, lambda profile, facts: True, 5])
def test_a_predicate_of_a_row_that_breaks_is_a_recorded_no(field, answer):
    found = plan(kernels=(Kernel("rms_norm", "q", "a:b", **{field: answer}),))
    row = next(row for row in found.kernels if row.op == "rms_norm")
    assert row.chosen == "reference" and "its predicate" in dict(row.considered)["q"].reason


def test_a_row_is_asked_about_every_kind_of_call():
    """A predicate may look at the call: rows of one op then serve some of its calls."""

    def narrow(profile, facts):
        return Verdict(facts["call_shapes"][1] == (64, 64), f"weights {facts['call_shapes'][1]}")

    found = plan(kernels=(Kernel("linear", "square", "a:b", accepts=narrow),))
    chosen = {row.call.split()[1]: row.chosen for row in found.kernels if row.op == "linear"}
    assert chosen.pop("float32[64,64]") == "square" and set(chosen.values()) == {"reference"}


RULE = ("silu_and_mul(x) -> n",)


def own(name="mine", op="mine_op", pattern=RULE, outputs=("n",), level=1, cases=()):
    return FusionRule(name, op, pattern, outputs, level, cases=cases)


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ((own(pattern=list(RULE)),), "pattern must be a tuple"),
        ((own(outputs="n"),), "outputs must be a tuple"),
        ((own(outputs=()),), "outputs () are not all made"),
        ((own(outputs=("n", "n")),), "once each"),
        ((own(op="linear"),), "its op linear exists already"),
        ((own(op="rotary_kv_write"),), "its op rotary_kv_write exists already"),
        ((own(), own("yours")), "fusion rule yours: its op mine_op exists already"),
        ((own(), own(op="other", level=2)), "level 2, but 1 under the same name"),
        ((own("fuse_norm_quant", level=3),), "level 3, but 1 under the same name"),
        ((own("enable_sp"),), "level 1, but None under the same name"),
        ((own(level=7),), "level 7; the levels are 0, 1, 2, 3"),
        ((own(level="1"),), "level '1'"),
        ((own("mine-too"),), "words of letters"),
        ((own("rope_kvcache_max_tokens"),), "a setting beside the switches"),
        ((own(pattern=("rms_norm(x) -> n",)),), "rms_norm takes x, weight"),
        ((own(cases=(("tokens", 1),)),), "cases must be tuples of (name, value) pairs"),
        ((own(cases=[(("tokens", 1),)]),), "cases must be tuples of (name, value) pairs"),
        ((own(cases=((("tokens", [1]), ("hidden", 2)),)),), "cases must be tuples of (name, value) pairs"),
        ((own(cases=((("tokens", 1),),)),), "needs hidden, tokens"),
        ((own(cases=((("tokens", 1), ("hidden", "two")),)),), "sizes being whole numbers"),
        ((own(cases=((("tokens", 1), ("hidden", 2), ("width", 3)),)),), "needs hidden, tokens"),
        ((own(pattern=("rms_norm(m, w) -> n", "linear(n, v) -> m"), outputs=("m",)),), "read before"),
        ((FusionOffer("mine", always("y")), FusionOffer("mine", always("z"))), "two offers for mine"),
    ],
)
def test_rules_that_do_not_fit_together(rules, said):
    with pytest.raises(UserError, match="platform toy: fusions") as error:
        plan(fusions=rules)
    assert said in str(error.value)


def test_two_rules_of_one_name_and_level_are_one_switch():
    rules = (own(), own(op="my_norm", pattern=("rms_norm(x, w) -> n",)))
    rows = (Kernel("mine_op", "own", "a:b"), Kernel("my_norm", "own", "a:b"))
    offers = (FusionOffer("mine", always("y")),)
    found = plan(kernels=rows, fusions=(*rules, *offers))
    assert [row.matched for row in found.fusions if row.rule == "mine"] == [PLACES + 2 * PLACES + 1]
    off = plan("-cc.pass_config.mine=false", kernels=rows, fusions=(*rules, *offers))
    assert [(row.matched, row.origin) for row in off.fusions if row.rule == "mine"] == [(0, "command line")]


def test_an_offer_for_a_fusion_that_does_not_exist_is_a_warning():
    assert any("fuse_nothing" in line for line in plan(fusions=(FusionOffer("fuse_nothing", always("y")),)).warnings)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("compilation.graph_mode", "bogus", "wants one of NONE"),
        ("compilation.mode", "bogus", "wants one of NONE"),
        ("compilation.custom_ops", ("all", "none"), "both all and none"),
        ("compilation.capture_cap", 0, "from 1 on"),
        ("cache.block_size", 0, "from 1 on"),
        ("cache.block_size", None, "from 1 on"),
        ("cache.kv_cache_dtype", "float8", "wants one of"),
        ("cache.gpu_memory_utilization", 5, "at most 1"),
        ("scheduler.max_num_seqs", "many", "whole number"),
        ("model.dtype", "tiny", "wants one of"),
    ],
)
def test_a_setting_that_no_user_could_give(key, value, said):
    with pytest.raises(UserError, match=f"platform toy: settings.*{key}") as error:
        plan(settings=(Setting(key, value, "why"),))
    assert said in str(error.value)


def test_two_settings_of_one_key():
    with pytest.raises(UserError, match=r"cache\.block_size twice"):
        plan(settings=(Setting("cache.block_size", 16, "a"), Setting("cache.block_size", 32, "b")))


@pytest.mark.parametrize(
    ("key", "value"),
    [("compilation.graph_mode", "full"), ("cache.block_size", "32"), ("compilation.custom_ops", "all")],
)
def test_a_setting_is_read_as_a_user_s_value_would_be(key, value):
    found = plan(settings=(Setting(key, value, "why"),))
    assert found[key] == {"full": "NONE", "32": 32, "all": ["all"]}[value]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("optimization_level", 0),
        ("enforce_eager", True),
        ("batch_invariant", True),
        ("kernels", "reference"),
        ("kernel_pins", {"rms_norm": "old"}),
        ("parallel.tensor_parallel_size", 2),
        ("compilation.capture_sizes", (1, 2)),
        ("compilation.compile_ranges_endpoints", (64,)),
        ("compilation.pass_config.allreduce_max_size_mb", 2.0),
        ("server.port", 99),
    ],
)
def test_what_only_a_user_decides_a_platform_does_not(key, value):
    """Its predicates and settings are asked with the user's answer, so that another one would be half used."""
    found = plan(settings=(Setting(key, value, "why"),))
    assert any(key in line and "not used" in line for line in found.warnings)
    plain = plan(settings=())
    assert found.hash == plain.hash and found.decisions.get(key) == plain.decisions.get(key)


def test_a_setting_that_the_device_cannot_serve_is_downgraded():
    found = plan(settings=(Setting("model.dtype", "float16", "halves"),))
    assert (found["model.dtype"], found.decisions["model.dtype"].origin) == ("float32", "derived")
    assert "no float16" in found.decisions["model.dtype"].reason


def able(*words: str, settings: tuple[Setting, ...] = (), **attention: Any) -> Plan:
    """On a device that compiles and captures, with an attention row that declares ``attention``."""
    rows = (*(row for row in KERNELS if row.op != "attention"), Kernel("attention", "paged", "a:b", **attention))
    tables = replace(ABLE, kernels=rows, settings=lambda *asked: settings)
    return make_plan(PROFILE, model_facts(toy_model()), collect(words, {}).given, tables, Observations())


@pytest.mark.parametrize("names", [(), ("rms_norm",)])
def test_a_user_s_graph_mode_wins_over_where_a_platform_would_cut(names):
    found = able("-cc.graph_mode=PIECEWISE", settings=(Setting("compilation.splitting_ops", names, "why"),))
    assert (found["compilation.graph_mode"], found["compilation.splitting_ops"]) == ("PIECEWISE", ["attention"])
    assert "graph_mode=PIECEWISE" in found.decisions["compilation.splitting_ops"].reason


@pytest.mark.parametrize(
    ("attention", "mode"),
    [
        ({"graph_batches": "single"}, "FULL_AND_PIECEWISE"),
        ({"graph_batches": "uniform"}, "FULL_AND_PIECEWISE"),
        ({"graph_safe": False}, "PIECEWISE"),
        ({}, "FULL"),
    ],
)
def test_a_platform_s_graph_mode_is_held_to_what_its_attention_can(attention, mode):
    found = able(settings=(Setting("compilation.graph_mode", "FULL", "why"),), **attention)
    row = found.decisions["compilation.graph_mode"]
    assert (row.value, row.origin) == (mode, "platform" if mode == "FULL" else "derived")
    assert mode == "FULL" or ("why asks for FULL" in row.reason and "attention" in row.reason)
