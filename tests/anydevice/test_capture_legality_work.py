"""Work as the engine makes it: every reference and every row of this device that may be captured passes."""

import subprocess
import sys
import time

import pytest
import torch

from engine.bind import load_target
from engine.fusion import RULES, all_ops
from engine.graphs.legality import illegal
from engine.ops import OPS, Case
from engine.ops.compare import specs_of, with_packed
from engine.plan.kernels import call_facts
from engine.program import Value
from engine.work import BoundCall, Work
from platforms.contract import FusionRule
from platforms.discovery import select
from tests.one_call import op_of, work_of

SELECTION = select("auto")
ALL = all_ops((*RULES, *(row for row in SELECTION.plugin.fusions() if isinstance(row, FusionRule))))


@pytest.fixture(scope="module", autouse=True)
def opened():
    """Packing is a kernel's own work, which may need the device open."""
    runtime = SELECTION.plugin.open(SELECTION.index)
    yield
    runtime.close()


@pytest.mark.parametrize("op", ALL.values(), ids=str)
def test_every_reference_passes_unless_it_is_declared_to_read_on_the_host(op):
    case = op.cases[0]
    inputs = op.inputs(case, "float32", torch.Generator().manual_seed(1))
    found = illegal(work_of(op, op.reference, "", inputs, case.attributes), ALL)
    if op.host_reads:
        assert found.startswith(f"{op.name} (reference): torch.Tensor.item reads values on the host; ")
    else:
        assert found == ""


def test_no_buffer_changes_and_no_native_row_runs():
    case = Case({"tokens": 7, "blocks": 5, "page": 4, "kv_heads": 3}, {"head_dim": 64})
    op = OPS["kv_write"]
    inputs = op.inputs(case, "float32", torch.Generator().manual_seed(1))
    pattern = torch.arange(inputs[2].numel() * 4, dtype=torch.int64).to(torch.uint8)
    inputs[2].view(-1).view(torch.uint8).copy_(pattern)
    before = [x.clone() for x in inputs]

    def native(*_, **__):
        raise AssertionError("a native row ran")

    work = work_of(op, op.reference, "", inputs, case.attributes)
    held = [x for x in work.values if x is not None]
    assert illegal(work, OPS) == ""
    assert illegal(work_of(op, native, "fast", inputs, case.attributes), OPS) == ""
    assert all(
        x.view(-1).view(torch.uint8).equal(y.view(-1).view(torch.uint8)) for x, y in zip(inputs, before, strict=True)
    )
    assert all(x is y for x, y in zip(held, (x for x in work.values if x is not None), strict=True))


def test_results_pass_from_call_to_call_and_the_first_illegal_one_is_named():
    reads = op_of(lambda x: x * x.sum().item())
    calls = [
        BoundCall("add", "fast", None, ("x", "x"), ("a",)),
        BoundCall("silu_and_mul", "", OPS["silu_and_mul"].reference, ("a",), ("b",)),
        BoundCall("tried", "", reads.reference, ("b",), ("c",)),
    ]
    given = {"x": torch.ones(3, 8)}
    assert illegal(Work(calls[:2], given), OPS) == ""
    assert illegal(Work(calls, given), {**OPS, "tried": reads}).startswith("tried (reference): torch.Tensor.item ")
    assert "reads y, which the work does not hold" in illegal(
        Work([BoundCall("add", "", None, ("x", "y"), ("z",))], given), OPS
    )
    assert "is no op" in illegal(Work(calls, given), OPS)


def copy(buffer, value):
    return buffer.copy_(value)


