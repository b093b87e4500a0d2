"""Programs given to ``torch.compile`` as they are, without a cache of ours."""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, groupby
from typing import Any

from engine.compile.cut import stays_apart
from engine.errors import UserError
from engine.ops import Op, Spec
from engine.work import BoundCall

ONCE = "DYNAMO_TRACE_ONCE"
"""The mode in which what was traced is never checked against what it is called with."""
_PLAIN = ("eager", "aot_eager")
"""Backends of torch without a code generator, which it does not list."""
_NOTHING = {"native": "eager"}
"""Backends of ours that generate no code → torch's word for that."""
Dump = Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class Traced:
    """Calls as one function. ``values``: how many of its inputs, the first ones, are no weights; ``fake``: the same
    calls, one by one."""

    run: Callable[..., Any]
    fake: Callable[..., Any]
    values: int

    def __call__(self, *tensors: Any) -> Any:
        return self.run(*[x.contiguous() for x in tensors[: self.values]], *tensors[self.values :])


class Stock:
    """Compiles neighbouring calls of references together; kernels, and what writes, reads on the host or waits for
    other ranks, stay calls of their own. Calls that differ in names only are compiled once.

    ``mode``: ``STOCK_TORCH_COMPILE``, or ``DYNAMO_TRACE_ONCE``, by which nothing is ever traced again. ``backend``: one
    that torch knows, or a function's ``module.attribute``. ``built``: how many functions were compiled; ``loaded``:
    none, ever. ``dump(name, text)`` receives each function, as it was given to torch. Raises ``UserError`` for a
    backend that nobody knows."""

    def __init__(self, ops: Mapping[str, Op], mode: str, backend: str, dump: Dump | None = None) -> None:
        self._ops, self._mode, self._named, self._dump = ops, mode, backend, dump
        self._backend = _backend(_NOTHING.get(backend, backend))
        self._made: dict[tuple[Any, ...], Traced] = {}
        self.loaded = 0

    @property
    def built(self) -> int:
        return len(self._made)

    def piece(
        self,
        calls: Sequence[BoundCall],
        specs: Mapping[str, Spec],
        given: Mapping[str, Any],
        outputs: Collection[str],
        start: int,
        end: int,
        label: str = "piece",
    ) -> list[BoundCall]:
        """The calls, or fewer that do the same at every size; compiled now, on tensors of zeros. ``specs``: types of
        what is made in a step; ``given``: weights and caches; ``outputs``: names read elsewhere; ``start``,
        ``end`` and ``label`` do not matter. Raises ``UserError`` where torch cannot compile them."""
        last = {name: at for at, call in enumerate(calls) for name in call.inputs}
        found: list[BoundCall] = []
        at = 0
        for joined, run in groupby(calls, self._joins):
            part = list(run)
            at += len(part)
            if joined:
                made = [name for call in part for name in call.outputs]
                kept = tuple(name for name in made if name in outputs or last.get(name, -1) >= at)
                part = [self._compiled(part, specs, given, kept)] if kept else []
            found += part
        return found

    def _joins(self, call: BoundCall) -> bool:
        return not (call.row or stays_apart(self._ops[call.op]))

    def _compiled(
        self, calls: Sequence[BoundCall], specs: Mapping[str, Spec], given: Mapping[str, Any], outputs: tuple[str, ...]
    ) -> BoundCall:
        made = {name for call in calls for name in call.outputs}
        reads = [n for n in dict.fromkeys(name for call in calls for name in call.inputs) if n not in made]
        values, constants = ([n for n in reads if (n in given) is fixed] for fixed in (False, True))
        inputs = (*values, *constants)
        key = _structure(calls, inputs, outputs, specs, given)
        if key not in self._made:
            whole = _joined(calls, inputs, outputs)
            if self._dump:
                self._dump(f"{self._mode.lower()}.{self.built}.graph.py", whole.code)
            traced = Traced(self._compile(whole.forward), whole, len(values))
            device = next(iter(given.values())).device if given else None
            self._try(traced, calls, [specs[name] for name in values], [given[name] for name in constants], device)
            self._made[key] = traced
        return BoundCall("compiled", self._mode.lower(), self._made[key], inputs, outputs)

    def _compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        import torch

        if self._mode != ONCE:
            return torch.compile(function, backend=self._backend)
        # A break in the trace would leave code that runs again with other values and, unguarded, would not notice.
        unguarded: dict[str, Any] = {"guard_filter_fn": torch.compiler.skip_all_guards_unsafe}
        return torch.compile(function, backend=self._backend, fullgraph=True, options=unguarded)

    def _try(
        self, traced: Traced, calls: Sequence[BoundCall], values: Sequence[Spec], constants: list[Any], device: Any
    ) -> None:
        """Call it once, so that it is compiled for every size: torch takes a size for fixed that is 0 or 1, and two
        that happen to be equal for one."""
        import torch
        from torch._dynamo import mark_dynamic, maybe_mark_dynamic
        from torch._dynamo.exc import TorchDynamoException

        mark = mark_dynamic if self._mode == ONCE else maybe_mark_dynamic
        sizes = _sizes(values, constants)
        with torch.inference_mode():
            examples = []
            for spec in values:
                shape = [sizes[dim] if isinstance(dim, str) else dim for dim in spec.shape]
                examples.append(torch.zeros(shape, dtype=getattr(torch, spec.dtype), device=device))
                mark(examples[-1], [at for at, dim in enumerate(spec.shape) if isinstance(dim, str)])
            try:
                traced(*examples, *constants)
            except TorchDynamoException as error:
                names = ", ".join(dict.fromkeys(call.op for call in calls))
                raise UserError(
                    f"-cc.mode={self._mode}: torch.compile cannot compile {names} with backend {self._named}: "
                    f"{_first_line(error)}. Give another -cc.backend (eager generates no code), or another mode."
                ) from error


