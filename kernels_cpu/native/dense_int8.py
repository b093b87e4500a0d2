"""Products of int8 activations with int8 weights.

Packed: the weight as ``dense`` lays it out but in steps of four columns, [strip][column / 4][16][4], each value plus
128, every block of columns filled up to whole steps; scales as [blocks, rows of all strips]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernels_cpu.memory import pages
from kernels_cpu.native.dense import STRIP, packed_length, rows_in
from kernels_cpu.record import call, empty, native, rows

STEP, PART = 4, 4096


def _filled(columns: int) -> int:
    return -(-columns // STEP) * STEP


def _row_bytes(width: int, block: int) -> int:
    """Of a row, packed."""
    blocks = -(-width // block)
    return (blocks - 1) * _filled(block) + _filled(width - (blocks - 1) * block)


def pack(weights: tuple[Any, ...], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    """weight [out, in] and its scales → packed; a bias stays as it is."""
    import torch

    weight, scales, *bias = weights
    count, width = weight.shape
    high, block = attributes["block"] or (1, width)
    blocks, depth = -(-width // block), _row_bytes(width, block)
    # Memory that was taken inside inference mode may only be written there.
    with torch.inference_mode():
        found = pages(packed_length(count, depth * STRIP))
        strips = found[: -(-count // STRIP) * depth * STRIP].view(-1, depth // STEP, STRIP, STEP)
        part: Any
        for begin in range(0, count, PART):
            part = weight[begin : begin + PART].view(torch.uint8) ^ 128
            part = torch.nn.functional.pad(part, (0, blocks * block - width, 0, -len(part) % STRIP))
            part = torch.nn.functional.pad(part.unflatten(1, (blocks, block)), (0, _filled(block) - block))
            part = part.flatten(1)[:, :depth].unflatten(1, (-1, STEP)).unflatten(0, (-1, STRIP))
            strips[begin // STRIP :][: len(part)] = part.transpose(1, 2)
        sides = scales.view(-1, blocks).repeat_interleave(high, 0)[:count].t()
        sides = torch.nn.functional.pad(sides, (0, -count % STRIP)).contiguous()
    return (found, sides, *bias)


@native
def scaled_linear(
    x: Any,
    x_scale: Any,
    weight: Any,
    weight_scale: Any,
    bias: Any = None,
    *,
    result: str,
    block: tuple[int, int] | None,
) -> Any:
    """As the op, for int8 and a float32 ``result``, with weights packed."""
    import torch

    tokens, width = x.shape
    columns = block[1] if block else width
    blocks, depth = weight_scale.shape[0], _row_bytes(width, columns)
    count = rows_in(weight.shape[0], depth * STRIP)
    packed, sums = empty((tokens * depth,), torch.int8), empty((tokens * blocks,), torch.int32)
    call("engine_int8_pack", (rows(x), packed, sums), (tokens, width, x.stride(0), columns, depth))
    out = empty((tokens, count), torch.float32)
    strides = (0, 0) if x_scale.ndim == 1 else (x_scale.stride(0), x_scale.stride(1) if x_scale.shape[1] > 1 else 0)
    call(
        "engine_int8_product",
        (packed, weight, weight_scale, bias, out, sums, x_scale),
        (tokens, depth, count, blocks, _filled(columns), *strides),
    )
    return out
