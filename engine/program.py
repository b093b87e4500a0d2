"""A model as data: a flat list of calls in single-assignment form. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Dim = int | str
"""A size, or a symbol bound per step: ``tokens``, ``requests``, ``rows`` (logit rows), ``blocks`` (table width)."""


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor between calls. ``dtype`` is torch's name without the prefix (``float32``, ``int64``)."""

    name: str
    dtype: str
    shape: tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class Weight:
    """A parameter, as one rank holds it. ``tensors`` are the checkpoint's canonical names, concatenated along the first
    axis in order. ``shard``: the axis along which each of them is cut over the ``tp`` group, or ``None``; ``shape``
    is what this rank keeps. ``once``: the first rank alone keeps the values, the others zeros, since the group sums
    what they are added to. A stack [experts, rows, columns] has the parts of each expert in turn as tensors, and
    ``shard`` counts the stack's axes.

    ``format`` names the storage that kernels accept: ``dense``, or a kind and the reach of its scales (``float8
    tensor``, ``float8 channel``, ``int8 block``). Scales are float32: ``scale tensor`` (one value per tensor, repeated
    for each of its rows), ``scale channel``, ``scale block``, ``scale largest`` (one value, the largest of all),
    ``scale kv`` (one value, of cached keys or values; 1 where the checkpoint has none). Weights of four bits, ``packed
    int4`` or ``packed mxfp4``, are as ``engine.ops.packed`` lays them, with ``group scale`` in the type of activations
    or ``group exponent`` and ``group zero`` in bytes, [rows, groups]; ``group eight``: zeros that are all 8.
    ``blocks q4_1`` and the like: the bytes of a GGUF file, rows in canonical order, [rows, bytes per row]; see
    ``engine.ops.blocks``."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    tensors: tuple[str, ...]
    format: str = "dense"
    shard: int | None = None
    once: bool = False


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """State that outlives a step. Equal specs form one group, which has its own block tables.

    ``heads``: KV heads on this rank; ``dims``: (key size, value size) per head; of ``mla``, which keeps one latent and
    key for all heads, 1 and (their size, 0). ``window``: sliding window in tokens or ``None``; ``page``: tokens per
    block, 0 until the plan decides.
    """

    name: str
    kind: Literal["full", "sliding", "mla", "state", "cross"]
    heads: int
    dims: tuple[int, int]
    dtype: str
    window: int | None = None
    page: int = 0

    @property
    def group_key(self) -> tuple[Any, ...]:
        return (self.kind, self.heads, self.dims, self.dtype, self.window, self.page)


@dataclass(frozen=True, slots=True)
class Call:
    """``outputs = op(*inputs, **attributes)``. Inputs name values, weights, caches or earlier outputs; a call that
    writes a cache lists it as input and a new version of it as output, so that order is data dependency."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Program:
    """``values`` types every name, weights and caches aside. ``outputs`` are named: ``logits``, ``hidden``…
    Cache versions are named ``cache@n``; ``cache`` alone is the version a step starts with."""

    inputs: tuple[Value, ...]
    calls: tuple[Call, ...]
    outputs: Mapping[str, str]
    values: Mapping[str, Value]
    weights: Mapping[str, Weight]
    caches: Mapping[str, CacheSpec]

    def groups(self) -> tuple[tuple[str, ...], ...]:
        """Names of caches by group, in order of first appearance."""
        found: dict[tuple[Any, ...], list[str]] = {}
        for cache in self.caches.values():
            found.setdefault(cache.group_key, []).append(cache.name)
        return tuple(tuple(names) for names in found.values())

    def readers(self) -> dict[str, list[int]]:
        """For each name, the positions of the calls that read it."""
        found: dict[str, list[int]] = {}
        for position, call in enumerate(self.calls):
            for name in call.inputs:
                found.setdefault(name, []).append(position)
        return found