@pytest.mark.parametrize(
    ("buffer", "words"),
    [
        ((3, 4), ""),
        ((4,), "is given float32[3, 4], its buffer is float32[4]"),
        ((1, 3, 4), "its buffer is float32[1, 3, 4]"),
    ],
    ids=str,
)
def test_results_are_copied_into_buffers_of_their_own_type(buffer, words):
    calls = [
        BoundCall("add", "", OPS["add"].reference, ("x", "x"), ("a",)),
        BoundCall("copy", "", copy, ("kept", "a"), ("kept",), {}, (0,)),
    ]
    found = illegal(Work(calls, {"x": torch.ones(3, 4), "kept": torch.zeros(buffer)}), OPS)
    assert words in found if words else found == ""
    wide = illegal(Work(calls, {"x": torch.ones(3, 4), "kept": torch.zeros((3, 4), dtype=torch.float64)}), OPS)
    assert wide.startswith("copy (reference): is given float32[3, 4], its buffer is float64[3, 4]; ")


class Compiled:
    def __call__(self, *_):
        raise AssertionError("compiled code ran")

    def fake(self, x, y):
        return x.new_empty(x.shape), y.new_empty((2, y.shape[1]))


def test_results_of_compiled_calls_are_what_their_fake_says():
    calls = [
        BoundCall("compiled", "", Compiled(), ("x", "x"), ("a", "b")),
        BoundCall("copy", "", copy, ("kept", "b"), ("kept",), {}, (0,)),
    ]
    assert illegal(Work(calls, {"x": torch.ones(3, 4), "kept": torch.zeros(2, 4)}), OPS) == ""
    assert "its buffer is" in illegal(Work(calls, {"x": torch.ones(3, 4), "kept": torch.zeros(3, 4)}), OPS)
    more = BoundCall("compiled", "", Compiled(), ("x", "x"), ("a", "b", "c"))
    assert "tells of 2 results, and has 3" in illegal(Work([more], {"x": torch.ones(3, 4)}), OPS)


def test_results_of_compiled_calls_are_what_the_program_says():
    calls = [
        BoundCall("compiled", "some", None, ("x", "w"), ("a", "b")),
        BoundCall("copy", "", copy, ("kept", "b"), ("kept",), {}, (0,)),
    ]
    work = Work(calls, {"x": torch.ones(3, 8), "w": torch.ones(8), "kept": torch.zeros(3, 5)})
    types = {"x": Value("x", "float32", ("tokens", 8)), "a": Value("a", "int64", ("tokens",))}
    assert illegal(work, OPS, types) == (
        "compiled (some): is no op, and its results have no types; name its results as the program does"
    )
    types["b"] = Value("b", "float32", ("tokens", 5))
    assert illegal(work, OPS, types) == ""
    types["b"] = Value("b", "float32", ("tokens", 6))
    assert illegal(work, OPS, types).startswith("copy (reference): is given float32[3, 6], its buffer is float32[3, 5]")


def test_packed_weights_have_results_of_the_programs_types():
    calls = [
        BoundCall("linear", "packed", None, ("x", "w"), ("a",)),
        BoundCall("copy", "", copy, ("kept", "a"), ("kept",), {}, (0,)),
    ]
    work = Work(calls, {"x": torch.ones(3, 8), "w": torch.ones(8, 5), "kept": torch.zeros(3, 5)})
    types = {"x": Value("x", "float32", ("tokens", 8)), "a": Value("a", "float32", ("tokens", 5))}
    assert illegal(work, OPS, types) == ""
    assert "is given float32[3, 8]" in illegal(work, OPS)


def test_a_decoder_layer_is_told_quickly():
    """Ten calls, all of them references."""
    width, heads, dim = 64, 4, 16
    shape = dict(head_dim=dim)
    given = {
        "x": torch.ones(8, width),
        "n1": torch.ones(width),
        "n2": torch.ones(width),
        "wq": torch.ones(3 * width, width),
        "wo": torch.ones(width, width),
        "wg": torch.ones(2 * width, width),
        "wd": torch.ones(width, width),
        "table": torch.ones(8, dim),
        "cache": torch.zeros(2, 6, 4, heads, dim),
        "slots": torch.arange(8),
    }
    rows = [
        ("rms_norm", ("x", "n1"), ("a",), {"eps": 1e-6}, ()),
        ("linear", ("a", "wq"), ("qkv",), {}, ()),
        ("split", ("qkv",), ("q", "k", "v"), {"sizes": (width, width, width)}, ()),
        ("rotary", ("q", "k", "table"), ("qr", "kr"), shape, ()),
        ("kv_write", ("kr", "v", "cache", "slots"), ("cache",), shape, (2,)),
        ("linear", ("qr", "wo"), ("o",), {}, ()),
        ("add", ("x", "o"), ("r",), {}, ()),
        ("rms_norm", ("r", "n2"), ("b",), {"eps": 1e-6}, ()),
        ("linear", ("b", "wg"), ("g",), {}, ()),
        ("silu_and_mul", ("g",), ("h",), {}, ()),
    ]
    calls = [BoundCall(n, "", OPS[n].reference, i, o, a, m) for n, i, o, a, m in rows]
    work, spent = Work(calls, given), []
    for _ in range(8):
        start = time.thread_time()
        assert illegal(work, OPS) == ""
        spent.append(time.thread_time() - start)
    assert min(spent) < 0.4, spent


