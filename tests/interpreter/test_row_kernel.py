"""Norms, gates and quantisation: the row kernel, by itself and by the cases handed to us."""

import itertools

import pytest
import torch

from engine.bind import load_target
from engine.ops import Case
from engine.ops.compare import same_bits
from kernels_triton import activation, norm, quant
from kernels_triton.launch import TILE, recording
from kernels_triton.rows import LIMITS
from tests.interpreter.rows import BY_OP, OPS, call, check, inputs_of

HIDDEN, ROWS = (1, 2, 7, 127, 768, 769, 2049), (1, 7, 33)
BY_ROW = [name for name, row in BY_OP.items() if set(OPS[name].cases[0].sizes) == {"tokens", "hidden"}]
STORAGES = [str(kind).removeprefix("torch.") for kind in LIMITS]


@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("name", BY_ROW)
def test_H_FUS_07_odd_sizes(name, hidden):
    op = OPS[name]
    for at, rows in enumerate(ROWS if hidden < 768 else ROWS[:2]):
        case = Case({"tokens": rows, "hidden": hidden}, op.cases[at % len(op.cases)].attributes)
        inputs = inputs_of(op, case, "float32")
        check(BY_OP[name], op, case, "float32", inputs, call(BY_OP[name], op, case, inputs))


def test_H_FUS_07_thirty_three_rows_of_769_columns():
    op, case = OPS["add_rms_norm_quantize_dynamic"], OPS["add_rms_norm_quantize_dynamic"].cases[2]
    case = Case({"tokens": 33, "hidden": 769}, case.attributes)
    inputs = inputs_of(op, case, "float16")
    check(BY_OP[op.name], op, case, "float16", inputs, call(BY_OP[op.name], op, case, inputs))


