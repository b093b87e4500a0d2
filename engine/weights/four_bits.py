"""Weights of four bits as checkpoints lay them out, and what they stand for.

Layouts: ``awq``, ``gptq`` and ``rows`` keep eight values in an int32, ``awq`` eight rows of one column in an order of
its own, ``gptq`` eight columns of one row, turned on its side, ``rows`` the same upright; ``pairs`` keeps two columns
in a byte. The first lies in the lowest bits. Sources: AutoAWQ's ``WQLinear_GEMM``, AutoGPTQ's ``QuantLinear``,
compressed-tensors' ``pack-quantized`` and ``mxfp4-pack-quantized``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.errors import UserError
from engine.models.quantization import Quantization

if TYPE_CHECKING:
    from torch import Tensor

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Row, within its eight, that each four bits hold."""
PLAIN_ORDER = tuple(range(8))
_TURNED = ("awq", "gptq")
"""Layouts that lie on their side."""


def nibbles(words: Tensor, axis: int, order: tuple[int, ...] = PLAIN_ORDER) -> Tensor:
    """int32 [n, m] → uint8 [8 n, m], or [n, 8 m] along ``axis`` 1. ``order``: where, within its eight, each four bits
    belong, along axis 0."""
    import torch

    # Bytes of a word lie from its lowest on, on every host that torch runs on.
    halves = words.flatten().view(torch.uint8)
    eights = torch.stack((halves & 15, halves >> 4), dim=-1).view(*words.shape, 8)
    if axis:
        return eights.flatten(1)
    found = eights.transpose(1, 2).contiguous()
    if order != PLAIN_ORDER:
        found = found[:, [order.index(place) for place in range(8)]]
    return found.flatten(0, 1)


def values(scheme: Quantization, stored: Tensor, shape: tuple[int, int]) -> Tensor:
    """uint8 0..15 of ``shape`` [rows, columns]. stored: int32 [columns, rows / 8] (``awq``), [columns / 8, rows]
    (``gptq``), [rows, columns / 8] (``rows``), sizes rounded up, or uint8 [rows, columns / 2] (``pairs``)."""
    if scheme.layout == "pairs":
        found = _halves(stored)
    elif scheme.layout == "awq":
        found = nibbles(stored.T, 0, AWQ_ORDER)
    else:
        found = nibbles(stored.T if scheme.layout == "gptq" else stored, 1)
    return found[: shape[0], : shape[1]]


def zeros(scheme: Quantization, stored: Tensor, rows: int) -> Tensor:
    """uint8 0..15 [rows, groups]. stored: int32 [groups, rows / 8], or [rows / 8, groups] (``rows``), sizes rounded
    up."""
    order = AWQ_ORDER if scheme.layout == "awq" else PLAIN_ORDER
    found = nibbles(stored.T if scheme.layout in _TURNED else stored, 0, order)[:rows]
    # Added within four bits, as the format's own kernels do.
    return found + 1 & 15 if scheme.one_less else found


def scales(scheme: Quantization, stored: Tensor, rows: int) -> Tensor:
    """[rows, groups], exponents as they are. stored: [groups, rows] (``awq``, ``gptq``), [rows, groups] or [rows]."""
    return stored.T if scheme.layout in _TURNED else stored.reshape(rows, -1)


def check_runs(g_idx: Tensor, group: int, name: str) -> None:
    """g_idx: [columns], the group of each. Raises ``UserError`` naming ``name`` where groups are not runs of columns
    (activation order)."""
    import torch

    runs = torch.arange(g_idx.shape[0], device=g_idx.device) // group
    if not torch.equal(g_idx.long(), runs):
        raise UserError(
            f"{name}: its columns were quantised in order of activation (desc_act: its groups are not runs of "
            f"{group} columns), which no kernel here reads; use a checkpoint made with desc_act false"
        )


def unpacked(scheme: Quantization, values: Tensor, scales: Tensor, zeros: Tensor | None) -> Tensor:
    """What packed values stand for, float32 [rows, columns]: values less zeros (8 where there are none) times scales,
    or 4-bit floats times powers of two. values: uint8 [rows, columns]; scales: [rows, groups], uint8 exponents for
    ``mxfp4``; zeros: uint8 [rows, groups]."""
    import torch

    from engine.ops.packed import BIAS, e2m1

    group = scheme.group(values.shape[1])
    if scheme.kind == "mxfp4":
        whole, sizes = e2m1(values.to(torch.int32)), torch.exp2(scales.float() - BIAS)
    else:
        whole, sizes = values.to(torch.float32), scales.float()
    count = whole.shape[1] // group
    parts = [(whole[:, : count * group].unflatten(1, (count, group)), slice(count))]
    if whole.shape[1] % group:
        parts.append((whole[:, None, count * group :], slice(count, None)))
    for part, which in parts:
        if scheme.kind == "int4":
            part -= 8 if zeros is None else zeros[:, which, None]
        part *= sizes[:, which, None]
    return whole


def _halves(pairs: Tensor) -> Tensor:
    """uint8 [rows, columns / 2], the even column in the low bits → uint8 [rows, columns]."""
    import torch

    return torch.stack((pairs & 15, pairs >> 4), dim=-1).flatten(-2)
