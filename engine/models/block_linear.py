"""Linear layers, tables and heads whose weights stay in the blocks of a GGUF file."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from engine.models.config import ModelConfig
from engine.models.draft import Draft
from engine.models.layout import Layout
from engine.ops.blocks import GROUP, block_of, bytes_of

if TYPE_CHECKING:
    from engine.models.layer import Layer


class Way(NamedTuple):
    """An op with weights in blocks, and the type that it takes quantised activations in."""

    op: str
    storage: str = ""


SCALED, WIDE = Way("scaled_block_linear", "int8"), Way("scaled_block_linear", "int16")
FLOATING, TABLE = Way("block_linear"), Way("block_embedding")
LINEAR, HEAD = (SCALED, FLOATING), (WIDE, FLOATING)
"""Ways of linear layers, and of a head, where eight bits would be seen in every probability; the first one taken."""


def in_blocks(
    model: ModelConfig, layout: Layout, tensor: str, columns: int, ways: tuple[Way, ...]
) -> tuple[Way, str] | None:
    """Which of ``ways`` this device has for a matrix, and its format. ``columns``: on this rank; blocks are not cut."""
    format = model.blocks.of(tensor) if model.blocks else ""
    way = next((way for way in ways if (way, format) in layout.blocks), None)
    return (way, format) if way and columns % block_of(format)[0] == 0 else None


def linear_in(layer: Layer, tensor: str, columns: int) -> tuple[Way, str] | None:
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
    kind: tuple[Way, str],
) -> str:
    """As ``Layer.linear``. ``shape``: of the matrix, on this rank; ``bias``: its name, if there is one; ``kind``: as
    ``in_blocks`` says."""
    weight = block_weight(layer.draft, layer.at + name, kind[1], *shape, tensors, shard)
    return block_product(layer.draft, x, [weight, *bias], into, layer.layout.dtype, kind)


def block_product(draft: Draft, x: str, given: list[str], into: str, dtype: str, kind: tuple[Way, str]) -> str:
    """``given``: the weight, and a bias if there is one. What one value is quantised to is made once."""
    way, format = kind
    if not way.storage:
        return draft.call(way.op, x, *given, into=into, format=format)
    stored = {"storage": way.storage, "columns": GROUP, "power_of_two": False}
    activations = draft.shared("quantize_dynamic", x, into=(f"{x}.stored", f"{x}.scales"), **stored)
    return draft.call(way.op, *activations, *given, into=into, format=format, result=dtype)
