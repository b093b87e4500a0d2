"""Compiled kernels of the host that go once over their rows: against references, each other, and themselves."""

import threading

import pytest
import torch

from engine.bind import load_target
from engine.fusion.catalog import RULES
from engine.fusion.fused import all_ops
from engine.ops import Case
from engine.ops.compare import as_tuple, difference, name_of, same_bits, truth
from kernels_cpu.library import library, open_library
from kernels_cpu.native import gate, norm, quant, select
from kernels_cpu.record import Recorder, call, recording
from kernels_cpu.rows.small import ROWS
from platforms.contract import DeviceError
from platforms.cpu.compilers import KERNELS
from platforms.cpu.fusions import OFFERS
from platforms.cpu.plugin import CpuPlugin
from platforms.fusions import ADD_NORM

OPS = all_ops((*RULES, ADD_NORM))
INT8 = {"storage": "int8", "columns": 32, "power_of_two": False}
RUNS = [(0, False), (1, False), (7, True), (32, False), (32, True), (64, False), (1000, False)]
SHAPES = [(1, 576), (2, 1), (3, 31), (5, 33), (16, 100), (130, 160)]


@pytest.fixture(scope="module", autouse=True)
def runtime():
    before = torch.get_num_threads()
    opened = CpuPlugin().open(0)
    assert KERNELS in opened.profile.features, opened.profile.evidence[f"features.{KERNELS}"]
    yield opened
    torch.set_num_threads(before)


def made(*shape, seed=0, apart=0):
    """Values of mixed sizes, the rows ``apart`` elements of NaN away from each other."""
    rng = torch.Generator().manual_seed(seed)
    wide = torch.full((shape[0], shape[1] + apart), torch.nan)
    found = wide[:, apart // 2 : apart // 2 + shape[1]]
    return found.copy_(torch.randn(shape, generator=rng) * 10 ** torch.empty(shape).uniform_(-3, 3, generator=rng))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.op)
def test_a_row_is_within_its_ops_bound_of_the_reference(row):
    op, function = OPS[row.op], load_target(row.target)
    for case in op.cases:
        if "storage" in case.attributes:
            case = Case(case.sizes, {**case.attributes, "storage": "int8"})
        inputs = op.inputs(case, "float32", torch.Generator().manual_seed(7))
        wanted = truth(op, inputs, case.attributes)
        for found, expected in zip(as_tuple(function(*inputs, **case.attributes)), wanted, strict=True):
            assert not difference(found, expected, op.bound("float32", name_of(found.dtype)), case)


@pytest.mark.parametrize("apart", [0, 24])
@pytest.mark.parametrize("shape", SHAPES)
def test_quantised_values_and_scales_are_the_references_bit_for_bit(shape, apart):
    x = made(*shape, apart=apart)
    for columns, power in RUNS:
        attributes = {**INT8, "columns": columns, "power_of_two": power}
        wanted = OPS["quantize_dynamic"].reference(x, **attributes)
        for found, expected in zip(quant.quantize_dynamic(x, **attributes), wanted, strict=True):
            assert same_bits(found, expected)
    for scale in (torch.tensor([0.037]), torch.tensor([1e-39]), torch.tensor([3e38])):
        wanted = OPS["quantize_static"].reference(x, scale, storage="int8")
        assert same_bits(quant.quantize_static(x, scale, storage="int8"), wanted)


def test_ties_go_to_even_and_what_lies_beyond_is_the_limit():
    x = torch.tensor([[127.0, 0.5, 1.5, -2.5, 126.5, *range(27)]])
    found, scales = quant.quantize_dynamic(x, **INT8)
    assert scales.tolist() == [[1.0]] and found[0, :5].tolist() == [127, 0, 2, -2, 126]
    far = torch.tensor([[1e30, -1e30, torch.inf, -torch.inf, 127.5, -128.5, 0.0]])
    found = quant.quantize_static(far, torch.ones(1), storage="int8")
    assert found.tolist() == [[127, -128, 127, -128, 127, -128, 0]]


