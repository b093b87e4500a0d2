"""What a graph cannot hold is refused before a device sees it, with the op's name; its legal neighbours pass."""

import time

import numpy as np
import pytest
import torch

from engine.bind import load_target
from engine.fusion import RULES, all_ops
from engine.graphs.legality import ONLY_A_DEVICE, illegal
from engine.ops import OPS, Case, Op
from engine.ops.compare import specs_of, with_packed
from engine.ops.constant import constant
from engine.plan.kernels import call_facts
from engine.program import Value
from engine.work import BoundCall, Work
from platforms.discovery import select

ALL = all_ops(RULES)
SELECTION = select("auto")
HELD = torch.arange(12.0).view(3, 4)
ELSEWHERE = torch.zeros(3, 4, device="meta")


def same(specs, attributes):
    return (specs[0],)


def op_of(function, mutates=(), shapes=same, **more):
    return Op("tried", function, shapes, lambda *_: (), (), {}, mutates, **more)


def tried(function, *inputs, mutates=(), shapes=same, **more):
    """``function`` as an op on ``inputs``, [3, 4] in float32 unless there are others, and what is said of it."""
    inputs = inputs or (torch.ones(3, 4), torch.ones(3, 4))
    op = op_of(function, mutates, shapes, **more)
    return illegal(work_of(op, function, "", inputs, {}), {"tried": op})


def work_of(op, function, row, inputs, attributes, plain=None):
    names = [f"i{at}" for at in range(len(inputs))]
    count = len(op.shapes(specs_of(plain or inputs), attributes)) - len(op.mutates)
    outputs = [*(f"o{at}" for at in range(count)), *(names[at] for at in op.mutates)]
    call = BoundCall(op.name, row, function, tuple(names), tuple(outputs), attributes, op.mutates)
    return Work([call], dict(zip(names, inputs, strict=True)))


def swallowed(x, y):
    try:
        return x + x.sum().item()
    except Exception:
        return x


def inside_inference(x, y):
    with torch.inference_mode():
        return x[: int(y.sum())]


def outside_inference(x, y):
    with torch.inference_mode(False):
        return x * bool((y > 0).all())


def resized(x, y):
    x.resize_(2, 2)
    return x


def swapped(x, y):
    x.data = torch.zeros(3, 4)
    return x


def put(x, y):
    x[y > 0] = y.sum()
    return x


def put_a_number(x, y):
    x[y[:, 0].long()] = 0.0
    return x


def put_rows(x, y):
    x[[0, 2]] = y[[0, 2]]
    return x


def put_one(x, y):
    x[0, 0] = y[0, 0].item()
    return x


def waits(x, y):
    torch.get_device_module(x.device).synchronize()
    return x + y


def waits_for_an_event(x, y):
    Stream().synchronize()
    return x + y


class Stream:
    def synchronize(self):
        return None


def written(x, y):
    y.mul_(2)
    return x + y


def written_through_a_view(x, y):
    y.view(-1)[2:5].zero_()
    return x + y


def written_out(x, y):
    return torch.add(x, y, out=y)


