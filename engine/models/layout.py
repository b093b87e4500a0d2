"""What one rank of a deployment computes with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layout:
    """``dtype``: of activations and dense weights; ``page``: tokens per KV block; ``cache_dtype``: of keys and values;
    ``ranks``: size of the ``tp`` group; ``storage``: dtype in which this device multiplies quantised weights, ``""``
    where it has no arithmetic for them and they are unpacked to ``dtype``; ``blocks``: ways to use weights in blocks
    (``engine.models.block_linear.Way``), each with a format it takes here; other blocks are unpacked."""

    dtype: str
    page: int
    cache_dtype: str
    ranks: int = 1
    storage: str = ""
    blocks: frozenset[tuple[tuple[str, str], str]] = frozenset()
