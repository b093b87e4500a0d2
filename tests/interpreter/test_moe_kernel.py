"""Grouped experts: loads of every kind, and the routing by itself."""

import pytest
import torch

from engine.ops import Case
from engine.ops.compare import same_bits
from kernels_triton import routing
from tests.interpreter.rows import BY_OP, OPS, call, check, inputs_of

OP, ROW = OPS["moe"], BY_OP["moe"]
PLAIN = {"scoring": "softmax", "renormalize": True, "scaling": 1.0, "groups": 1, "top_groups": 1}


def case(tokens, experts, top_k, hidden=24, inner=20, bias=0, **more):
    sizes = {"tokens": tokens, "hidden": hidden, "inner": inner, "experts": experts, "bias": bias}
    return Case(sizes, {"top_k": top_k, **PLAIN, **more})


@pytest.mark.parametrize("one", [
    case(1, 4, 4), case(7, 5, 2), case(33, 3, 1, 64, 33), case(3, 40, 6, 127, 7, scoring="sigmoid", bias=1),
    case(70, 2, 1, 32, 16),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_odd_sizes_and_loads(one, dtype):
    inputs = inputs_of(OP, one, dtype)
    found = call(ROW, OP, one, inputs)
    check(ROW, OP, one, dtype, inputs, found)
    assert all(same_bits(x, y) for x, y in zip(found, call(ROW, OP, one, inputs), strict=True))


def test_all_tokens_to_one_expert_and_experts_without_tokens():
    one = case(40, 6, 1)
    inputs = list(inputs_of(OP, one, "float32"))
    inputs[1] = torch.zeros_like(inputs[1])
    inputs[1][:, 3] = 5.0
    check(ROW, OP, one, "float32", tuple(inputs), call(ROW, OP, one, tuple(inputs)))


def test_equal_scores_go_to_the_lower_id_and_none_is_chosen_twice():
    attributes = {"top_k": 3, **PLAIN}
    found = routing.route(torch.zeros(5, 7), None, 16, **attributes)
    assert found.ids.tolist() == [[0, 1, 2]] * 5
    torch.testing.assert_close(found.shares, torch.full((5, 3), 1 / 3))
    # More choices than the open group has: the rest comes from closed ones, each once, with a share of its own score.
    found = routing.route(torch.zeros(2, 8), None, 16, **{**attributes, "groups": 4, "top_groups": 1})
    assert all(len(set(row)) == 3 for row in found.ids.tolist())


def test_every_visit_is_computed_once_by_its_expert():
    ids = routing.route(torch.randn(50, 9), None, 16, **{"top_k": 4, **PLAIN})
    seen = []
    for block, owner in enumerate(ids.owner.tolist()):
        if owner < 9:
            begin = int(ids.first[owner]) + (block - int(ids.base[owner])) * 16
            visits = ids.order[begin : min(begin + 16, int(ids.last[owner]))].tolist()
            assert visits and all(int(ids.ids.flatten()[visit]) == owner for visit in visits)
            seen += visits
    assert sorted(seen) == list(range(200))
