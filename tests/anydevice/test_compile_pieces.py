"""What is given to a code generator, what stays a call, and what is shared; the generator itself is a stub here."""

from __future__ import annotations

import dataclasses
import functools
import subprocess
import sys

import pytest
import torch

from engine.compile import generate, opaque
from engine.compile.compiler import Compiler
from engine.compile.cut import cut, written
from engine.compile.folder import own_folder
from engine.compile.store import Store
from engine.compile.trace import Layout, Unit, trace
from engine.errors import UserError
from engine.models import Layout as Ranks
from engine.models import build_program
from engine.ops import OPS, Spec
from engine.work import BoundCall
from tests import piece_toys as toys
from tests.model_configs import LLAMA, QWEN3

TINY = {"hidden_size": 16, "num_heads": 2, "num_kv_heads": 1, "head_dim": 8, "intermediate_size": 32, "vocab_size": 64}


def test_folders_of_generators_that_were_killed_are_swept(tmp_path):
    left = tmp_path / "12345-left"
    left.mkdir()
    (left / "lock").touch()
    mine = own_folder(tmp_path)
    (mine / "headers").mkdir()
    assert not left.exists()
    code = "import sys, pathlib; from engine.compile.folder import own_folder; own_folder(pathlib.Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert [path.name for path in tmp_path.iterdir()] == [mine.name] and (mine / "headers").is_dir()


class Memory:
    """A store that keeps entries in this process."""

    def __init__(self, scratch) -> None:
        self.scratch, self.entries, self.discarded = scratch, {}, []

    def read(self, declared):
        return self.entries.get(repr(declared))

    def write(self, declared, payload):
        self.entries[repr(declared)] = payload

    def discard(self, declared, why):
        self.discarded.append(why)
        del self.entries[repr(declared)]


@pytest.fixture
def units(monkeypatch):
    """Those that reached the generator, which makes functions that return their first inputs."""
    seen: list[Unit] = []

    def build(unit, folder, texts):
        seen.append(unit)
        texts["graph"] = "a graph"
        return b"made"

    def load(payload, folder):
        if payload != b"made":
            raise EOFError("Ran out of input")
        return (lambda *tensors: list(tensors)), {"graph": "a graph"}

    monkeypatch.setattr(generate, "build", build)
    monkeypatch.setattr(generate, "load", load)
    return seen


def decoder(compiler, model, start=1, end=64):
    """Every piece of a decoder through the compiler; returns the calls of each."""
    program = build_program(dataclasses.replace(model, **TINY), Ranks(dtype="float32", page=4, cache_dtype="float32"))
    same = written(program.calls, OPS)
    calls = []
    for call in program.calls:
        ends = [tuple(same.get(name, name) for name in names) for names in (call.inputs, call.outputs)]
        calls.append(BoundCall(call.op, "", OPS[call.op].reference, *ends, call.attributes, OPS[call.op].mutates))
    specs = {name: Spec(value.dtype, value.shape) for name, value in program.values.items()}
    given = {name: torch.empty(weight.shape) for name, weight in program.weights.items()}
    given |= {name: torch.empty(2, 3, 4, 1, 8) for name in program.caches}
    segments = [s for s in cut(program, {"attention"}, OPS) if s.kind == "piece"]
    return [
        compiler.piece([calls[at] for at in s.calls], specs, given, s.outputs, start, end) for s in segments
    ]  # fmt: skip


@pytest.mark.parametrize("layers", [2, 30, 80])
@pytest.mark.parametrize("model", [LLAMA, QWEN3], ids=lambda model: model.name)
def test_functions_of_a_decoder_are_three_whatever_its_depth(units, tmp_path, model, layers):
    compiler = Compiler(OPS, Memory(tmp_path), {})
    pieces = decoder(compiler, dataclasses.replace(model, num_layers=layers))
    assert len(pieces) == layers + 1
    assert compiler.built == len(units) == 3
    assert [[call.op for call in calls] for calls in pieces] == [["compiled", "kv_write"]] * layers + [["compiled"]]
    assert len({id(calls[0].function) for calls in pieces[1:-1]}) <= 1