READS, MAKES, ELSE, WRITES = "reads values on the host", "from values of the host", "copies", "mutates does not list"
ILLEGAL = {
    "item": (lambda x, y: x * y.sum().item(), ("torch.Tensor.item", READS)),
    "bool": (lambda x, y: x if x.sum() else y, ("torch.Tensor.__bool__", READS)),
    "assert": (lambda x, y: x if (x == y).all() else y, ("torch.Tensor.__bool__", READS)),
    "int": (lambda x, y: x * int(y.sum()), ("torch.Tensor.__int__", READS)),
    "float": (lambda x, y: x * float(y.sum()), ("torch.Tensor.__float__", READS)),
    "tolist": (lambda x, y: x * sum(y[0].tolist()), ("torch.Tensor.item", READS)),
    "tolist of a tensor of its own": (lambda x, y: x * sum(HELD.tolist()[0]), ("torch.Tensor.tolist", READS)),
    "numpy": (lambda x, y: x * y.numpy().sum(), ("torch.Tensor.numpy", READS)),
    "asarray": (lambda x, y: x * np.asarray(y).sum(), ("torch.Tensor.__array__", READS)),
    "format": (lambda x, y: x * len(f"{y}"), ("torch.Tensor.__format__", READS)),
    "print": (lambda x, y: x * len(repr(y)), ("torch.Tensor.__repr__", READS)),
    "slice to a tensor": (lambda x, y: x[:, : y.sum().long()], ("aten._local_scalar_dense", READS)),
    "a number out of a tensor as index": (lambda x, y: x[y.sum().long()], ("aten._local_scalar_dense", READS)),
    "nonzero": (lambda x, y: x.nonzero(), ("torch.Tensor.nonzero", "aten.nonzero", READS)),
    "where of a condition": (lambda x, y: torch.where(x > 0)[0], ("torch.where", "aten.nonzero", READS)),
    "unique": (lambda x, y: x.unique(), ("aten._unique2", READS)),
    "masked_select": (lambda x, y: x.masked_select(y > 0), ("torch.Tensor.masked_select", READS)),
    "mask as index": (lambda x, y: x[y > 0], ("torch.Tensor.__getitem__", "aten.nonzero", READS)),
    "equal": (lambda x, y: x * torch.equal(x, y), ("torch.equal", READS)),
    "allclose": (lambda x, y: x * torch.allclose(x, y), ("torch.allclose", READS)),
    "bincount": (lambda x, y: x * x.long().view(-1).bincount()[0], ("torch.Tensor.bincount", READS)),
    "repeats in a tensor": (lambda x, y: x.repeat_interleave(y[:, 0].long(), 0), ("repeat_interleave", READS)),
    "read and kept quiet": (swallowed, ("torch.Tensor.item", READS)),
    "read in inference mode of its own": (inside_inference, ("torch.Tensor.__int__", READS)),
    "read outside inference mode": (outside_inference, ("torch.Tensor.__bool__", READS)),
    "mask in a write": (put, ("torch.Tensor.__setitem__", "aten.index_put_", "where a mask says")),
    "a number in a write by index": (put_a_number, ("torch.Tensor.__setitem__", MAKES)),
    "a read in a write": (put_one, ("torch.Tensor.item", READS)),
    "cpu": (lambda x, y: x.cpu() + y, ("torch.Tensor.cpu", "copies to the host")),
    "pin_memory": (lambda x, y: x.pin_memory() + y, ("torch.Tensor.pin_memory", "copies to the host")),
    "to": (lambda x, y: x.to("meta"), ("torch.Tensor.to", "copies from cpu to meta")),
    "to another's device": (lambda x, y: x.to(device="meta"), ("aten._to_copy", "copies from cpu to meta")),
    "tensor": (lambda x, y: x * torch.tensor([1.0, 2.0, 3.0, 4.0]), ("torch.tensor", "aten.lift_fresh", MAKES)),
    "tensor of a number": (lambda x, y: x * torch.tensor(2.0), ("torch.tensor", MAKES)),
    "as_tensor": (lambda x, y: x * torch.as_tensor([2.0]), ("torch.as_tensor", MAKES)),
    "asarray of a list": (lambda x, y: x * torch.asarray([2.0]), ("torch.asarray", MAKES)),
    "from_numpy": (lambda x, y: x * torch.from_numpy(np.ones(4, np.float32)), ("aten.lift_fresh", MAKES)),
    "new_tensor": (lambda x, y: x * x.new_tensor([2.0]), ("torch.Tensor.new_tensor", MAKES)),
    "list as index": (lambda x, y: x[[0, 1]], ("torch.Tensor.__getitem__", MAKES)),
    "list as index of a write": (put_rows, ("torch.Tensor.__getitem__", MAKES)),
    "a tensor of its own": (lambda x, y: x * HELD, ("torch.Tensor.mul", "float32[3, 4], which is no input")),
    "a buffer of its own": (lambda x, y: x * torch.frombuffer(bytearray(16), dtype=torch.float32), ("no input",)),
    "a tensor of its own, returned": (lambda x, y: HELD, ("did not make from its inputs",)),
    "no fake kernel": (lambda x, y: torch.ops.engine_legality.opaque(x), ("engine_legality.opaque", "no fake kernel")),
    "data_ptr": (lambda x, y: x * y.data_ptr(), ("torch.Tensor.data_ptr", "where a tensor lies")),
    "storage": (lambda x, y: x * y.untyped_storage().data_ptr(), ("torch.Tensor.untyped_storage",)),
    "writes an input": (written, ("aten.mul_", "writes y", WRITES)),
    "writes a view": (written_through_a_view, ("aten.zero_", "writes y", WRITES)),
    "writes with out": (written_out, ("torch.add", "aten.add.out", "writes y", WRITES)),
    "rand": (lambda x, y: x * torch.rand_like(y), ("torch.rand_like", "draws random numbers")),
    "dropout": (lambda x, y: torch.nn.functional.dropout(x), ("torch.nn.functional.dropout", "draws random numbers")),
    "waits": (waits, ("synchronize waits for the device",)),
    "waits for an event": (waits_for_an_event, ("synchronize waits for the device",)),
    "fails": (lambda x, y: x @ y, ("fails on fake tensors: RuntimeError",)),
    "another dtype": (lambda x, y: x.double(), ("returns float64[3, 4], the op's shapes say float32[3, 4]",)),
    "another shape": (lambda x, y: x[:2], ("returns float32[2, 4], the op's shapes say float32[3, 4]",)),
    "too many results": (lambda x, y: (x, y), ("returns 2 results, the op's shapes say 1",)),
    "no tensor": (lambda x, y: 1.0, ("returns a float, not a tensor",)),
}
LIBRARY = torch.library.Library("engine_legality", "DEF")
LIBRARY.define("opaque(Tensor x) -> Tensor")
LIBRARY.impl("opaque", lambda x: x + 1, "CPU")


