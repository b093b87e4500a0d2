"""A unit of calls becomes a graph over fake tensors. Needs torch; no tensor's content is read.

Sizes of values are symbols without an example, so that the graph holds for every size of its range or is not made.
Tensors that a function makes from host data are real, so that it may keep them, and then inputs of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from engine.program import Dim

TOKENS = "tokens"
_HINT, _MOST = 17, 1 << 31


@dataclass(frozen=True, slots=True)
class Layout:
    """Type of an input. ``stride``: ``None`` for a value, which is contiguous."""

    dtype: str
    shape: tuple[Dim, ...]
    stride: tuple[int, ...] | None
    device: str


@dataclass(frozen=True, slots=True)
class Unit:
    """Pure calls that become one function, from ``inputs`` to ``outputs``. ``calls``: (function, inputs, outputs,
    attributes) each. ``layouts``: of the inputs. Steps have ``start`` to ``end`` tokens."""

    calls: tuple[tuple[Callable[..., Any], tuple[str, ...], tuple[str, ...], Mapping[str, Any]], ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    layouts: tuple[Layout, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Traced:
    """A graph and its fake inputs, the last of which are ``constants``. ``symbols``: sizes by name."""

    module: Any
    inputs: list[Any]
    constants: list[Any]
    mode: Any
    symbols: dict[str, Any]


def trace(unit: Unit) -> Traced:
    """Raises whatever a function raises on fake tensors."""
    import torch
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode = FakeTensorMode(shape_env=ShapeEnv())
    symbols: dict[str, Any] = {}

    def size(dim: Dim) -> Any:
        if isinstance(dim, int):
            return dim
        if dim not in symbols:
            symbols[dim] = _symbol(mode.shape_env, dim, unit)
        return symbols[dim]

    def body(*tensors: Any) -> list[Any]:
        values = dict(zip(unit.inputs, tensors, strict=True))
        with _constants():
            for function, names, outputs, attributes in unit.calls:
                made = function(*[values[name] for name in names], **attributes)
                values.update(zip(outputs, [made] if len(outputs) == 1 else made, strict=True))
        return [values[name] for name in unit.outputs]

    decompositions: Any = {torch.ops.aten.constant_pad_nd.default: _padded}
    with mode:
        inputs = []
        for one in unit.layouts:
            kind, shape = getattr(torch, one.dtype), [size(dim) for dim in one.shape]
            if one.stride is None:
                inputs.append(torch.empty(shape, dtype=kind, device=one.device))
            else:
                inputs.append(torch.empty_strided(shape, one.stride, dtype=kind, device=one.device))
        module = make_fx(body, decompositions, "real")(*inputs)
    constants = _take_out(module)
    fakes = [mode.from_tensor(one, static_shapes=True) for one in constants]
    return Traced(module, [*inputs, *fakes], constants, mode, symbols)


def _symbol(env: Any, name: str, unit: Unit) -> Any:
    """A size without an example, so that nothing can be assumed of it beyond its range."""
    first, last = size_range(name, unit)
    if first == last:
        return first
    size = env.create_unbacked_symint()
    env.constrain_symbol_range(size.node.expr, first, last)
    env.var_to_hint_override[size.node.expr] = min(max(_HINT, first), last)
    env.pending_fresh_unbacked_symbols.clear()
    return size


def size_range(name: str, unit: Unit) -> tuple[int, int]:
    return (unit.start, unit.end) if name == TOKENS else (1, _MOST)


def _padded(x: Any, pads: Sequence[int], value: float = 0) -> Any:
    """torch's own takes no size without an example."""
    import torch

    found = x.clone()
    for at, (before, after) in enumerate(zip(pads[::2], pads[1::2], strict=True)):
        axis = x.dim() - 1 - at
        if min(before, after) < 0:
            start, end = max(-before, 0), found.shape[axis] + min(after, 0)
            found = found.narrow(axis, start, end - start)
        lead, rest = found.shape[:axis], found.shape[axis + 1 :]
        sides = [[found.new_full([*lead, n, *rest], value)] if n > 0 else [] for n in (before, after)]
        found = torch.cat([*sides[0], found, *sides[1]], axis)
    return found


def _constants() -> AbstractContextManager[Any]:
    """While it is entered, inside a trace, tensors of host data and others that are not fake become constants of the
    graph."""
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import _disable_current_modes
    from torch.utils._pytree import tree_map

    def constant(value: Any) -> Any:
        return torch.ops.aten.lift_fresh_copy.default(value) if type(value) is torch.Tensor else value

    class Constants(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
            if function is torch.tensor:
                with _disable_current_modes():
                    return function(*arguments, **(options or {}))
            return function(*tree_map(constant, arguments), **tree_map(constant, options or {}))

    return Constants()


def _take_out(module: Any) -> list[Any]:
    """Make the constants of a graph its last inputs; returns them in order."""
    import torch

    graph, constants = module.graph, list[Any]()
    last = [node for node in graph.nodes if node.op == "placeholder"][-1]
    for node in [node for node in graph.nodes if node.op == "get_attr"]:
        value = getattr(module, node.target)
        if not isinstance(value, torch.Tensor):
            continue
        with graph.inserting_after(last):
            last = graph.placeholder(f"constant_{len(constants)}")
        last.meta = node.meta
        node.replace_all_uses_with(last)
        graph.erase_node(node)
        delattr(module, node.target)
        constants.append(value.detach().clone())
    graph.lint()
    module.recompile()
    return constants
