"""Sums and joins over the ranks of a named group."""

from __future__ import annotations

from typing import Any

from engine.ops.spec import EXACT, ONCE, Case, Spec, op


def open_group(name: str, group: Any) -> None:
    """From now on ``name`` means ``group``, a process group of ``torch.distributed``, in this process: torch knows it
    by that name, and so does every kernel. ``None`` closes it. A name that nobody opened is a group of this process
    alone. Raises ``RuntimeError`` for a name that is open."""
    import torch

    groups: Any = torch._C._distributed_c10d
    if group is None:
        groups._unregister_process_group(name)
    else:
        groups._register_process_group(name, group)


def _group(name: str) -> Any:
    """``None`` is this process alone. Raises ``ValueError`` for a name that is not open where there are several
    processes."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return None
    resolve: Any = dist.distributed_c10d._resolve_process_group
    try:
        return resolve(name)
    except RuntimeError as error:
        if dist.get_world_size() > 1:
            problem = f"group {name!r} is not open, and this process is one of {dist.get_world_size()}"
            raise ValueError(problem) from error
        return None


def _inputs(case: Case, dtype: str, rng: Any) -> tuple[Any, ...]:
    import torch

    return (torch.randn((case.sizes["tokens"], case.sizes["hidden"]), generator=rng).to(getattr(torch, dtype)),)


@op(
    shapes=lambda specs, attributes: (specs[0],),
    inputs=_inputs,
    cases=tuple(Case({"tokens": t, "hidden": h}, {"group": "tp"}) for t, h in [(1, 1), (7, 127)]),
    tolerance=ONCE,
    collective=True,
)
def all_reduce(x: Any, *, group: str) -> Any:
    """The sum of x over the ranks of ``group``, in x's dtype, added in an order that the backend chooses; x itself
    where there is one rank. x: [tokens, hidden], of that shape on every rank → the same shape."""
    import torch
    import torch.distributed as dist

    found = _group(group)
    if found is None or found.size() == 1:
        return x
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=found)
    return total


def _joined(specs: tuple[Spec, ...], attributes: Any) -> tuple[Spec, ...]:
    *rows, width = specs[0].shape
    return (Spec(specs[0].dtype, (*rows, int(width) * attributes["ranks"])),)


@op(
    shapes=_joined,
    inputs=_inputs,
    cases=tuple(Case({"tokens": t, "hidden": h}, {"group": "tp", "ranks": 1}) for t, h in [(1, 1), (7, 127)]),
    tolerance=EXACT,
    collective=True,
)
def all_gather(x: Any, *, group: str, ranks: int) -> Any:
    """The columns of all ranks side by side, in order of rank. x: [tokens, n] → [tokens, ranks·n]. Raises
    ``ValueError`` where ``group`` does not have ``ranks`` ranks."""
    import torch
    import torch.distributed as dist

    found = _group(group)
    size = 1 if found is None else found.size()
    if size != ranks:
        raise ValueError(f"group {group!r} has {size} ranks, the call is for {ranks}")
    if ranks == 1:
        return x
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(ranks)]
    dist.all_gather(parts, x.contiguous(), group=found)
    return torch.cat(parts, dim=-1)
