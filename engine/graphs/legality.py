"""Whether work may be captured, told on any machine: references run on fake tensors, native rows do not run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from engine.graphs.watch import Refused, reach, watch
from engine.ops import Op, Spec
from engine.ops.compare import as_tuple, misfit, specs_of
from engine.program import Value
from engine.work import Placed, Work

ONLY_A_DEVICE: tuple[tuple[str, str], ...] = (
    ("a native row that waits for the device or reads from it", "rows are not called; the op's shapes stand for them"),
    ("a native row that allocates outside the pool, or loads code when it is first called", "rows are not called"),
    ("a collective over a link or library that cannot be recorded", "collectives are not called"),
    ("work queued on another stream, or from another thread", "fake tensors have no streams"),
    ("an operator of torch that waits inside its kernel, as linear algebra does", "only shapes are computed"),
    ("a library that chooses an algorithm or makes a workspace while being recorded", "no library is called"),
    ("memory that is given back and is still in a graph", "fake tensors have no memory"),
    ("more memory than there is", "fake tensors have no memory"),
)
"""Work that passes ``illegal`` and that a device may yet refuse, and why it passes."""


def illegal(work: Work, ops: Mapping[str, Op], values: Mapping[str, Value] | None = None) -> str:
    """Why ``work`` cannot be captured, naming op, row, cause and remedy, or nothing. No buffer is touched.

    ``values``: types of the program's values by name. Results of native rows and compiled calls have these, since
    packed weights hide from an op's shapes what they were, and compiled calls are no ops. A function may tell instead,
    by an attribute ``fake``: fake inputs → fake results.
    """
    import torch

    alone = all(_only_types(placed, ops) for placed in work.calls)
    fakes, fake = (nullcontext(), _typed) if alone else _fakes()
    with torch.inference_mode():
        registers = [fake(x) if isinstance(x, torch.Tensor) else None for x in work.values]
        sizes: dict[str, int] = {}
        if alone and (problem := _apart(work)):
            return problem
        for placed in work.calls:
            try:
                results = _Call(placed, ops, registers, values or {}, sizes).results(fakes)
            except Refused as refusal:
                return f"{placed.call}: {refusal}"
            for at, tensor in zip(placed.outputs, results, strict=True):
                registers[at] = tensor
    return ""


def _only_types(placed: Placed, ops: Mapping[str, Op]) -> bool:
    """Whether nothing of the call would run: rows have stand-ins, and copies are looked at."""
    op = ops.get(placed.call.op)
    told = hasattr(placed.function, "fake") or (op is not None and op.collective)
    return not told and (bool(placed.call.row) or placed.call.op == "copy")


def _fakes() -> tuple[Any, Callable[[Any], Any]]:
    """Fake tensors. The parts of torch that make them take a second to import and 140 MiB."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode(allow_fallback_kernels=False)
    return mode, mode.from_tensor


def _typed(tensor: Any) -> Any:
    """Its type, shape and strides without memory."""
    import torch

    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _apart(work: Work) -> str:
    """Which call has inputs on several devices, or nothing."""
    homes = [getattr(value, "device", None) for value in work.values]
    for placed in work.calls:
        found = {homes[at] for at in placed.inputs} - {None}
        if len(found) > 1:
            return f"{placed.call}: {_several(found)}"
        for at in placed.outputs:
            homes[at] = next(iter(found), None)
    return ""


def _several(devices: Collection[Any]) -> Refused:
    return Refused(f"has inputs on {' and '.join(sorted(map(str, devices)))}", "put them on one device before a step")


