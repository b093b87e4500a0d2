"""A plan and tensors become a callable: packing, sharing, deleting, caches that come later."""

from dataclasses import replace

import pytest
import torch

from engine.bind import Bound
from engine.errors import UserError
from engine.fusion import RULES, all_ops
from engine.models.draft import Draft
from engine.plan.kernels import Chooser, choose_all
from engine.plan_values import Plan, TokenRange
from engine.program import CacheSpec
from platforms.contract import Kernel, fact
from tests.profiles import DEVICE

OPS = all_ops(RULES)
HERE = __name__
PACKS = []


def pack_turned(weights, attributes):
    PACKS.append("turned")
    return (weights[0].t().contiguous(), *weights[1:])


def linear_turned(x, weight, bias=None):
    return x @ weight if bias is None else x @ weight + bias


def pack_twice(weights, attributes):
    PACKS.append("twice")
    return (weights[0].repeat(1, 2),)


def embedding_twice(ids, table):
    return table[ids][:, : table.shape[1] // 2]


HEAD = Kernel("linear", "turned", f"{HERE}:linear_turned", pack=f"{HERE}:pack_turned")
TABLE = Kernel("embedding", "twice", f"{HERE}:embedding_twice", pack=f"{HERE}:pack_twice")
WIDE = Kernel(
    "linear",
    "turned",
    f"{HERE}:linear_turned",
    accepts=fact("call_shapes", lambda shapes: shapes[0][0] == "rows", "rows"),
    pack=f"{HERE}:pack_turned",
)


def tied():
    """An embedding whose table is the head of two products as well."""
    draft = Draft()
    ids, rows = draft.input("ids", "int64", "tokens"), draft.input("rows", "int64", "rows")
    table = draft.weight("embed", "float32", (10, 4), ("embed",))
    hidden = draft.call("embedding", ids, table, into="hidden")
    every = draft.call("linear", hidden, table, into="every")
    chosen = draft.call("select_rows", hidden, rows, into="chosen")
    return draft.finish(hidden=every, logits=draft.call("linear", chosen, table, into="logits"))


def planned(program, *rows):
    chooser = Chooser(DEVICE, {}, rows, OPS, {}, ("all",), {}, False)
    return Plan(DEVICE, {}, choose_all(program, chooser), (), (TokenRange(1, 64, program, {}),))


def run(program, rows, weights, inputs):
    PACKS.clear()
    return Bound(planned(program, *rows), OPS, rows, weights).run(inputs)


@pytest.mark.parametrize(
    "rows",
    [(), (HEAD,), (TABLE,), (HEAD, TABLE), (WIDE,), (WIDE, TABLE)],
    ids=lambda rows: str([row.op for row in rows]),
)
def test_rows_that_pack_one_weight_each_in_its_own_way_compute_what_the_references_do(rows):
    program, table = tied(), torch.randn(10, 4)
    weights = {"embed": table.clone()}
    inputs = {"ids": torch.tensor([3, 1, 3]), "rows": torch.tensor([2, 0])}
    found = run(program, rows, weights, inputs)
    torch.testing.assert_close(found["hidden"], table[[3, 1, 3]] @ table.t())
    torch.testing.assert_close(found["logits"], table[[3, 3]] @ table.t())
    assert sorted(PACKS) == sorted({row.pack.rpartition("_")[2] for row in rows})
    assert ("embed" in weights) == (len({row.op for row in rows}) < 2 or WIDE in rows)


def test_a_plain_weight_goes_when_its_last_packed_form_is_made_and_not_before():
    draft = Draft()
    x = draft.input("x", "float32", "tokens", 4)
    for name in "ab":
        x = draft.call("linear", x, draft.weight(name, "float32", (4, 4), (name,)), into=f"{name}.out")
    program = draft.finish(logits=x)
    weights = {name: torch.randn(4, 4) for name in "ab"}
    given = torch.randn(2, 4)
    expected = given @ weights["a"].t() @ weights["b"].t()
    found = run(program, (HEAD,), weights, {"x": given})
    torch.testing.assert_close(found["logits"], expected)
    assert weights == {}


def of_rows(facts):
    return 100 if facts["call_shapes"][0][0] == "rows" else 60


def of_columns(facts):
    return facts["call_shapes"][1][1]


def fewer_than_none(facts):
    return -1


def test_workspaces_are_added_up_once_for_rows_that_share_one():
    program, weights = tied(), {"embed": torch.ones(10, 4)}
    shared = replace(HEAD, pack="", workspace=f"{HERE}:of_rows")
    other = Kernel("embedding", "plain", f"{HERE}:embedding_twice", workspace=f"{HERE}:of_columns")
    assert Bound(planned(program, shared, other), OPS, (shared, other), dict(weights)).workspace == 100 + 4
    assert Bound(planned(program), OPS, (), dict(weights)).workspace == 0
    broken = replace(shared, workspace=f"{HERE}:fewer_than_none")
    with pytest.raises(UserError, match=r"linear/turned: workspace .* gave -1, not a number of bytes"):
        Bound(planned(program, broken), OPS, (broken,), dict(weights))


def with_cache():
    draft = Draft()
    k, v, slots = (
        draft.input(n, t, "tokens", *s)
        for n, t, s in (("k", "float32", (4,)), ("v", "float32", (4,)), ("slots", "int64", ()))
    )
    cache = draft.cache(CacheSpec("kv", "full", 2, (2, 2), "float32", None, 3), (2, "pool", 3, 2, 2))
    written = draft.call("kv_write", k, v, cache, slots, into="kv@1", head_dim=2)
    return draft.finish(logits=draft.call("add", k, v, into="sum"), state=written)


def test_caches_are_attached_later_and_keep_what_steps_write():
    bound = Bound(planned(with_cache()), OPS, (), {})
    cache = torch.zeros(2, 2, 3, 2, 2)
    bound.attach({"kv": cache})
    for at in (1, 5):
        bound.run({"k": torch.full((1, 4), float(at)), "v": torch.ones(1, 4), "slots": torch.tensor([at])})
    assert cache.view(2, 6, 4)[0, :, 0].tolist() == [0, 1, 0, 0, 0, 5]


@pytest.mark.parametrize("names", [[], ["kv", "more"], ["other"]], ids=str)
def test_other_caches_than_the_programs_are_refused(names):
    with pytest.raises(ValueError, match=r"the program has \['kv'\]"):
        Bound(planned(with_cache()), OPS, (), {}).attach(dict.fromkeys(names))
