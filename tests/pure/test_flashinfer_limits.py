"""What rows of FlashInfer with a step to prepare accept, at the edges of what the library's kernels are made for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels_cuda.manifest import KERNELS
from platforms.contract import Verdict
from platforms.cuda.targets import TARGETS

ROWS = {row.name: row for row in KERNELS if row.op == "attention" and row.name.startswith("flashinfer")}
HALF, STORED = "bfloat16", "float8_e4m3fn"


def call(dim=128, page=16, heads=32, kv_heads=8, dtype=HALF, cache=HALF, scales=0, **more):
    """Facts of a call of ``attention``."""
    shapes = (("tokens", heads * dim), (2, "pool", page, kv_heads, dim), ("requests", "blocks"), ("requests+1",))
    dtypes = (dtype, cache, "int32", "int32", "int32", *("float32",) * scales)
    sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": dim, "scale": 0.1, "window": None, "softcap": 0.0}
    facts = {"call_shapes": (*shapes, ("requests",), *((1,),) * scales), "call_dtypes": dtypes, "call_dtype": dtype}
    return {**facts, **sizes, **more}


def serves(name, target, **facts):
    row, profile = ROWS[name], TARGETS[target]
    return bool(row.needs(profile, facts)) and bool(row.accepts(profile, call(**facts)))


def test_each_row_has_its_architectures_and_the_wrapper_serves_all():
    found = {name: {target for target in TARGETS if serves(name, target)} for name in ROWS}
    everywhere = {target for target in TARGETS if "flashinfer" in TARGETS[target].libraries}
    assert found == {
        "flashinfer": everywhere,
        "flashinfer_xqa": {"sm_90", "sm_120"},
        "flashinfer_trtllm": {"sm_100", "sm_103"},
    }
    assert len({row.priority for row in ROWS.values()}) == len(ROWS), "equal ones that both say yes are an error"
    assert all(row.prepare and row.graph_batches == "single" and row.graph_safe for row in ROWS.values())


@pytest.mark.parametrize(
    ("change", "served"),
    [
        ({}, {"flashinfer", "flashinfer_xqa"}),
        ({"dtype": "float16", "cache": "float16"}, {"flashinfer", "flashinfer_xqa"}),
        ({"dtype": "float32", "cache": "float32"}, set()),
        ({"cache": "float16"}, set()),
        ({"dim": 96}, set()),
        ({"dim": 256}, {"flashinfer", "flashinfer_xqa"}),
        ({"dim": 512}, set()),
        ({"page": 8}, set()),
        ({"page": 24}, set()),
        ({"page": 64}, {"flashinfer", "flashinfer_xqa"}),
        ({"page": 128}, {"flashinfer_xqa"}),
        ({"heads": 40, "kv_heads": 16}, set()),
        ({"heads": 16, "kv_heads": 1}, {"flashinfer", "flashinfer_xqa"}),
        ({"heads": 17, "kv_heads": 1}, {"flashinfer"}),
        ({"window": 128}, {"flashinfer", "flashinfer_xqa"}),
        ({"window": 0}, set()),
        ({"softcap": 30.0}, {"flashinfer"}),
        ({"cache": STORED, "scales": 2}, {"flashinfer", "flashinfer_xqa"}),
        ({"cache": STORED}, set()),
        ({"scales": 2}, set()),
        ({"cache": "float8_e4m3fnuz", "scales": 2}, set()),
        ({"mode": "STOCK_TORCH_COMPILE"}, set()),
        ({"mode": "DYNAMO_TRACE_ONCE"}, set()),
        ({"mode": "PIECEWISE"}, {"flashinfer", "flashinfer_xqa"}),
    ],
    ids=str,
)
def test_limits_at_their_edges(change, served):
    assert {name for name in ROWS if serves(name, "sm_90", **change)} == served


def test_modes_that_call_rows_while_they_trace_are_those_of_the_engine():
    from engine.plan.backend import WHOLE
    from kernels_cuda import accepts

    assert set(accepts.WHOLE) == set(WHOLE)


def test_a_stored_cache_is_refused_where_it_fails():
    """No 8-bit floats; garbage on one family; 16-bit queries beside it silently wrong on another's own kernels."""
    stored = {"cache": STORED, "scales": 2}
    assert [target for target in TARGETS if serves("flashinfer", target, **stored)] == [
        "sm_89",
        "sm_90",
        "sm_100",
        "sm_103",
    ]
    assert not serves("flashinfer_xqa", "sm_120", **stored) and not serves("flashinfer_trtllm", "sm_100", **stored)


