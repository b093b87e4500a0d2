"""Weights from a checkpoint and empty caches, on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from engine.program import CacheSpec, Program
from platforms.contract import Runtime

if TYPE_CHECKING:
    from engine.weights.checkpoint import Checkpoint


def load_weights(
    program: Program, checkpoint: Checkpoint, runtime: Runtime, report: Callable[[int], None] = lambda nbytes: None
) -> dict[str, Any]:
    """Every weight of the program in its dtype. At most one checkpoint tensor is held beside what is kept. ``report``
    is told the checkpoint bytes that were read after each tensor."""
    import torch

    loaded = {}
    for weight in program.weights.values():
        kind = getattr(torch, weight.dtype)
        whole = torch.empty(weight.shape, dtype=kind, device=runtime.device)
        rows = whole.view(-1, *weight.shape[-1:]) if len(weight.shape) > 2 else whole
        at = 0
        for name in weight.tensors:
            part = checkpoint.read(name)
            rows[at : at + part.shape[0]].copy_(part)
            at += part.shape[0]
            report(checkpoint.tensors[name].nbytes)
        if at != rows.shape[0]:
            raise ValueError(f"weight {weight.name}: {at} rows were read, its shape is {weight.shape}")
        loaded[weight.name] = whole
    return loaded


def make_caches(program: Program, blocks: int, runtime: Runtime) -> dict[str, Any]:
    """Zeroed caches in the reference layout: [2, blocks, page, heads, size], or of latents [blocks, page, size]. Zero,
    since a kernel may multiply what it masks."""
    import torch

    def shape(spec: CacheSpec) -> tuple[int, ...]:
        if spec.kind == "mla":
            return blocks, spec.page, spec.dims[0]
        return 2, blocks, spec.page, spec.heads, spec.dims[0]

    return {name: runtime.zeros(shape(spec), getattr(torch, spec.dtype)) for name, spec in program.caches.items()}