def test_H_FUS_08_queries_sliced_out_of_a_packed_tensor():
    packed, weight = torch.randn(5, 3 * 64), torch.randn(16)
    view = packed[:, :64].view(5, 4, 16)
    copy = norm.rms_norm(view.contiguous(), weight, eps=1e-6)
    assert same_bits(norm.rms_norm(view, weight, eps=1e-6), copy)
    assert same_bits(norm.rms_norm(packed[:, :64], weight, eps=1e-6), copy.flatten(1))
    transposed = packed.t().contiguous().t()[:, :64]
    assert same_bits(norm.rms_norm(transposed, weight, eps=1e-6), copy.flatten(1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_H_FUS_01_the_sum_is_rounded_before_it_is_normalised(dtype):
    x, y, weight = torch.randn(7, 768).to(dtype), torch.randn(7, 768).to(dtype), torch.ones(768, dtype=dtype)
    padded, total = norm.add_rms_norm_pad(x, y, weight, eps=1e-6, multiple=256)
    assert same_bits(total, x + y)
    wide = total.float()
    expected = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(dtype)
    assert bool(((padded.float() - expected.float()).abs() <= torch.finfo(dtype).eps * expected.float().abs()).all())
    normed, again = norm.add_rms_norm(x, y, weight, eps=1e-6)
    assert same_bits(again, total) and same_bits(normed, padded)
    _, scales, again = norm.add_rms_norm_quantize_dynamic(
        x, y, weight, eps=1e-6, storage="int8", columns=0, power_of_two=False
    )
    assert same_bits(again, total) and scales.shape == (7, 1)


@pytest.mark.parametrize("storage", STORAGES)
def test_H_FUS_05_a_value_is_divided_by_its_scale(storage):
    x, scale = torch.ones(3, 4), torch.full((1,), 0.5)
    assert quant.quantize_static(x, scale, storage=storage).float().eq(2.0).all()
    normed = norm.rms_norm_quantize_static(x, torch.ones(4), scale, eps=0.0, storage=storage)
    assert normed.float().eq(2.0).all()
    both, total = norm.add_rms_norm_quantize_static(x, x, torch.ones(4), scale, eps=0.0, storage=storage)
    assert both.float().eq(2.0).all() and total.eq(2.0).all()
    for columns, power_of_two in itertools.product((0, 2), (False, True)):
        how = dict(storage=storage, columns=columns, power_of_two=power_of_two)
        for stored, scales in (
            quant.quantize_dynamic(x, **how),
            norm.rms_norm_quantize_dynamic(x, torch.ones(4), eps=0.0, **how),
        ):
            back = stored.float() * scales.repeat_interleave(4 // scales.shape[1], 1)
            torch.testing.assert_close(back, torch.ones(3, 4), rtol=2**-7, atol=0)


def test_H_FUS_06_scales_are_powers_of_two_where_that_was_asked_for():
    x = torch.randn(8, 512)
    how = dict(storage="float8_e4m3fn", columns=128, power_of_two=True)
    _, after_norm = norm.rms_norm_quantize_dynamic(x, torch.ones(512), eps=1e-6, **how)
    _, after_gate = activation.silu_and_mul_quantize_dynamic(torch.cat((x, x), -1), **how)
    for scales in (after_norm, after_gate):
        assert scales.shape == (8, 4)
        assert torch.equal(torch.frexp(scales)[0], torch.full_like(scales, 0.5))


@pytest.mark.parametrize("columns", [0, 3])
def test_integers_are_rounded_to_nearest_even_and_kept_in_range(columns):
    x = torch.tensor([[0.5, 1.5, -2.5, 300.0, -300.0, 126.5]])
    stored = quant.quantize_static(x, torch.ones(1), storage="int8")
    assert stored.tolist() == [[0, 2, -2, 127, -128, 126]]
    found = quant.quantize_dynamic(x, storage="int8", columns=columns, power_of_two=False)
    wanted = OPS["quantize_dynamic"].reference(x, storage="int8", columns=columns, power_of_two=False)
    assert all(same_bits(one, other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize("storage", STORAGES)
def test_quantised_values_equal_the_reference_bit_by_bit(storage):
    x = torch.randn(2, 769) * 3
    x[1] = 0.0
    for columns, power_of_two in ((0, False), (128, True), (100, False)):
        how = dict(storage=storage, columns=columns, power_of_two=power_of_two)
        found, wanted = quant.quantize_dynamic(x, **how), OPS["quantize_dynamic"].reference(x, **how)
        assert all(same_bits(one, other) for one, other in zip(found, wanted, strict=True))


def test_rows_longer_than_a_tile():
    hidden = 2 * TILE + 5
    for name in ("add_rms_norm", "add_rms_norm_quantize_dynamic", "silu_and_mul", "add_rms_norm_pad"):
        op = OPS[name]
        case = Case({"tokens": 2, "hidden": hidden}, op.cases[0].attributes)
        inputs = inputs_of(op, case, "float32")
        check(BY_OP[name], op, case, "float32", inputs, call(BY_OP[name], op, case, inputs))


@pytest.mark.parametrize("sizes", [(7, 5, 2), (1536, 512, 64), (64, 2 * TILE + 16, 0), (TILE + 5, 3, 1)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_two_norms_in_one_launch_have_the_bits_of_two(sizes, dtype):
    x = (torch.randn(3, sum(sizes) + 3) * 3).to(dtype)[:, 1:-2]
    weights = torch.randn(sizes[0]).to(dtype), torch.randn(sizes[1])
    launches = []
    with recording(lambda *launch: launches.append(launch)):
        norm.dual_rms_norm(x, *weights, sizes=sizes, eps=1e-6)
    assert len(launches) == 1
    *found, rest = norm.dual_rms_norm(x, *weights, sizes=sizes, eps=1e-6)
    parts = x.split(sizes, dim=-1)
    assert same_bits(rest, parts[2])
    for got, part, weight in zip(found, parts, weights, strict=False):
        assert same_bits(got, norm.rms_norm(part, weight, eps=1e-6))


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gates_far_from_zero_are_open_or_shut(approximate):
    gate = torch.tensor([[-3e38, -1e20, -1e3, -30.0, -0.0, 0.0, 30.0, 1e3, 1e20, 3e38]])
    found = activation.gelu_and_mul(torch.cat((gate, torch.ones_like(gate)), -1), approximate=approximate)
    assert torch.equal(found, gate.clamp(min=0))


def test_not_a_number_stays_one():
    x = torch.tensor([[1.0, float("nan"), 2.0]])
    stored = quant.quantize_static(x, torch.ones(1), storage="float8_e4m3fn").float()
    assert stored.isnan().tolist() == [[False, True, False]]


def test_H_FUS_03_a_norm_weight_of_another_type_than_the_activations():
    x, y = torch.randn(3, 127).bfloat16(), torch.randn(3, 127).bfloat16()
    weight, scale = torch.randn(127), torch.full((1,), 0.02)
    op = OPS["add_rms_norm_quantize_static"]
    found = norm.add_rms_norm_quantize_static(x, y, weight, scale, eps=1e-6, storage="float8_e4m3fn")
    wanted = op.reference(x, y, weight, scale, eps=1e-6, storage="float8_e4m3fn")
    assert same_bits(found[1], wanted[1])
    torch.testing.assert_close(found[0].float(), wanted[0].float(), rtol=2**-3, atol=2**-9)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("columns, power_of_two", [(0, False), (0, True), (4, True)])
@pytest.mark.parametrize("name", [name for name in BY_ROW if name.endswith("quantize_dynamic")])
def test_the_scale_of_a_run_that_holds_no_number_is_the_references(name, columns, power_of_two, bad):
    op = OPS[name]
    how = dict(storage="int8", columns=columns, power_of_two=power_of_two)
    case = Case({"tokens": 2, "hidden": 8}, {**op.cases[0].attributes, **how})
    x, *rest = inputs_of(op, case, "float32")
    x[0, 1] = bad
    for storage in STORAGES:
        given = {**case.attributes, "storage": storage}
        _, found, *_ = load_target(BY_OP[name].target)(x, *rest, **given)
        _, wanted, *_ = op.reference(x, *rest, **given)
        assert not wanted[0, 0].isfinite() and wanted[1].isfinite().all()
        torch.testing.assert_close(found, wanted, equal_nan=True)


def test_padding_of_a_row_without_a_number_is_zero():
    x = torch.ones(2, 5)
    x[0, 2] = float("nan")
    padded, _ = norm.add_rms_norm_pad(x, torch.ones(2, 5), torch.ones(5), eps=1e-6, multiple=8)
    assert padded[0, :5].isnan().all() and padded[1].isfinite().all()
    assert padded[:, 5:].eq(0).all()
