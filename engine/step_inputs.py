"""What a step's work looks like as the program's inputs, on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.batch import Work
from engine.graphs.dispatch import Shape


def step_inputs(work: Sequence[Work], pages: Sequence[int], rows: Sequence[int]) -> tuple[dict[str, Any], Shape]:
    """Arrays by the name of a program input, of the step's own sizes, and those sizes. ``pages``: tokens per block of
    each cache group; ``rows``: rows of the logits. Block tables are as wide as the longest, the rest 0."""
    if all(len(item.tokens) == 1 for item in work):
        return _single_tokens(work, pages, rows), Shape(len(work), len(work), 1)
    counts = [len(item.tokens) for item in work]
    ends = np.cumsum(counts)
    starts = np.array([item.start for item in work], np.int64)
    total = int(ends[-1])
    owner = np.repeat(np.arange(len(work)), counts)
    first = ends - counts
    positions = np.arange(total) - first[owner] + starts[owner]
    arrays = {
        "ids": np.fromiter((token for item in work for token in item.tokens), np.int64, total),
        "positions": positions,
        "starts": np.concatenate(([0], ends)).astype(np.int32),
        "lengths": (starts + counts).astype(np.int32),
        "rows": np.array(rows, np.int64),
    }
    for group, page in enumerate(pages):
        tables = [item.blocks[group] for item in work]
        blocks = np.zeros((len(work), max(map(len, tables))), np.int32)
        for row, table in zip(blocks, tables, strict=True):
            row[: len(table)] = table
        arrays[f"slots.{group}"] = blocks[owner, positions // page].astype(np.int64) * page + positions % page
        arrays[f"blocks.{group}"] = blocks
    lengths = set(counts)
    return arrays, Shape(total, len(work), counts[0] if len(lengths) == 1 else 0)


def _single_tokens(work: Sequence[Work], pages: Sequence[int], rows: Sequence[int]) -> dict[str, Any]:
    """``step_inputs`` of a decode step, whose time counts: few arrays, each made of one list."""
    count, positions = len(work), [item.start for item in work]
    arrays = {
        "ids": np.array([item.tokens[0] for item in work], np.int64),
        "positions": np.array(positions, np.int64),
        "starts": np.arange(count + 1, dtype=np.int32),
        "lengths": np.array([position + 1 for position in positions], np.int32),
        "rows": np.array(rows, np.int64),
    }
    for group, page in enumerate(pages):
        tables = [item.blocks[group] for item in work]
        width = max(map(len, tables))
        slots = [table[at // page] * page + at % page for table, at in zip(tables, positions, strict=True)]
        arrays[f"slots.{group}"] = np.array(slots, np.int64)
        arrays[f"blocks.{group}"] = np.array([table + [0] * (width - len(table)) for table in tables], np.int32)
    return arrays
