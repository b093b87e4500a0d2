"""Weights from a checkpoint and empty caches, on the device."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

from engine.program import CacheSpec, Program, Weight
from platforms.contract import Runtime

if TYPE_CHECKING:
    from engine.weights.checkpoint import Checkpoint

logger = logging.getLogger("engine")

OTHER_FLAVOUR = "float8_e4m3fnuz"
"""The 8-bit float in which the bits of ``float8_e4m3fn`` mean half as much, and those of its minus zero no number."""


class Weights(MutableMapping[str, Any]):
    """Every weight of a program by name, in its dtype and format; see ``Weight``. One is read when it is first asked
    for, and kept until it is deleted; at most one checkpoint tensor is held beside what is kept."""

    def __init__(
        self, program: Program, checkpoint: Checkpoint, runtime: Runtime, report: Callable[[int], None]
    ) -> None:
        self._program, self._checkpoint, self._runtime, self._report = program, checkpoint, runtime, report
        self._left, self._held = dict(program.weights), dict[str, Any]()

    def __getitem__(self, name: str) -> Any:
        if name not in self._held:
            weight = self._left[name]
            read = self._scales if weight.format.startswith("scale ") else self._values
            self._held[name] = read(weight)
        return self._held[name]

    def __setitem__(self, name: str, tensor: Any) -> None:
        self._held[name] = tensor
        self._left.setdefault(name, self._program.weights[name])

    def __delitem__(self, name: str) -> None:
        del self._left[name]
        self._held.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._left)

    def __len__(self) -> int:
        return len(self._left)

    def _values(self, weight: Weight) -> Any:
        return _values(weight, self._checkpoint, self._runtime, self._report)

    def _scales(self, weight: Weight) -> Any:
        return _scales(weight, self._program, self._checkpoint, self._report).to(self._runtime.device)


def load_weights(
    program: Program, checkpoint: Checkpoint, runtime: Runtime, report: Callable[[int], None] = lambda nbytes: None
) -> Weights:
    """``report`` is told the checkpoint bytes that were read after each tensor. Asking for a weight raises
    ``UserError`` where it cannot be read."""
    _warn(program, checkpoint)
    return Weights(program, checkpoint, runtime, report)


def _values(weight: Weight, checkpoint: Checkpoint, runtime: Runtime, report: Callable[[int], None]) -> Any:
    import torch

    if weight.format.startswith("blocks ") and len(weight.tensors) == 1:
        # Mapped from the file where the device is the host and rows lie in canonical order.
        (name,) = weight.tensors
        found = _part(weight, name, checkpoint).to(runtime.device)
        report(checkpoint.cost(name))
        return found
    whole = torch.empty(weight.shape, dtype=getattr(torch, weight.dtype), device=runtime.device)
    if weight.format == "group eight":
        return whole.fill_(8)
    rows = whole.view(-1, *weight.shape[-1:]) if len(weight.shape) > 2 else whole
    at = 0
    for name in weight.tensors:
        part = _part(weight, name, checkpoint)
        rows[at : at + part.shape[0]].copy_(part)
        at += part.shape[0]
        report(checkpoint.cost(name))
    if at != rows.shape[0]:
        raise ValueError(f"weight {weight.name}: {at} rows were read, its shape is {weight.shape}")
    return whole


def _part(weight: Weight, name: str, checkpoint: Checkpoint) -> Any:
    """The rows of ``weight`` that tensor ``name`` brings, on the host."""
    from engine.ops.packed import pack

    if weight.format == "dense":
        return checkpoint.read_values(name)
    if weight.format.startswith("packed "):
        return pack(checkpoint.read_part(name))
    if weight.format.startswith("group "):
        return checkpoint.read_part(name)
    if weight.format.startswith("blocks "):
        return checkpoint.read_packed(name)
    return _flavoured(checkpoint.read(name), weight.dtype)


def _flavoured(part: Any, dtype: str) -> Any:
    """The same bits as ``dtype``, minus zero aside."""
    import torch

    kind = getattr(torch, dtype)
    if part.dtype == kind:
        return part
    bits = part.view(torch.int8)
    return torch.where(bits == -128, 0, bits).view(kind)


def _scales(weight: Weight, program: Program, checkpoint: Checkpoint, report: Callable[[int], None]) -> Any:
    """float32, on the host."""
    import torch

    kind = weight.format.removeprefix("scale ")
    found = []
    for name in weight.tensors:
        if kind == "kv" and name not in checkpoint.tensors:
            found.append(torch.ones(1))
            continue
        scale = checkpoint.read_scale(name)
        report(checkpoint.cost(name))
        if kind == "tensor":
            height = checkpoint.tensors[f"{name.rpartition('.')[0]}.weight"].shape[0]
            found.append(scale.flatten().expand(height))
        else:
            found.append(scale if kind == "block" else scale.flatten())
    whole = torch.stack([part.max() for part in found]).max().view(1) if kind == "largest" else torch.cat(found)
    return (whole * _factor(weight, program)).view(weight.shape)


def _factor(weight: Weight, program: Program) -> float:
    """2 where bits of one flavour are read as the other, which halves what they mean."""
    if weight.format == "scale kv":
        return 2.0 if any(cache.dtype == OTHER_FLAVOUR for cache in program.caches.values()) else 1.0
    owner = program.weights[weight.name.removesuffix(".input_scale").removesuffix(".scale")]
    return 2.0 if owner.dtype == OTHER_FLAVOUR else 1.0


def _warn(program: Program, checkpoint: Checkpoint) -> None:
    """One line for scales of keys and values that the checkpoint does not bring."""
    wanted = [name for weight in program.weights.values() if weight.format == "scale kv" for name in weight.tensors]
    missing = [name for name in wanted if name not in checkpoint.tensors]
    if missing:
        layers = len({name.rpartition(".")[0] for name in missing})
        which = " and ".join(sorted({name.rpartition(".")[2] for name in missing}))
        logger.warning("%s: %s is missing in %d layers and taken as 1.0", checkpoint.path, which, layers)


def make_caches(program: Program, blocks: int, runtime: Runtime) -> dict[str, Any]:
    """Zeroed caches in the reference layout: [2, blocks, page, heads, size], or of latents [blocks, page, size]. Zero,
    since a kernel may multiply what it masks."""
    import torch

    def shape(spec: CacheSpec) -> tuple[int, ...]:
        if spec.kind == "mla":
            return blocks, spec.page, spec.dims[0]
        return 2, blocks, spec.page, spec.heads, spec.dims[0]

    return {name: runtime.zeros(shape(spec), getattr(torch, spec.dtype)) for name, spec in program.caches.items()}
