"""Rows that call AITER: what they ask of it, and that they give what the op's reference gives. The library stands in;
that the stand-in declares what the library does, ``tests/pure/test_aiter_record.py`` holds."""

from __future__ import annotations

import sys

import pytest
import torch
import torch.distributed as dist

import kernels_rocm.collective
import kernels_rocm.library
from engine.bind import load_target
from engine.ops.collective import open_group
from engine.ops.compare import as_tuple, with_packed
from platforms.rocm.targets import TARGETS
from tests.aiter_cases import CASES, FNUZ, HEADS, NAMES, OPS, PROFILE, ROWS, facts_of, inputs_of, run
from tests.aiter_stand_ins import install_aiter


@pytest.fixture(autouse=True)
def nothing_remembered():
    """Each test finds the library it installed, and none after it does."""
    yield
    kernels_rocm.library.function.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "aiter"]:
        del sys.modules[name]


@pytest.fixture
def library(monkeypatch, tmp_path):
    """The library stands in, and a group of one rank has the name that programs use."""
    install_aiter(monkeypatch, tmp_path)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    open_group("tp", dist.group.WORLD)
    yield
    kernels_rocm.collective.close()
    open_group("tp", None)
    dist.destroy_process_group()


def strided(x):
    """The same values with a gap between the rows."""
    if x.dim() != 2:
        return x
    wide = x.new_full((len(x), x.shape[1] + 8), 1 if not x.is_floating_point() else float("nan"))
    wide[:, : x.shape[1]] = x
    return wide[:, : x.shape[1]]


