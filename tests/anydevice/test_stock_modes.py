"""Programs given to torch.compile: the same results as call by call, for every size, compiled once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.batch import Work as Asked
from engine.bind import Bound
from engine.compile.start import bound_ranges, make_compiler
from engine.compile.stock import Stock
from engine.errors import UserError
from engine.fusion import RULES, all_ops
from engine.graphs.legality import illegal
from engine.models import Layout, build_program
from engine.models.config import ModelConfig
from engine.ops import OPS as VOCABULARY
from engine.ops import Spec
from engine.ops.compare import as_tuple, specs_of
from engine.plan.kernels import Chooser, choose_all
from engine.plan_values import Decision, Plan, TokenRange
from engine.step_inputs import step_inputs
from engine.work import BoundCall, Work
from platforms.contract import Kernel
from tests.model_configs import LLAMA
from tests.profiles import DEVICE

OPS = all_ops(RULES)
STOCK, ONCE = MODES = ("STOCK_TORCH_COMPILE", "DYNAMO_TRACE_ONCE")
PAGE = 4
TINY = replace(
    LLAMA, vocab_size=96, hidden_size=32, num_heads=4, num_kv_heads=2, head_dim=8, intermediate_size=48,
    num_layers=3, dtype="float32", rope=replace(LLAMA.rope, dim=8),
)  # fmt: skip
SIZES = ((2,), (17,), (1, 1, 1), (5, 1, 11), (32,), (1,), (3,))
"""Steps of requests with so many tokens each: of as many tokens as requests, of as many as a row is wide, of one."""
CALLED: list[bool] = []
GRAPHS: list[Any] = []


def kernel_silu(x: Any) -> Any:
    CALLED.append(torch.compiler.is_compiling())
    gate, up = x.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def kernel_rotary(q: Any, k: Any, table: Any, *, head_dim: int) -> Any:
    """Results that do not lie as torch would lay them."""
    return tuple(x.t().contiguous().t() for x in VOCABULARY["rotary"].reference(q, k, table, head_dim=head_dim))


def keeping_backend(graph: Any, examples: Any) -> Any:
    GRAPHS.append(graph)
    return graph.forward


def broken_backend(graph: Any, examples: Any) -> Any:
    raise ValueError("no silicon here")


SILU = Kernel("silu_and_mul", "silu", f"{__name__}:kernel_silu")
ODD = Kernel("rotary", "odd", f"{__name__}:kernel_rotary")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    CALLED.clear()
    GRAPHS.clear()
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def planned(mode: str, backend: str, *rows: Kernel, model: ModelConfig = TINY) -> Plan:
    program = build_program(model, Layout("float32", PAGE, "float32"))
    chooser = Chooser(DEVICE, {}, rows, OPS, {}, ("all",), {}, False)
    words = {"compilation.mode": mode, "compilation.backend": backend, "compilation.debug_dump_path": None}
    words |= {"compilation.cache_dir": None}
    decisions = {key: Decision(key, value, "default", "") for key, value in words.items()}
    return Plan(DEVICE, decisions, choose_all(program, chooser), (), (TokenRange(1, 64, program, {}),))


class Twins:
    """One model twice, each with its own cache: call by call, and compiled."""

    def __init__(self, plan: Plan, *rows: Kernel) -> None:
        torch.manual_seed(3)
        weights = {
            name: torch.randn(weight.shape) / (weight.shape[-1] ** 0.5 if len(weight.shape) > 1 else 1)
            for name, weight in plan.program.weights.items()
        }
        bound = Bound(plan, OPS, rows, weights)
        self.constants = bound.constants
        self.compiler = make_compiler(plan, OPS)
        (self.range,) = bound_ranges(plan, bound, OPS, self.compiler)
        self.works = [
            Work(calls, {**bound.constants, **_caches(plan)}, [x.name for x in plan.program.inputs], ["logits"])
            for calls in (bound.calls[0], self.range.calls)
        ]

    def check(self, sizes: Sequence[int]) -> None:
        blocks = iter(range(99))
        asked = [Asked(str(at), [(at * 7 + n) % 96 for n in range(size)], 0, [[next(blocks) for _ in range(9)]], True)
                 for at, size in enumerate(sizes)]  # fmt: skip
        arrays, _ = step_inputs(asked, [PAGE], [sum(sizes) - 1])
        with torch.inference_mode():
            inputs = {name: torch.from_numpy(array) for name, array in arrays.items()}
            expected, found = (work.run(inputs)["logits"] for work in self.works)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def _caches(plan: Plan) -> dict[str, Any]:
    return {name: torch.zeros(2, 99, PAGE, spec.heads, spec.dims[0]) for name, spec in plan.program.caches.items()}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rows", [(), (SILU,), (ODD, SILU)], ids=["references", "a kernel", "an odd layout"])
def test_both_modes_compute_what_the_calls_do_at_every_size(mode: str, rows: tuple[Kernel, ...]) -> None:
    twins = Twins(planned(mode, "eager", *rows), *rows)
    for sizes in SIZES:
        twins.check(sizes)


@pytest.mark.parametrize(("mode", "sizes"), [(STOCK, SIZES[:2]), (ONCE, SIZES)])
def test_a_code_generator_computes_it_too(mode: str, sizes: Sequence[Sequence[int]]) -> None:
    twins = Twins(planned(mode, "inductor", ODD, model=replace(TINY, num_layers=1)), ODD)
    for asked in sizes:
        twins.check(asked)


@pytest.mark.parametrize("mode", MODES)
def test_kernels_writes_and_host_reads_stay_calls_of_their_own(mode: str) -> None:
    twins = Twins(planned(mode, "eager", SILU), SILU)
    (_, calls), (tail, last) = twins.range.segments
    assert [call.op for call in calls] == [
        "compiled",
        *["kv_write", "attention", "compiled", "silu_and_mul", "compiled"] * TINY.num_layers,
    ]
    assert {call.row for call in calls if call.op == "compiled"} == {mode.lower()}
    assert (tail.kind, [call.op for call in last]) == ("tail", ["select_rows", "linear"])
    twins.check((3, 4))
    assert CALLED and not any(CALLED)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("layers", [2, 6])
def test_the_number_of_compilations_depends_neither_on_depth_nor_on_size(mode: str, layers: int) -> None:
    """Torch takes a size of 1 for another program, and where guards are dropped it is not asked."""
    twins = Twins(planned(mode, f"{__name__}.keeping_backend", model=replace(TINY, num_layers=layers)))
    assert twins.compiler is not None
    assert (twins.compiler.built, twins.compiler.loaded, len(GRAPHS)) == (3, 0, 3)
    for sizes in SIZES:
        twins.check(sizes)
        assert len(GRAPHS) == (6 if mode == STOCK and sizes in SIZES[-2:] else 3)


def pure_cases() -> list[Any]:
    """Of each op the case that tells its tokens best from its other sizes."""
    ops = [op for op in VOCABULARY.values() if not (op.mutates or op.host_reads or op.collective)]
    return [pytest.param(op, op.cases[-1], id=op.name) for op in ops]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("op", "case"), pure_cases())
def test_every_reference_is_traced_whole_and_for_every_size(op: Any, case: Any, mode: str) -> None:
    inputs = op.inputs(case, "float32", torch.Generator().manual_seed(1))
    names = [f"in{at}" for at in range(len(inputs))]
    given = {names[at]: inputs[at] for at in op.weights if at < len(inputs)}
    specs = {name: spec for name, spec in zip(names, specs_of(inputs), strict=True) if name not in given}
    for name, spec in specs.items():
        symbol = next((size for size in ("tokens", "rows") if spec.shape[0] == case.sizes.get(size)), spec.shape[0])
        specs[name] = Spec(spec.dtype, (symbol, *spec.shape[1:]))
    expected = as_tuple(op.reference(*inputs, **case.attributes))
    outputs = tuple(f"out{at}" for at in range(len(expected)))
    call = BoundCall(op.name, "", op.reference, tuple(names), outputs, case.attributes)
    (made,) = Stock(OPS, mode, f"{__name__}.keeping_backend").piece([call], specs, given, outputs, 1, 9)
    assert len(GRAPHS) == 1
    with torch.inference_mode():
        tensors = dict(zip(names, inputs, strict=True))
        found = as_tuple(made.function(*(tensors[name] for name in made.inputs)))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.to(torch.float64), other.to(torch.float64), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        ("inducktor", ["-cc.backend=inducktor", "eager", "inductor", "module.attribute"]),
        ("nowhere.at_all", ["-cc.backend=nowhere.at_all", "No module named 'nowhere'"]),
        (f"{__name__}.missing", ["has no attribute 'missing'"]),
        (f"{__name__}.PAGE", ["it is a int, and no function"]),
    ],
)
def test_a_backend_that_nobody_knows_is_refused_with_those_there_are(backend: str, words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        make_compiler(planned(STOCK, backend), OPS)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize("mode", MODES)
def test_a_backend_that_fails_is_named_with_the_ops_it_failed_on(mode: str) -> None:
    with pytest.raises(UserError) as caught:
        Twins(planned(mode, f"{__name__}.broken_backend"))
    for word in (f"-cc.mode={mode}", "rotary_table, embedding, rms_norm", "broken_backend", "no silicon here"):
        assert word in str(caught.value)


def test_a_backend_of_ours_without_code_generator_is_none_of_torch() -> None:
    Twins(planned(STOCK, "native")).check((4,))


def test_fake_tensors_go_through_what_was_compiled_without_reaching_the_compiled_code() -> None:
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    twins = Twins(planned(ONCE, f"{__name__}.keeping_backend", SILU), SILU)
    call = twins.range.calls[0]
    with FakeTensorMode() as mode:
        inputs = [
            mode.from_tensor(twins.constants[name]) if name in twins.constants else torch.empty(5, dtype=torch.int64)
            for name in call.inputs
        ]
        found = call.function.fake(*inputs)
    program = twins.range.program
    assert [(5, *program.values[name].shape[1:]) for name in call.outputs] == [tuple(x.shape) for x in found]
    assert all(isinstance(x, FakeTensor) for x in found)
    fixed = {name: torch.zeros(5, dtype=torch.int64) for name in call.inputs if name not in twins.constants}
    assert illegal(Work([call], {**twins.constants, **fixed}), OPS) == ""
