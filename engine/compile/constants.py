"""Tensors that a function makes from host data while it is traced: real, so that it may keep them, and inputs of the
graph, so that the graph holds none."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any


def as_constants() -> AbstractContextManager[Any]:
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


def take_out(module: Any) -> list[Any]:
    """Make the constants of a graph its last inputs; returns them in order."""
    import torch

    graph, constants = module.graph, []
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
