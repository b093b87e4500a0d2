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
SIZES = ((1,), (2,), (17,), (1, 1, 1), (5, 1, 11), (1,), (32,))
"""Steps of requests with so many tokens each: of one, of as many tokens as requests, of as many as a row is wide."""
CALLED: list[bool] = []


def kernel_silu(x: Any) -> Any:
    CALLED.append(torch.compiler.is_compiling())
    gate, up = x.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def kernel_rotary(q: Any, k: Any, table: Any, *, head_dim: int) -> Any:
    """Results that do not lie as torch would lay them."""
    return tuple(x.t().contiguous().t() for x in VOCABULARY["rotary"].reference(q, k, table, head_dim=head_dim))


SILU = Kernel("silu_and_mul", "silu", f"{__name__}:kernel_silu")
ODD = Kernel("rotary", "odd", f"{__name__}:kernel_rotary")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    CALLED.clear()
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def planned(mode: str, backend: str, *rows: Kernel, model: ModelConfig = TINY) -> Plan:
    program = build_program(model, Layout("float32", PAGE, "float32"))
    chooser = Chooser(DEVICE, {}, rows, OPS, {}, ("all",), {}, False)
    words = {"compilation.mode": mode, "compilation.backend": backend}
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
        inputs = {name: torch.from_numpy(array) for name, array in arrays.items()}
        with torch.inference_mode():
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


@pytest.mark.parametrize("mode", MODES)
def test_a_code_generator_computes_it_too(mode: str) -> None:
    twins = Twins(planned(mode, "inductor", ODD, model=replace(TINY, num_layers=1)), ODD)
    for sizes in SIZES:
        twins.check(sizes)


@pytest.mark.parametrize("mode", MODES)
def test_kernels_writes_and_host_reads_stay_calls_of_their_own(mode: str) -> None:
    twins = Twins(planned(mode, "eager", SILU), SILU)
    (body, calls), (tail, last) = twins.range.segments
    assert [call.op for call in calls] == [
        "compiled",
        *["kv_write", "attention", "compiled", "silu_and_mul", "compiled"] * TINY.num_layers,
    ]
    assert {call.row for call in calls if call.op == "compiled"} == {mode.lower()}
    assert (tail.kind, [call.op for call in last]) == ("tail", ["select_rows", "linear"])
    twins.check((3, 4))
    assert CALLED and not any(CALLED)
