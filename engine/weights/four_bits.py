"""Weights of four bits as checkpoints lay them out, into that of ``engine.ops.packed``.

All keep eight values in an int32, the first in its lowest bits; they differ in which eight. Sources: AutoAWQ's
``WQLinear_GEMM``, AutoGPTQ's ``QuantLinear``, compressed-tensors' ``pack-quantized``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Column, within its eight, that each four bits hold."""


def nibbles(words: Tensor, axis: int, order: tuple[int, ...] = tuple(range(8))) -> Tensor:
    """int32 → uint8 with eight times the length along ``axis``. ``order``: where, within its eight, each four bits
    belong."""
    import torch

    parts = [(words >> 4 * order.index(place) & 15).to(torch.uint8) for place in range(8)]
    return torch.stack(parts, dim=axis + 1).flatten(axis, axis + 1)


def from_awq(qweight: Tensor, scales: Tensor, qzeros: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """qweight: int32 [in, out / 8]; scales: [groups, out]; qzeros: int32 [groups, out / 8] → values uint8 [out, in],
    scales [out, groups], zeros uint8 [out, groups]."""
    return nibbles(qweight, 1, AWQ_ORDER).T, scales.T, nibbles(qzeros, 1, AWQ_ORDER).T


def from_gptq(
    qweight: Tensor, scales: Tensor, qzeros: Tensor, g_idx: Tensor | None, name: str, one_less: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """qweight: int32 [in / 8, out]; scales: [groups, out]; qzeros: int32 [groups, out / 8], ``one_less`` than the zeros
    they mean; g_idx: int32 [in], the group of each column → as ``from_awq``. Raises ``UserError`` naming ``name`` for
    columns whose groups are not runs (activation order)."""
    import torch

    values = nibbles(qweight, 0).T
    columns, groups = values.shape[1], scales.shape[0]
    if g_idx is not None:
        runs = torch.arange(columns, device=g_idx.device) // -(-columns // groups)
        if not torch.equal(g_idx.long(), runs):
            raise UserError(
                f"{name}: its columns were quantised in order of activation (desc_act: g_idx is not in runs), "
                "which no kernel here reads; use a checkpoint made with desc_act false"
            )
    zeros = nibbles(qzeros, 1).T
    # Added within four bits, as the format's own kernels do.
    return values, scales.T, (zeros + 1 & 15 if one_less else zeros)


def from_compressed(
    packed: Tensor, scales: Tensor, zeros: Tensor | None, columns: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """packed: int32 [out, ceil(in / 8)]; scales: [out, groups]; zeros: int32 [ceil(out / 8), groups] → as ``from_awq``;
    no zeros mean 8."""
    values = nibbles(packed, 1)[:, :columns]
    return values, scales, None if zeros is None else nibbles(zeros, 0)[: packed.shape[0]]


def from_pairs(packed: Tensor) -> Tensor:
    """uint8 [out, in / 2], the even column in the low bits → uint8 [out, in]. MXFP4 lies like that."""
    import torch

    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)