class _Call:
    def __init__(
        self,
        placed: Placed,
        ops: Mapping[str, Op],
        registers: Sequence[Any],
        values: Mapping[str, Value],
        sizes: dict[str, int],
    ) -> None:
        self.placed, self.call, self.op = placed, placed.call, ops.get(placed.call.op)
        self.values, self.sizes = values, sizes
        self.inputs = [registers[at] for at in placed.inputs]
        for name, tensor in zip(self.call.inputs, self.inputs, strict=True):
            if tensor is None:
                raise Refused(f"reads {name}, which the work does not hold", "give the work a buffer of that name")
            if name in values:
                dims = zip(values[name].shape, tensor.shape, strict=False)
                sizes.update({dim: size for dim, size in dims if isinstance(dim, str)})
        if len(found := {tensor.device for tensor in self.inputs}) > 1:
            raise _several(found)

    def results(self, fakes: Any) -> tuple[Any, ...]:
        with fakes:
            if hasattr(self.placed.function, "fake"):
                return self._told()
            if self.call.op == "copy":
                return self._copied()
            if self.op is None or self.call.row or self.op.collective:
                return self._stand_ins()
            found = self._run()
        if problem := misfit(found, self._expected()):
            raise Refused(problem.replace("the reference", "the op's shapes say"), "make both agree")
        for at, tensor in zip(self.call.mutates, found[len(found) - len(self.call.mutates) :], strict=True):
            if _layout(tensor) != _layout(self.inputs[at]):
                raise Refused(f"returns another tensor for {self._name(at)}, which it says it writes", "return it")
        if self.op.host_reads:
            raise Refused("is declared to read values on the host", "capture a row that does not")
        return found

    def _told(self) -> tuple[Any, ...]:
        function: Any = self.placed.function
        found = as_tuple(function.fake(*self.inputs))
        if len(found) != len(self.call.outputs):
            raise Refused(f"tells of {len(found)} results, and has {len(self.call.outputs)}", "make both agree")
        return found

    def _copied(self) -> tuple[Any, ...]:
        buffer, value = self.inputs
        if problem := misfit((value,), specs_of((buffer,))):
            words = problem.replace("returns", "is given").replace("the reference", "its buffer is")
            raise Refused(words, "make both agree")
        return (buffer,)

    def _expected(self) -> tuple[Spec, ...]:
        if self.op is None:
            raise Refused("is no op, and its results have no types", "name its results as the program does")
        return self.op.shapes(specs_of(self.inputs), self.call.attributes)

    def _stand_ins(self) -> tuple[Any, ...]:
        """Results as the program types them, else as the op does."""
        import torch

        written = [self.inputs[at] for at in self.call.mutates]
        names = self.call.outputs[: len(self.call.outputs) - len(written)]
        specs = [self._typed(name) for name in names]
        if None in specs:
            specs = list(self._expected()[: len(names)])
        device = self.inputs[0].device
        made = [
            torch.empty([int(dim) for dim in spec.shape], dtype=getattr(torch, spec.dtype), device=device)
            for spec in specs
            if spec
        ]
        return (*made, *written)

    def _typed(self, name: str) -> Spec | None:
        """What the program says of a value, where its symbols are known."""
        if name not in self.values:
            return None
        shape = [self.sizes.get(dim) if isinstance(dim, str) else dim for dim in self.values[name].shape]
        known = tuple(dim for dim in shape if dim is not None)
        return Spec(self.values[name].dtype, known) if len(known) == len(shape) else None

    def _run(self) -> tuple[Any, ...]:
        names = [self._name(at) for at in range(len(self.inputs))]
        owned = {
            name: (x, at in self.call.mutates) for at, (name, x) in enumerate(zip(names, self.inputs, strict=True))
        }
        before = [_layout(tensor) for tensor in self.inputs]
        function: Callable[..., Any] = self.placed.function
        found = watch(lambda: as_tuple(function(*self.inputs, **self.call.attributes)), owned)
        for name, old, tensor in zip(names, before, self.inputs, strict=True):
            if old != _layout(tensor):
                raise Refused(f"resizes {name} or gives it other memory", "write it as it lies")
        return found

    def _name(self, at: int) -> str:
        return self.op.tensors[at] if self.op else self.call.inputs[at]


def _layout(tensor: Any) -> tuple[Any, ...]:
    return reach(tensor), tuple(tensor.shape), tensor.stride(), tensor.untyped_storage().nbytes()