@pytest.mark.parametrize("width", [5, 32, 100])
def test_a_run_with_nan_has_a_scale_of_nan_and_no_other_run_has(width):
    for place in range(width):
        for bad in (torch.nan, -torch.nan):
            x = torch.ones(3, width)
            x[1, place] = bad
            _, scales = quant.quantize_dynamic(x, **INT8)
            expected = torch.zeros_like(scales, dtype=torch.bool)
            expected[1, place // 32] = True
            assert torch.equal(scales.isnan(), expected)
    zeros, scales = quant.quantize_dynamic(torch.zeros(2, width), **INT8)
    assert not zeros.any() and (scales > 0).all()


@pytest.mark.parametrize("apart", [0, 24])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_fused_row_gives_the_bits_of_those_it_stands_for(shape, apart):
    x, y, weight = made(*shape, apart=apart), made(*shape, seed=1, apart=apart), made(1, shape[1], seed=2)[0]
    scale = torch.tensor([0.05])
    total = norm.add(x, y)
    normed, plain = norm.rms_norm(total, weight, eps=1e-5), norm.rms_norm(x, weight, eps=1e-5)
    assert same_bits(total, x + y)
    _alike(norm.add_rms_norm(x, y, weight, eps=1e-5), (normed, total))
    by = {"storage": "int8"}
    stored = quant.quantize_static(normed, scale, **by)
    _alike(norm.add_rms_norm_quantize_static(x, y, weight, scale, eps=1e-5, **by), (stored, total))
    stored = quant.quantize_static(plain, scale, **by)
    _alike((norm.rms_norm_quantize_static(x, weight, scale, eps=1e-5, **by),), (stored,))
    for columns, power in RUNS:
        runs = {**INT8, "columns": columns, "power_of_two": power}
        wanted = (*quant.quantize_dynamic(normed, **runs), total)
        _alike(norm.add_rms_norm_quantize_dynamic(x, y, weight, eps=1e-5, **runs), wanted)
        wanted = quant.quantize_dynamic(plain, **runs)
        _alike(norm.rms_norm_quantize_dynamic(x, weight, eps=1e-5, **runs), wanted)


@pytest.mark.parametrize("apart", [0, 24])
@pytest.mark.parametrize("width", [1, 31, 160, 513, 1536])
@pytest.mark.parametrize("kind", ["silu", "tanh", "none"])
def test_a_fused_gate_gives_the_bits_of_those_it_stands_for(kind, width, apart):
    x, scale = made(3, 2 * width, apart=apart), torch.tensor([0.05])
    name, more = ("silu", {}) if kind == "silu" else ("gelu", {"approximate": kind})
    product = getattr(gate, f"{name}_and_mul")(x, **more)
    stored = getattr(gate, f"{name}_and_mul_quantize_static")(x, scale, storage="int8", **more)
    _alike((stored,), (quant.quantize_static(product, scale, storage="int8"),))
    for columns, power in RUNS:
        runs = {**INT8, "columns": columns, "power_of_two": power}
        found = getattr(gate, f"{name}_and_mul_quantize_dynamic")(x, **runs, **more)
        _alike(found, quant.quantize_dynamic(product, **runs))


def _alike(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        assert same_bits(one, other)


@pytest.mark.parametrize("op", ["silu_and_mul", "gelu_and_mul"])
def test_gates_far_from_zero_are_neither_nan_nor_wrong(op):
    far = torch.tensor([0.0, -0.0, 1e-30, 3.0, -3.0, 20.0, -20.0, 88.0, -88.0, -104.0, 500.0, -500.0, 1e20, -1e20])
    for attributes in {"silu_and_mul": [{}]}.get(op, [{"approximate": "tanh"}, {"approximate": "none"}]):
        x = torch.cat((far, torch.full_like(far, 2.0)))[None]
        found = getattr(gate, op)(x, **attributes)
        (expected,) = truth(OPS[op], (x,), attributes)
        assert not difference(found, expected, (2e-5, 1e-6), op)
        nan = getattr(gate, op)(torch.tensor([[torch.nan, 1.0]]), **attributes)
        assert nan.isnan().all()


def test_norms_of_heads_are_those_of_each_head():
    x, weight = made(5, 4 * 48, apart=16), made(1, 48, seed=2)[0]
    found = norm.rms_norm(x, weight, eps=1e-6)
    alone = [norm.rms_norm(x[:, at : at + 48], weight, eps=1e-6) for at in range(0, 192, 48)]
    assert same_bits(found, torch.cat(alone, dim=1))
    wanted = OPS["rms_norm"].reference(x, weight, eps=1e-6)
    assert not difference(found, wanted, OPS["rms_norm"].bound("float32", "float32"), "heads")


def _everything(x, y, weight):
    runs = {**INT8}
    return (
        norm.add(x, y),
        norm.rms_norm(x, weight, eps=1e-5),
        *norm.add_rms_norm_quantize_dynamic(x, y, weight, eps=1e-5, **runs),
        gate.silu_and_mul(x),
        gate.gelu_and_mul(x, approximate="tanh"),
        gate.gelu_and_mul(x, approximate="none"),
        *gate.silu_and_mul_quantize_dynamic(x, **runs),
        *quant.quantize_dynamic(x, **runs),
    )


@pytest.mark.parametrize("width", [100, 1152])
def test_results_depend_on_neither_threads_nor_neighbours(width, runtime):
    x, y, weight = made(37, width), made(37, width, seed=1), made(1, width, seed=2)[0]
    wanted = _everything(x, y, weight)
    try:
        for threads in (1, 2, 3):
            open_library(library().path, threads, None)
            _alike(_everything(x, y, weight), wanted)
        for row in (0, 17, 36):
            alone = _everything(x[row : row + 1], y[row : row + 1], weight)
            _alike(alone, [whole[row : row + 1] for whole in wanted])
    finally:
        open_library(library().path, runtime.profile.limits["threads"], None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.int64])
def test_rows_are_selected_whatever_they_hold(dtype):
    wide = (torch.arange(9 * 20).reshape(9, 20) % 100).to(dtype)
    ids = torch.tensor([8, 0, 3, 3])
    for x in (wide, wide[:, 3:10], wide[::2][:, :5]):
        at = ids if len(x) == 9 else ids // 2
        assert torch.equal(select.select_rows(x, at), x[at])
    assert select.select_rows(wide, ids[:0]).shape == (0, 20)


def test_columns_that_lie_apart_are_refused():
    with pytest.raises(ValueError, match="columns lie 2 apart"):
        norm.add(torch.zeros(2, 8)[:, ::2], torch.zeros(2, 4))
    with pytest.raises(ValueError, match="fit"):
        norm.rms_norm_quantize_dynamic(torch.zeros(1, 2**20 + 1), torch.zeros(2**20 + 1), eps=0.0, **INT8)


def test_a_split_runs_nothing_and_stands_inside_a_replay():
    x, weight = made(3, 96), made(1, 48)[0]
    with recording(Recorder()) as kept:
        first, second = select.split(x, sizes=(48, 48))
        out = norm.rms_norm(second, weight, eps=1e-5)
    assert len(kept.calls) == 1 and first.data_ptr() == x.data_ptr()
    x.add_(1.0)
    kept.run()
    assert same_bits(out, norm.rms_norm(x[:, 48:], weight, eps=1e-5))


def test_the_host_offers_the_sum_and_the_norm_together():
    assert ADD_NORM in OFFERS and ADD_NORM.name in {getattr(row, "rule", "") for row in OFFERS}


def test_a_call_that_does_not_fit_its_record_is_refused():
    with pytest.raises(ValueError, match="at most"):
        call("engine_add", (torch.zeros(1),) * 13)
    with pytest.raises(DeviceError, match="no kernel engine_none"):
        call("engine_none", ())


def test_threads_of_callers_have_records_of_their_own():
    x, wanted = [made(3, 64, seed=seed) for seed in range(4)], []

    def work(at):
        wanted.append(all(same_bits(norm.add(x[at], x[at]), x[at] + x[at]) for _ in range(200)))

    with recording(Recorder()) as kept:
        threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wanted == [True] * 4 and not kept.calls