def test_each_range_has_functions_of_its_own(units, tmp_path):
    compiler = Compiler(OPS, Memory(tmp_path), {})
    for start, end in ((1, 64), (65, 512), (8, 8), (1, 64)):
        decoder(compiler, dataclasses.replace(LLAMA, num_layers=3), start, end)
    assert compiler.built == 9
    assert {(unit.start, unit.end) for unit in units} == {(1, 64), (65, 512), (8, 8)}


def test_a_second_start_compiles_nothing(units, tmp_path):
    store, model = Memory(tmp_path), dataclasses.replace(LLAMA, num_layers=4)
    decoder(Compiler(OPS, store, {"x": 1}), model)
    warm, other = Compiler(OPS, store, {"x": 1}), Compiler(OPS, store, {"x": 2})
    decoder(warm, model)
    decoder(other, model)
    assert (warm.built, warm.loaded) == (0, 3) and (other.built, other.loaded) == (3, 0)


def test_an_entry_that_does_not_load_is_made_again(units, tmp_path):
    store, texts = Memory(tmp_path), {}
    toys.piece(Compiler(OPS, store, {}), toys.weights())
    store.entries = dict.fromkeys(store.entries, b"foreign")
    again = Compiler(OPS, store, {}, texts.__setitem__)
    toys.piece(again, toys.weights())
    assert (again.built, again.loaded) == (1, 0)
    assert store.discarded == ["EOFError: Ran out of input"] and set(store.entries.values()) == {b"made"}
    assert list(texts.values()) == ["a graph"]


def test_what_writes_reads_on_the_host_or_meets_other_ranks_stays_a_call(units, tmp_path):
    write = BoundCall("kv_write", "", OPS["kv_write"].reference, ("x", "x", "kv", "ids"), ("kv",), {}, (2,))
    apart = [
        write,
        toys.reference("attention", "x kv ids ids ids", "far"),
        toys.reference("all_reduce", "x", "sum", group="tp"),
    ]
    specs = {**toys.SPECS, "far": toys.SPECS["x"], "sum": toys.SPECS["x"], "kv": Spec("float32", (2, "pool", 4, 1, 8))}
    calls = [*toys.CALLS[:2], *apart, *toys.CALLS[2:]]
    found = Compiler(OPS, Memory(tmp_path), {}).piece(calls, specs, toys.weights(), {"far", *toys.RESULTS}, 1, 8)
    assert [call.op for call in found] == ["compiled", *(call.op for call in apart), "compiled"]
    assert found[1:4] == apart
    assert found[0].outputs == ("x",) and found[4].outputs == toys.RESULTS[1:]


def test_native_rows_alone_are_left_alone(units, tmp_path):
    calls = [toys.native("linear", toys.turned, "y packed", "z")]
    found = Compiler(OPS, Memory(tmp_path), {}).piece(calls, toys.SPECS, toys.weights(), {"z"}, 1, 8)
    assert found == calls and not units


def test_a_native_row_that_no_other_process_could_find_is_left_alone(units, tmp_path):
    row = toys.native("linear", lambda x, packed: x @ packed, "y packed", "z")
    calls = [*toys.CALLS[:2], toys.CALLS[3], row, *toys.CALLS[5:6]]
    found = Compiler(OPS, Memory(tmp_path), {}).piece(calls, toys.SPECS, toys.weights(), {"q", "k", "v"}, 1, 8)
    assert [call.op for call in found] == ["compiled", "linear", "compiled"] and found[1] is row


def test_what_nobody_reads_is_not_computed(units, tmp_path):
    found = Compiler(OPS, Memory(tmp_path), {}).piece(toys.CALLS[:2], toys.SPECS, toys.weights(), set(), 1, 8)
    assert found == [] and not units


@pytest.mark.parametrize(
    "change",
    [
        lambda given: {**given, "norm": given["norm"].to(torch.bfloat16)},
        lambda given: {**given, "packed": given["packed"].t().contiguous().t()},
        lambda given: {**given, "table": given["table"][:50]},
    ],
    ids=["type", "stride", "shape"],
)
def test_weights_of_another_kind_are_another_function(units, tmp_path, change):
    compiler = Compiler(OPS, Memory(tmp_path), {})
    for given in (toys.weights(), toys.weights(), change(toys.weights())):
        toys.piece(compiler, given)
    assert compiler.built == 2


def reads_a_size(x):
    return x * 2 if x.shape[0] > 16 else x


def takes_a_size_for_granted(x):
    torch._check(x.shape[0] == 17)
    return x * 2