@pytest.mark.parametrize("name", ILLEGAL)
@pytest.mark.parametrize("inference", [False, True], ids=["", "inference"])
def test_what_a_graph_cannot_hold_is_refused_with_op_and_cause(name, inference):
    function, words = ILLEGAL[name]
    with torch.inference_mode(inference):
        found = tried(function, torch.ones(3, 4), torch.full((3, 4), 2.0))
    assert found.startswith("tried (reference): ")
    assert all(word in found for word in words), found
    assert "; " in found


WRITTEN_WRONG = {
    "resized": (resized, "resizes x"),
    "other memory": (swapped, "resizes x or gives it other memory"),
    "a copy returned": (lambda x, y: x * 2, "returns another tensor for x"),
    "the other input": (lambda x, y: (y.zero_(), x)[1], "writes y"),
}


@pytest.mark.parametrize("name", WRITTEN_WRONG)
def test_an_input_that_may_be_written_is_written_where_it_lies(name):
    function, words = WRITTEN_WRONG[name]
    assert words in tried(function, mutates=(0,))


def test_a_write_beside_what_may_be_written_is_refused_in_one_storage_too():
    whole = torch.zeros(2, 3, 4)

    def beyond(x, y):
        torch.as_strided(x, (24,), (1,), 0).zero_()
        return x

    assert "writes y" in tried(beyond, whole[0], whole[1], mutates=(0,))
    assert "writes beside x" in tried(beyond, whole[0], torch.ones(3, 4), mutates=(0,))
    assert tried(lambda x, y: x.zero_(), whole[0], whole[1], mutates=(0,)) == ""
    assert "writes x" in tried(lambda x, y: (x.zero_(), y)[1], whole[0], whole[1], mutates=(1,))


def indexed(x, y):
    x.index_copy_(0, torch.arange(3, device=x.device), y)
    return x


def temporaries(x, y):
    total = x + y
    total.add_(1).clamp_(max=3)
    total[:, 1:].zero_()
    total[torch.arange(2, device=x.device)] += 1
    return total


@constant
def halves(device, count):
    return torch.tensor([0.5] * count, device=device)


