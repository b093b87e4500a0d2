"""Native rows as operators of torch: a code generator sees a call and its types, never the body."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from engine.ops import Spec
from engine.plan_values import digest
from engine.work import BoundCall

NAMESPACE = "engine_rows"
Size = int | tuple[int, int]
"""A size, or the (input, axis) it equals."""

_LIBRARY: list[Any] = []
_BODIES: dict[str, Callable[..., Any]] = {}
"""What each name runs. Both live as long as the process: an artefact calls by name."""


def target(function: Callable[..., Any]) -> str:
    """``module:name`` by which any process finds this function, ``""`` where it has none."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    found: Any = sys.modules.get(module) if isinstance(module, str) else None
    for part in name.split(".") if isinstance(name, str) else [""]:
        found = getattr(found, part, None)
    return f"{module}:{name}" if found is function else ""


def sizes(inputs: Sequence[Spec], outputs: Sequence[Spec]) -> list[tuple[str, list[Size]]] | None:
    """Type of each output in terms of the inputs; ``None`` where a size is in none of them. A packed weight has
    another shape than the one that ``Op.shapes`` takes, so that the types of the program are used."""
    known = {dim: (at, axis) for at, spec in enumerate(inputs) for axis, dim in enumerate(spec.shape)}
    found: list[tuple[str, list[Size]]] = []
    for spec in outputs:
        if any(isinstance(dim, str) and dim not in known for dim in spec.shape):
            return None
        found.append((spec.dtype, [known[dim] if isinstance(dim, str) else dim for dim in spec.shape]))
    return found


def name_of(call: BoundCall, inputs: Sequence[Spec], outputs: Sequence[Spec]) -> str:
    """The operator's name: the same in every process for the same function, attributes and types; ``""`` where the
    call cannot be one."""
    types, where = sizes(inputs, outputs), target(call.function)
    if types is None or not where:
        return ""
    parts = [call.row, where, [[key, repr(value)] for key, value in sorted(call.attributes.items())], len(inputs)]
    return f"{call.op}_{digest([*parts, types])}"


def register(name: str, call: BoundCall, inputs: Sequence[Spec], outputs: Sequence[Spec]) -> Callable[..., Any]:
    """The operator of a call whose name is ``name_of`` it: pure, its results new and contiguous. Registering it again
    is fine."""
    import torch

    packet: Any = getattr(torch.ops, NAMESPACE)
    library: Any = torch.library
    again = name in _BODIES
    _BODIES[name] = _body(call.function, dict(call.attributes))
    if again:
        return getattr(packet, name).default
    if not _LIBRARY:
        _LIBRARY.append(library.Library(NAMESPACE, "FRAGMENT"))
    types = sizes(inputs, outputs)
    assert types is not None
    given = ", ".join(f"Tensor x{at}" for at in range(len(inputs)))
    made = "Tensor" if len(outputs) == 1 else f"({', '.join(['Tensor'] * len(outputs))})"
    _LIBRARY[0].define(f"{name}({given}) -> {made}")
    _LIBRARY[0].impl(name, lambda *tensors: _BODIES[name](*tensors), "CompositeExplicitAutograd")
    library.register_fake(f"{NAMESPACE}::{name}", _typed(types), lib=_LIBRARY[0])
    return getattr(packet, name).default


def _body(function: Callable[..., Any], attributes: Mapping[str, Any]) -> Callable[..., Any]:
    import torch

    native: Any = torch._C
    shares = native._is_alias_of

    def own(result: Any, others: Sequence[Any]) -> Any:
        if any(shares(result, other) for other in others):
            return result.clone(memory_format=torch.contiguous_format)
        return result.contiguous()

    def body(*tensors: Any) -> Any:
        results = function(*tensors, **attributes)
        if not isinstance(results, (tuple, list)):
            return own(results, tensors)
        if len(results) == 1:
            return own(results[0], tensors)
        return tuple(own(result, (*tensors, *results[:at])) for at, result in enumerate(results))

    return body


def _typed(types: Sequence[tuple[str, Sequence[Size]]]) -> Callable[..., Any]:
    import torch

    def fake(*tensors: Any) -> Any:
        made = [
            tensors[0].new_empty(
                [tensors[dim[0]].shape[dim[1]] if isinstance(dim, tuple) else dim for dim in shape],
                dtype=getattr(torch, dtype),
            )
            for dtype, shape in types
        ]
        return made[0] if len(made) == 1 else tuple(made)

    return fake
