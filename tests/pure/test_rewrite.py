"""Finding and replacing patterns in programs."""

import pytest

from engine.fusion import RULES, UNAVAILABLE, all_ops, rewrite
from engine.fusion.fused import external, parse
from engine.levels import FUSIONS
from engine.models.draft import Draft
from engine.program import CacheSpec
from platforms.contract import FusionRule

OPS = all_ops(RULES)
ROPE = next(rule for rule in RULES if rule.name == "fuse_rope_kvcache")


def attention_input(between=None, read_key=False, dims=(4, 4), scales=()):
    draft = Draft()
    q, k, v = (draft.input(name, "float32", "tokens", 8) for name in "qkv")
    table = draft.input("table", "float32", "tokens", 4)
    slots = draft.input("slots", "int64", "tokens")
    cache = draft.cache(CacheSpec("kv", "full", 2, (4, 4), "float32", None, 4), (2, "pool", 4, 2, 4))
    turned, key = draft.call("rotary", q, k, table, into=("q1", "k1"), head_dim=dims[0])
    if between:
        between(draft, turned, key, cache)
    for name in scales:
        draft.weight(name, "float32", (1,), (name,))
    draft.call("kv_write", key, v, cache, slots, *scales, into="kv@1", head_dim=dims[1])
    out = draft.call("add", key if read_key else turned, q, into="out")
    return draft.finish(hidden=out)


def test_a_match_becomes_one_call_with_the_declared_inputs_and_outputs():
    program, matched = rewrite(attention_input(), ROPE, OPS)
    assert matched == 1
    call = program.calls[0]
    assert (call.op, call.inputs, call.outputs) == (
        "rotary_kv_write",
        ("q", "k", "table", "v", "kv", "slots"),
        ("q1", "kv@1"),
    )
    assert call.attributes == {"head_dim": 4}
    assert [c.op for c in program.calls] == ["rotary_kv_write", "add"]


def test_H_FUS_06_scales_of_keys_and_values_go_into_the_fused_call():
    program, matched = rewrite(attention_input(scales=("ks", "vs")), ROPE, OPS)
    assert matched == 1
    assert program.calls[0].inputs == ("q", "k", "table", "v", "kv", "slots", "ks", "vs")
    assert rewrite(attention_input(scales=("ks",)), ROPE, OPS)[1] == 0, "a scale would be lost"


def test_an_inner_value_with_another_reader_is_no_match():
    assert rewrite(attention_input(read_key=True), ROPE, OPS)[1] == 0


def test_an_output_read_before_the_last_call_is_no_match():
    def between(draft, turned, key, cache):
        draft.call("add", turned, turned, into="early")

    assert rewrite(attention_input(between), ROPE, OPS)[1] == 0


def test_a_write_in_between_to_what_a_matched_call_reads_is_no_match():
    def between(draft, turned, key, cache):
        draft.call("kv_write", "v", "v", cache, "slots", into="kv@0", head_dim=4)

    assert rewrite(attention_input(between), ROPE, OPS)[1] == 0


def test_calls_that_disagree_on_an_attribute_are_no_match():
    assert rewrite(attention_input(dims=(4, 2)), ROPE, OPS)[1] == 0


def test_an_unrelated_call_in_between_does_not_hinder():
    def between(draft, turned, key, cache):
        draft.call("add", "v", "v", into="other")

    program, matched = rewrite(attention_input(between), ROPE, OPS)
    assert matched == 1
    assert [c.op for c in program.calls] == ["add", "rotary_kv_write", "add"]


def test_every_name_users_know_is_a_rule_or_says_why_it_is_not():
    assert {rule.name for rule in RULES} | set(UNAVAILABLE) == set(FUSIONS)
    assert not {rule.name for rule in RULES} & set(UNAVAILABLE)


@pytest.mark.parametrize(
    ("pattern", "outputs"),
    [
        (("nothing(x) -> y",), ("y",)),
        (("add(x, y)",), ("y",)),
        (("add(x, y) -> z", "add(z, x) -> z"), ("z",)),
        (("add(x, y) -> z",), ("w",)),
        ((), ()),
        (("linear(x?, w) -> y",), ("y",)),
        (("add(x, y?) -> z",), ("z",)),
        (("linear(x, w, b?) -> y", "add(y, b) -> z"), ("z",)),
        (("linear(x, w, b?) -> y", "linear(y, w, c?) -> z"), ("z",)),
        (("add(x, y) -> b", "linear(x, w, b?) -> z"), ("z",)),
    ],
)
def test_a_malformed_rule_is_refused_with_its_name(pattern, outputs):
    with pytest.raises(ValueError, match="fusion rule mine"):
        parse(FusionRule("mine", "mine", pattern, outputs, 1))


def test_the_fused_op_takes_outside_names_in_order_and_mutates_what_its_parts_mutate():
    op = OPS["qk_norm_rotary_kv_write"]
    rule = next(rule for rule in RULES if rule.op == op.name)
    names = ("q0", "qw", "k0", "kw", "table", "v", "cache", "slots", "k_scale", "v_scale")
    assert op.tensors == external(parse(rule)) == names
    assert op.required == 8
    assert op.attributes == ("eps", "head_dim")
    assert op.mutates == (6,)
    assert op.weights == (1, 3, 8, 9)