LEGAL = {
    "masked_fill": (lambda x, y: x.masked_fill(y > 0, 0.0), ()),
    "where": (lambda x, y: torch.where(y > 0, x, 0.0), ()),
    "index_select": (lambda x, y: x.index_select(0, y[:, 0].long()), ()),
    "a tensor as index": (lambda x, y: x[y[:, 0].long()], ()),
    "gather": (lambda x, y: x.gather(1, y.argmax(1, keepdim=True).expand(3, 4)), ()),
    "index_copy_": (indexed, (0,)),
    "copy_": (lambda x, y: x.copy_(y), (0,)),
    "a view of what may be written": (lambda x, y: (x.view(-1)[:4].copy_(y[0]), x)[1], (0,)),
    "temporaries": (temporaries, ()),
    "views": (lambda x, y: x.view(-1).unflatten(0, (3, 4)).transpose(0, 1).t(), ()),
    "the input itself": (lambda x, y: x, ()),
    "sizes": (lambda x, y: x if x.shape[0] < len(y) + x.numel() else y, ()),
    "numbers": (lambda x, y: torch.clamp(x * 2.0 + 1, -3, 3), ()),
    "fills": (lambda x, y: x + torch.full((4,), 0.1, device=x.device) + torch.zeros_like(y), ()),
    "its own device": (lambda x, y: x.to(y.device) + y.to(x), ()),
    "constants": (lambda x, y: x * halves(x.device, 4), ()),
    "sort and top": (lambda x, y: x.sort(-1).values + x.topk(4, -1).values, ()),
    "scan": (lambda x, y: x.cumsum(0) * y.softmax(-1), ()),
    "scatter": (lambda x, y: torch.zeros_like(x).scatter(-1, y.long(), x), ()),
    "attention of torch": (lambda x, y: torch.nn.functional.scaled_dot_product_attention(x, y, y), ()),
    "no dropout": (lambda x, y: torch.nn.functional.dropout(x, training=False), ()),
    "repeats as a number": (lambda x, y: x.repeat_interleave(2, 0)[::2], ()),
    "repeats with a size": (lambda x, y: x.repeat_interleave(y[:, 0].long(), 0, output_size=3), ()),
}


@pytest.mark.parametrize("name", LEGAL)
@pytest.mark.parametrize("inference", [False, True], ids=["", "inference"])
def test_legal_neighbours_pass(name, inference):
    function, mutates = LEGAL[name]
    with torch.inference_mode(inference):
        assert tried(function, torch.ones(3, 4), torch.ones(3, 4), mutates=mutates) == ""


def test_constants_are_kept_only_as_real_tensors():
    before = halves(torch.device("cpu"), 5)
    assert tried(lambda x, y: x * halves(x.device, 5)[:4]) == ""
    assert tried(lambda x, y: x * halves(x.device, 6)[:4]) == ""
    assert halves(torch.device("cpu"), 5) is before
    assert type(halves(torch.device("cpu"), 6)) is torch.Tensor
    assert halves(torch.device("cpu"), 6).tolist() == [0.5] * 6


def test_inputs_of_one_call_lie_on_one_device():
    assert "has inputs on cpu and meta" in tried(lambda x, y: x, torch.ones(3, 4), ELSEWHERE)

    def filled(x):
        return x.copy_(torch.zeros(3, 4, device="meta"))

    assert "takes tensors on cpu and meta" in tried(filled, torch.ones(3, 4), mutates=(0,))


@pytest.mark.parametrize("op", ALL.values(), ids=str)
def test_every_reference_passes_unless_it_is_declared_to_read_on_the_host(op):
    case = op.cases[0]
    inputs = op.inputs(case, "float32", torch.Generator().manual_seed(1))
    found = illegal(work_of(op, op.reference, "", inputs, case.attributes), ALL)
    if op.host_reads:
        assert found.startswith(f"{op.name} (reference): torch.Tensor.item reads values on the host; ")
    else:
        assert found == ""


def test_an_op_declared_to_read_on_the_host_is_refused_even_where_it_does_not_here():
    assert "declared to read values on the host" in tried(lambda x, y: x + y, host_reads=True)


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
    assert min(spent) < 0.1, spent


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


def test_what_only_a_device_can_refuse_says_why_it_passes_here():
    assert len({work for work, _ in ONLY_A_DEVICE}) == len(ONLY_A_DEVICE)
    assert all(work and why for work, why in ONLY_A_DEVICE)
