"""Linear layers, tables and heads whose weights stay in the blocks of a GGUF file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.models.config import ModelConfig
from engine.models.draft import Draft
from engine.models.layout import Layout
from engine.ops.blocks import GROUP, block_of, bytes_of

if TYPE_CHECKING:
    from engine.models.layer import Layer

SCALED, FLOATING, TABLE = "scaled_block_linear", "block_linear", "block_embedding"
LINEAR = (SCALED, FLOATING)
"""Ops that multiply weights in blocks, the one for linear layers first."""


def in_blocks(
    model: ModelConfig, layout: Layout, tensor: str, columns: int, ops: tuple[str, ...]
) -> tuple[str, str] | None:
    """Which of ``ops`` this device has for a matrix, and its format. ``columns``: on this rank; blocks are not cut."""
    format = model.blocks.of(tensor) if model.blocks else ""
    op = next((op for op in ops if (op, format) in layout.blocks), "")
    return (op, format) if op and columns % block_of(format)[0] == 0 else None


def linear_in(layer: Layer, tensor: str, columns: int) -> tuple[str, str] | None:
    return in_blocks(layer.model, layer.layout, tensor, columns, LINEAR)


def block_weight(
    draft: Draft, name: str, format: str, rows: int, columns: int, tensors: tuple[str, ...], shard: int | None = None
) -> str:
    """``rows`` and ``columns``: of values, on this rank."""
    shape = rows, bytes_of(format, columns)
    return draft.weight(name, "uint8", shape, tensors, format=f"blocks {format}", shard=shard)


def block_linear(
    layer: Layer,
    x: str,
    name: str,
    tensors: tuple[str, ...],
    shape: tuple[int, int],
    into: str,
    shard: int | None,
    bias: list[str],
    kind: tuple[str, str],
) -> str:
    """As ``Layer.linear``. ``shape``: of the matrix, on this rank; ``bias``: its name, if there is one; ``kind``: as
    ``in_blocks`` says. The activations that one value is quantised to are made once."""
    draft, (op, format) = layer.draft, kind
    given = [block_weight(draft, layer.at + name, format, *shape, tensors, shard), *bias]
    if op == FLOATING:
        return draft.call(op, x, *given, into=into, format=format)
    stored, names = {"storage": "int8", "columns": GROUP, "power_of_two": False}, (f"{x}.stored", f"{x}.scales")
    activations = draft.shared("quantize_dynamic", x, into=names, **stored)
    return draft.call(op, *activations, *given, into=into, format=format, result=layer.layout.dtype)