def _joined(calls: Sequence[BoundCall], inputs: Sequence[str], outputs: Sequence[str]) -> Any:
    """The calls one after another, as torch writes such a function down."""
    import torch

    graph = torch.fx.Graph()
    nodes = {name: graph.placeholder(f"x{at}") for at, name in enumerate(inputs)}
    for call in calls:
        node = graph.call_function(call.function, tuple(nodes[n] for n in call.inputs), dict(call.attributes))
        if len(call.outputs) == 1:
            nodes[call.outputs[0]] = node
        else:
            parts = [graph.call_function(operator.getitem, (node, at)) for at in range(len(call.outputs))]
            nodes |= zip(call.outputs, parts, strict=True)
    results = tuple(nodes[name] for name in outputs)
    graph.output(results if len(results) > 1 else results[0])
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def _structure(
    calls: Sequence[BoundCall],
    inputs: Sequence[str],
    outputs: Sequence[str],
    specs: Mapping[str, Spec],
    given: Mapping[str, Any],
) -> tuple[Any, ...]:
    """Equal where one function serves for both."""
    names = {name: at for at, name in enumerate((*inputs, *(name for call in calls for name in call.outputs)))}

    def kind(name: str) -> Any:
        if name not in given:
            return specs[name]
        return given[name].dtype, given[name].device, tuple(given[name].shape), given[name].stride()

    return (
        *(kind(name) for name in inputs),
        *(
            (
                call.function,
                *(tuple(map(names.__getitem__, ends)) for ends in (call.inputs, call.outputs)),
                repr(sorted(call.attributes.items())),
            )
            for call in calls
        ),
        tuple(names[name] for name in outputs),
    )


def _sizes(values: Sequence[Spec], constants: Sequence[Any]) -> dict[str, int]:
    """A size for each symbol, like no other size there is."""
    taken = {dim for spec in values for dim in spec.shape} | {dim for x in constants for dim in x.shape}
    symbols = sorted({dim for dim in taken if isinstance(dim, str)})
    numbers = (number for number in count(3) if number not in taken)
    return {symbol: next(numbers) for symbol in symbols}


def _backend(name: str) -> Any:
    """As ``torch.compile`` takes it."""
    from torch._dynamo import list_backends

    if name in list_backends(exclude_tags=()):
        return name
    module, _, attribute = name.rpartition(".")
    why = "torch.compile knows no such backend"
    if module:
        try:
            found = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            why = str(error)
        else:
            if callable(found):
                return found
            why = f"it is a {type(found).__name__}, and no function"
    raise UserError(
        f"-cc.backend={name}: {why}. There are {', '.join(sorted({*list_backends(), *_PLAIN}))}; a function of yours "
        "is named module.attribute."
    )


def _first_line(error: Exception) -> str:
    """What went wrong in a backend, or else before it was asked."""
    error = getattr(error, "inner_exception", error)
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
