"""Products of float32 activations with dense weights.

A packed weight is one flat tensor: strips of 16 rows, [strip][column][16], the last one filled up with zeros, and as
many values more as the last strip lacks rows, so that its length tells how many rows there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernels_cpu.memory import pages
from kernels_cpu.record import call, empty, native, rows

STRIP = 16
KERNELS = {"float32": "engine_dense_float", "float16": "engine_dense_half", "bfloat16": "engine_dense_bfloat"}


def rows_in(length: int, strip: int) -> int:
    """Rows of a packed weight of ``length`` values, ``strip`` of them in a strip."""
    return length // strip * STRIP - length % strip


def packed_length(count: int, strip: int) -> int:
    """Values of a packed weight of ``count`` rows."""
    lacking = -count % STRIP
    return (count + lacking) // STRIP * strip + lacking


def pack(weights: tuple[Any, ...], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    """[out, in] → packed, in 16 bits where these hold every value exactly; a bias stays as it is."""
    import torch

    weight = weights[0]
    count, width = weight.shape
    whole = count // STRIP
    # Memory that was taken inside inference mode may only be written there.
    with torch.inference_mode():
        kind = stored(weight)
        found = pages(packed_length(count, width * STRIP) * kind.itemsize).view(kind)
        strips = found[: -(-count // STRIP) * width * STRIP].view(-1, width, STRIP)
        strips[:whole] = weight[: whole * STRIP].view(whole, STRIP, width).transpose(1, 2)
        if count % STRIP:
            strips[whole, :, : count % STRIP] = weight[whole * STRIP :].t()
    return (found, *weights[1:])


def stored(weight: Any) -> Any:
    """The narrowest dtype that holds every value, as a checkpoint of 16 bits had them; looked for in parts, so that
    no second copy is made."""
    import torch

    parts = weight.split(max(1, (1 << 22) // max(1, weight.shape[1])))
    for kind in (torch.bfloat16, torch.float16):
        if all(bool((part.to(kind).to(part.dtype) == part).all()) for part in parts):
            return kind
    return torch.float32


def columnwise(x: Any) -> Any:
    """x: [tokens, in] float32 as the kernels want it: columns of a tile of tokens side by side. One token is so."""
    tokens, width = x.shape
    if tokens == 1:
        return rows(x)
    packed = empty((tokens * width,), x.dtype)
    call("engine_dense_pack", (rows(x), packed), (tokens, width, x.stride(0)))
    return packed


@native
def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """As the op, for float32 with ``weight`` packed."""
    import torch

    tokens, width = x.shape
    count = rows_in(weight.shape[0], width * STRIP)
    out = empty((tokens, count), torch.float32)
    kernel = KERNELS[str(weight.dtype).removeprefix("torch.")]
    call(kernel, (columnwise(x), weight, bias, out), (tokens, width, count))
    return out


def pack_widened(weights: tuple[Any, ...], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    """As ``pack``, with a bias in float32."""
    return pack((weights[0], *(bias.float() for bias in weights[1:])), attributes)


def widened(x: Any, weight: Any, bias: Any = None) -> Any:
    """As the op, for 16-bit floats that the processor has no products of, with ``weight`` packed: sums of float32."""
    return linear(x.float(), weight, bias).to(x.dtype)