def test_an_invariant_batch_takes_none_of_them():
    """How a row is split over the device depends on its neighbours."""
    assert not any(row.batch_invariant for row in ROWS.values())


PRODUCT = next(row for row in KERNELS if row.op == "scaled_linear" and row.name == "flashinfer")


def product(out=256, width=512, groups=4, block=(128, 128), result=HALF, stored=STORED, bias=()):
    shapes = (("tokens", width), ("tokens", groups), (out, width), (-(-out // 128), groups), *((out,) for _ in bias))
    dtypes = (stored, "float32", stored, "float32", *bias)
    return {"call_shapes": shapes, "call_dtypes": dtypes, "call_dtype": stored, "result": result, "block": block}


def test_products_by_blocks_where_the_library_has_them():
    found = [target for target in TARGETS if PRODUCT.needs(TARGETS[target], {})]
    assert found == ["sm_100", "sm_103", "sm_120"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"result": "float16"}, True),
        ({"bias": (HALF,)}, True),
        ({"result": "float32"}, False),
        ({"bias": ("float32",)}, False),
        ({"out": 192}, False),
        ({"width": 500}, False),
        ({"groups": 1}, False),
        ({"block": None}, False),
        ({"block": (128, 64)}, False),
        ({"stored": "int8"}, False),
        ({"stored": "float8_e4m3fnuz"}, False),
    ],
    ids=str,
)
def test_products_are_of_whole_blocks(change, expected):
    assert bool(PRODUCT.accepts(TARGETS["sm_100"], product(**change))) is expected


ROWWISE = next(row for row in KERNELS if row.op == "scaled_linear" and row.name == "flashinfer_prims")


def test_products_by_rows_stand_behind_our_own_and_need_one_library_more():
    own = [row for row in KERNELS if row.op == "scaled_linear" and row.name.startswith("triton") and row.priority > 0]
    assert 0 <= ROWWISE.priority < min(row.priority for row in own)
    assert not [target for target in TARGETS if ROWWISE.needs(TARGETS[target], {})]
    for version, expected in (("4.7.9", set()), ("4.8.1", {"sm_100", "sm_103"})):
        profiles = {
            target: replace(profile, libraries={**profile.libraries, "cutlass_dsl": version})
            for target, profile in TARGETS.items()
        }
        assert {target for target, profile in profiles.items() if ROWWISE.needs(profile, {})} == expected


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"one": True}, True),
        ({"bias": (HALF,)}, True),
        ({"out": 33}, True),
        ({"result": "float16"}, False),
        ({"bias": ("float32",)}, False),
        ({"width": 500}, False),
        ({"width": 576}, False),
        ({"block": (128, 128)}, False),
        ({"stored": "int8"}, False),
        ({"stored": "float8_e4m3fnuz"}, False),
    ],
    ids=str,
)
def test_products_by_rows(change, expected):
    change = dict(change)
    facts = product(**{"block": None, **{name: x for name, x in change.items() if name != "one"}})
    x, _, weight, _, *bias = facts["call_shapes"]
    scale = (1,) if change.get("one") else ("tokens", 1)
    facts["call_shapes"] = (x, scale, weight, (weight[0],), *bias)
    assert bool(ROWWISE.accepts(TARGETS["sm_100"], facts)) is expected


DIMS = st.one_of(st.sampled_from(["tokens", 0, 1, 16, 64, 128]), st.none())
FACTS = st.fixed_dictionaries(
    {},
    optional={
        "call_shapes": st.lists(st.lists(DIMS, max_size=6).map(tuple), max_size=9).map(tuple),
        "call_dtypes": st.lists(st.sampled_from([HALF, "float32", "int32", STORED]), max_size=9).map(tuple),
        "heads": st.sampled_from([None, 0, 3, 32]),
        "kv_heads": st.sampled_from([None, 0, 8]),
        "head_dim": st.sampled_from([None, 64, 100]),
        "window": st.sampled_from([None, -1, 5]),
        "softcap": st.sampled_from([0.0, 50.0]),
        "mode": st.sampled_from(["NONE", "STOCK_TORCH_COMPILE"]),
    },
)


@settings(max_examples=60, deadline=None)
@given(FACTS)
def test_rows_answer_whatever_they_are_asked(facts):
    for profile in (*TARGETS.values(), replace(TARGETS["sm_90"], limits={}, libraries={})):
        for row in (*ROWS.values(), PRODUCT, ROWWISE):
            for verdict in (row.needs(profile, facts), row.accepts(profile, facts)):
                assert type(verdict) is Verdict and verdict.reason