@pytest.mark.parametrize("layout", ["contiguous", "H_FUS_08_strided"])
@pytest.mark.parametrize(("op", "sizes", "attributes"), CASES, ids=NAMES)
def test_a_row_gives_what_the_reference_gives(library, op, sizes, attributes, layout):
    row = ROWS[op]
    inputs = inputs_of(op, sizes, attributes)
    facts = facts_of(inputs, attributes)
    for verdict in (row.needs(PROFILE, facts), row.accepts(PROFILE, facts)):
        assert verdict, verdict.reason
    expected = as_tuple(OPS[op].reference(*(x.clone() for x in inputs), **attributes))
    given = [x.clone() for x in inputs]
    if layout != "contiguous":
        given = [x if at in OPS[op].mutates else strided(x) for at, x in enumerate(given)]
    found = run(op, given, attributes)
    assert len(found) == len(expected)
    for got, want in zip(found, expected, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        relative, absolute = OPS[op].bound("bfloat16", str(want.dtype).removeprefix("torch."))
        torch.testing.assert_close(got.double(), want.double(), rtol=2 * relative + 1e-6, atol=2 * absolute + 1e-6)
    for at, (after, before) in enumerate(zip(given, inputs, strict=True)):
        assert at in OPS[op].mutates or torch.equal(after, before), f"input {at} of {op} was written"


def test_every_row_is_run_above():
    assert {op for op, *_ in CASES} == set(ROWS)


@pytest.mark.parametrize(
    "op",
    ["scaled_linear", "moe", "attention", "mla_attention", "rms_norm_quantize_static", "silu_and_mul_quantize_static"],
)
def test_a_step_without_tokens_asks_nothing_of_the_library(monkeypatch, op):
    """A launch of no blocks is an error, and what the library does of it is not said."""
    monkeypatch.setitem(sys.modules, "aiter", None)
    _, sizes, attributes = next(case for case in CASES if case[0] == op)
    inputs = inputs_of(op, sizes, attributes)
    rows = {"moe": (0, 1), "mla_attention": (0, 1)}.get(op, (0,))
    empty = [x[:0] if at in rows else x for at, x in enumerate(inputs)]
    if op.endswith("attention"):
        empty = [torch.zeros_like(x) if x.dtype == torch.int32 else x for x in empty]
    for found in as_tuple(load_target(ROWS[op].target)(*empty, **attributes)):
        assert len(found) == 0


@pytest.mark.parametrize(("op", "sizes", "attributes"), CASES, ids=NAMES)
def test_H_FUS_03_a_weight_of_another_type_is_refused(op, sizes, attributes):
    """A row says yes to types it declares only: the library reads a weight as if it had the activation's type."""
    row, inputs = ROWS[op], inputs_of(op, sizes, attributes)
    for at in OPS[op].weights:
        if at < len(inputs) and inputs[at].dtype == torch.bfloat16:
            mixed = [x.float() if spot == at else x for spot, x in enumerate(inputs)]
            verdict = row.accepts(PROFILE, facts_of(mixed, attributes))
            assert not verdict and "float32" in verdict.reason
    wide = [x.float() if x.dtype == torch.bfloat16 else x for x in inputs]
    result = {"result": "float32"} if op == "scaled_linear" else {}
    assert not row.accepts(PROFILE, facts_of(wide, {**attributes, **result}))


def test_H_FUS_06_scales_of_powers_of_two_are_refused_by_kernels_without_them(library):
    dynamic = [case for case in CASES if "columns" in case[2]]
    assert {op for op, *_ in dynamic} == {op for op in ROWS if op.endswith("_dynamic")}
    for op, sizes, attributes in dynamic:
        wanted = {**attributes, "power_of_two": True}
        inputs = inputs_of(op, sizes, attributes)
        verdict = ROWS[op].accepts(PROFILE, facts_of(inputs, wanted))
        assert not verdict and "powers of two" in verdict.reason
        with pytest.raises(ValueError, match="powers of two"):
            load_target(ROWS[op].target)(*inputs, **wanted)


def test_H_FUS_05_a_scale_divides(library):
    x, weight, scale = torch.ones(1, 8).bfloat16(), torch.ones(8).bfloat16(), torch.tensor([0.5])
    stored = load_target(ROWS["rms_norm_quantize_static"].target)(x, weight, scale, eps=0.0, **FNUZ)
    assert stored.float().tolist() == [[2.0] * 8]
    gated = load_target(ROWS["silu_and_mul_quantize_static"].target)(torch.full((1, 2), 8.0).bfloat16(), scale, **FNUZ)
    assert gated.float().tolist() == [[128.0]]


@pytest.mark.parametrize("tokens", [0, 1, 5])
def test_H_FUS_08_heads_are_normed_where_they_lie(library, tokens):
    """q of a packed qkv: heads of 16 in rows of 3 * 64."""
    packed, weight = torch.randn(tokens, 192).bfloat16(), torch.randn(16).bfloat16()
    found = load_target(ROWS["rms_norm"].target)(packed[:, :64], weight, eps=1e-6)
    expected = OPS["rms_norm"].reference(packed[:, :64].contiguous(), weight, eps=1e-6)
    torch.testing.assert_close(found, expected, rtol=2**-7, atol=0)


def test_H_FUS_02_a_norm_without_a_residual_reads_no_leftovers(library):
    x, weight = torch.randn(3, 64).bfloat16(), torch.randn(64).bfloat16()
    call = load_target(ROWS["all_reduce_rms_norm"].target)
    found = []
    for _ in range(20):
        leftovers = torch.full((4096, 64), float("nan"), dtype=torch.bfloat16)
        del leftovers
        found.append(call(x, weight, group="tp", eps=1e-6))
    normed, total = found[0]
    assert torch.equal(total, x) and normed.isfinite().all()
    assert all(torch.equal(a, normed) and torch.equal(b, total) for a, b in found)


def test_a_communicator_is_made_once_and_given_back(library):
    call = load_target(ROWS["all_reduce_rms_norm"].target)
    for tokens in (4, 90):
        call(torch.ones(tokens, 64).bfloat16(), torch.ones(64).bfloat16(), group="tp", eps=1e-6)
    made = sys.modules["aiter.dist.device_communicators.custom_all_reduce"].CustomAllreduce.made
    assert [(row.max_size, row.closed) for row in made] == [(128 << 20, False)]
    kernels_rocm.collective.close()
    assert made[0].closed


def test_a_group_that_nobody_named_is_told(library):
    with pytest.raises(RuntimeError, match="nobody"):
        call = load_target(ROWS["all_reduce_rms_norm"].target)
        call(torch.ones(4, 64).bfloat16(), torch.ones(64).bfloat16(), group="nobody", eps=1e-6)


def test_experts_keep_their_order_through_what_drops_an_attribute(library):
    """A copy, a view or a move to the device loses ``is_shuffled``, and the library then runs another kernel."""
    _, sizes, attributes = next(case for case in CASES if case[0] == "moe")
    inputs = inputs_of("moe", sizes, attributes)
    packed = with_packed(OPS["moe"], load_target(ROWS["moe"].pack), inputs, attributes)
    copied = [x.clone() for x in packed]
    assert packed[2].is_shuffled and not hasattr(copied[2], "is_shuffled")
    found = load_target(ROWS["moe"].target)(*copied, **attributes)
    expected = OPS["moe"].reference(*inputs, **attributes)
    relative, absolute = OPS["moe"].bound("bfloat16", "bfloat16")
    torch.testing.assert_close(found, expected, rtol=2 * relative, atol=2 * absolute)


def test_a_cache_that_needs_clamping_is_refused(library):
    with pytest.raises(ValueError, match="does not clamp"):
        inputs = inputs_of("rotary_kv_write", HEADS, {"head_dim": 16})
        load_target(ROWS["rotary_kv_write"].target)(*inputs, torch.ones(1), torch.ones(1), head_dim=16)


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
@pytest.mark.parametrize("op", sorted(ROWS))
def test_some_case_of_the_op_suits_the_row_so_that_it_is_compared_before_it_serves(op, target):
    """Otherwise a library without the kernel would be found by the first step of a user."""
    suiting = []
    for case in OPS[op].cases:
        inputs = OPS[op].inputs(case, "bfloat16", torch.Generator().manual_seed(0))
        facts = {**facts_of(inputs, case.attributes), "graph_mode": "FULL"}
        suiting += [case] if ROWS[op].accepts(TARGETS[target], facts) else []
    assert suiting
