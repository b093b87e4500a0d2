"""Linear layers whose weights have four bits a value, written with the op that multiplies them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.models.quantization import Quantization
from engine.ops.packed import RUN

if TYPE_CHECKING:
    from engine.models.layer import Layer

SMALLEST = 32
"""Groups of the op are a multiple of so many columns."""


def has_groups(scheme: Quantization, columns: int) -> bool:
    """Whether the op can have the groups of rows of ``columns``."""
    group = scheme.group(columns)
    return group % SMALLEST == 0 and columns % group == 0


def packed_linear(
    layer: Layer,
    x: str,
    name: str,
    modules: tuple[str, ...],
    shape: tuple[int, int],
    into: str,
    shard: int | None,
    bias: list[str],
) -> str:
    """As ``Layer.linear``. ``modules``: in the checkpoint; ``shape``: of the matrix, on this rank; ``bias``: its name,
    if there is one."""
    scheme = layer.model.quantization
    assert scheme is not None
    rows, columns = shape
    group = scheme.group(columns)
    groups, side = (rows, columns // group), shard if scheme.block else 0 if shard == 0 else None
    small = scheme.kind == "mxfp4"

    def tensors(end: str) -> tuple[str, ...]:
        return tuple(f"{module}.{end}" for module in modules)

    width = -(-columns // RUN) * RUN // 2
    given = [
        layer.weight(name, (rows, width), tensors(scheme.weight), "uint8", f"packed {scheme.kind}", shard=shard),
        layer.weight(
            f"{name}.scale",
            groups,
            tensors(scheme.scale),
            "uint8" if small else "",
            "group exponent" if small else "group scale",
            shard=side,
        ),
    ]
    if scheme.zero:
        given.append(layer.weight(f"{name}.zero", groups, tensors(scheme.zero), "uint8", "group zero", shard=side))
    elif bias:
        # A bias has its place behind zeros.
        given.append(layer.weight(f"{name}.zero", groups, (), "uint8", "group eight", shard=side))
    return layer.draft.call("packed_linear", x, *given, *bias, into=into, group=group, format=scheme.kind)