def taken(row):
    """Cases and dtypes that a row takes on this device."""
    for case in ALL[row.op].cases:
        for dtype in ("float32", "bfloat16"):
            inputs = ALL[row.op].inputs(case, dtype, torch.Generator().manual_seed(3))
            facts = {**case.attributes, **call_facts(specs_of(inputs))}
            if row.needs(SELECTION.profile, facts) and row.accepts(SELECTION.profile, facts):
                yield case, dtype


CAPTURED = [(row, *call) for row in SELECTION.plugin.kernels() if row.graph_safe for call in taken(row)]


@pytest.mark.parametrize(("row", "case", "dtype"), CAPTURED, ids=lambda x: getattr(x, "name", str(x)))
def test_H_GRF_06_every_row_that_may_be_captured_passes_on_all_it_takes(row, case, dtype):
    op = ALL[row.op]
    plain = op.inputs(case, dtype, torch.Generator().manual_seed(3))
    given = with_packed(op, load_target(row.pack), plain, case.attributes) if row.pack else plain
    work = work_of(op, load_target(row.target), row.name, given, case.attributes, plain)
    specs = op.shapes(specs_of(plain), case.attributes)
    types = {
        name: Value(name, spec.dtype, spec.shape)
        for name, spec in zip(work.calls[0].call.outputs, specs, strict=True)
        if name.startswith("o")
    }
    assert illegal(work, ALL, types) == ""


@pytest.mark.parametrize(
    ("op", "case"),
    [(op, case) for op in ALL.values() if not op.host_reads for case in op.cases],
    ids=str,
)
def test_H_GRF_06_every_reference_that_may_be_captured_passes_on_all_its_cases(op, case):
    for dtype in ("float32", "bfloat16"):
        inputs = op.inputs(case, dtype, torch.Generator().manual_seed(1))
        assert illegal(work_of(op, op.reference, "", inputs, case.attributes), ALL) == ""


def test_work_of_rows_alone_imports_no_fake_tensors():
    """They take a second and 140 MiB, which a start of native rows can do without."""
    row = next(row for row in SELECTION.plugin.kernels() if row.op == "rms_norm")
    code = f"""
import sys, torch
from engine.graphs.legality import illegal
from engine.ops import OPS
from engine.work import BoundCall, Work
call = BoundCall("rms_norm", {row.name!r}, print, ("x", "w"), ("y",), {{"eps": 1e-5}})
copied = BoundCall("copy", "", print, ("kept", "y"), ("kept",), mutates=(0,))
given = {{"x": torch.ones(2, 3), "w": torch.ones(3), "kept": torch.ones(2, 3)}}
assert illegal(Work([call, copied], given), OPS) == ""
assert "copy" in illegal(Work([call, copied], {{**given, "kept": torch.ones(3, 3)}}), OPS)
assert "on cpu and meta" in illegal(Work([call], {{**given, "w": torch.ones(3, device="meta")}}), OPS)
assert "reads w" in illegal(Work([call], {{"x": given["x"]}}), OPS)
found = [name for name in ("sympy", "torch._dynamo") if name in sys.modules]
assert not found, found
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