def reads_a_value(x):
    return x * float(x[0, 0])


@pytest.mark.parametrize(
    ("body", "cause"),
    [(reads_a_size, "> 16"), (takes_a_size_for_granted, "it takes tokens for 17"), (reads_a_value, "data-dependent")],
)
def test_a_unit_that_cannot_be_compiled_names_its_ops_the_cause_and_the_way_out(tmp_path, body, cause):
    texts: dict[str, str] = {}
    bad = BoundCall("add", "", body, ("x",), ("y",))
    calls = [toys.CALLS[0], toys.CALLS[1], bad]
    compiler = Compiler(OPS, Store(tmp_path), {}, texts.__setitem__)
    with pytest.raises(UserError) as caught:
        compiler.piece(calls, toys.SPECS, toys.weights(), {"y"}, 1, 64)
    text = str(caught.value)
    assert cause in text and "1 to 64 tokens" in text and "embedding, add, add" in text and "\n" not in text
    assert "-cc.debug_dump_path=DIR" in text and "-cc.backend=eager" in text and caught.value.__cause__ is not None
    assert [text for name, text in texts.items() if name.endswith(".error.txt") and text.startswith("Traceback")]
    assert compiler.built == 0


@functools.cache
def kept(device):
    return torch.tensor([1.0, 2.0], device=device)


def test_a_tensor_that_a_function_keeps_is_real_and_becomes_an_input():
    layout = Layout("float32", ("tokens", 2), None, "cpu")
    for _ in range(2):
        found = trace(Unit(((lambda x: x + kept(x.device), ("x",), ("y",), {}),), ("x",), ("y",), (layout,), 1, 64))
        assert [tensor.tolist() for tensor in found.constants] == [[1.0, 2.0]]
        assert type(kept(torch.device("cpu"))) is torch.Tensor
        assert not [node for node in found.module.graph.nodes if node.op == "get_attr"]
        assert len(found.inputs) == 2


@pytest.mark.parametrize("pads", [(1, 2), (0, 3), (-1, 2), (2, -1, 1, 0), (0, 0)], ids=str)
def test_padding_is_traced_for_sizes_without_an_example(pads):
    layout, pad = Layout("float32", ("tokens", 5), None, "cpu"), torch.nn.functional.pad
    unit = Unit(((lambda x: pad(x, pads, value=3.0), ("x",), ("y",), {}),), ("x",), ("y",), (layout,), 1, 64)
    x = torch.randn(7, 5)
    assert torch.equal(trace(unit).module(x)[0], pad(x, pads, value=3.0))


def same(x):
    return x


def halves(x):
    return x[:, :2], x[:, 2:]


def overlapping(x):
    out = x * 2
    return out, out[:, :2]


@pytest.mark.parametrize(("row", "widths"), [(same, (4,)), (halves, (2, 2)), (overlapping, (4, 2))])
def test_results_of_an_opaque_call_are_new_and_contiguous(row, widths):
    specs = [Spec("float32", ("tokens", width)) for width in widths]
    call = BoundCall("op", "row", row, ("x",), tuple("yz"[: len(widths)]))
    name = opaque.name_of(call, [Spec("float32", ("tokens", 4))], specs)
    for _ in range(2):
        operator = opaque.register(name, call, [Spec("float32", ("tokens", 4))], specs)
    x = torch.randn(3, 4)
    found, wanted = operator(x), row(x)
    found, wanted = (made if isinstance(made, tuple) else (made,) for made in (found, wanted))
    assert all(torch.equal(a, b) and a.is_contiguous() for a, b in zip(found, wanted, strict=True))
    assert len({tensor.untyped_storage().data_ptr() for tensor in (x, *found)}) == 1 + len(found)


def test_names_of_opaque_calls_say_what_they_do():
    x = [Spec("float32", ("tokens", 4))]

    def name(function=same, outputs=x, **attributes):
        return opaque.name_of(BoundCall("op", "row", function, ("x",), ("y",), attributes), x, outputs)

    # The same in every process: artefacts call by name.
    assert name() == "op_648427320aebe571"
    others = [name(eps=1), name(eps=2), name(halves), name(outputs=[Spec("float32", ("tokens", 8))])]
    assert len({name(), *others}) == 5
    assert name(lambda x: x) == "" and name(outputs=[Spec("float32", ("rows", 4))]) == ""
