"""Products with weights in the blocks of GGUF, as a file stores them, and rows of a table in them.

A weight is uint8 [out, bytes per row]: blocks of 32 columns, or of 256 (``_k``), one behind the other. Layouts:
``ggml-common.h`` and ``dequantize_row_*`` in ``ggml-quants.c``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from engine.ops.linear import SUMS
from engine.ops.quant import quantize_dynamic
from engine.ops.spec import ROUNDING, Case, Spec, op
from engine.weights.gguf_types import BY_NAME

FORMATS = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k")
GROUP = 32
"""Columns that share a scale of activations."""


def block_of(format: str) -> tuple[int, int]:
    """Columns and bytes of a block."""
    kind = BY_NAME[format.upper()]
    return kind.block, kind.nbytes


def bytes_of(format: str, columns: int) -> int:
    """Of a row. ``columns``: whole blocks of them."""
    block, nbytes = block_of(format)
    return columns // block * nbytes


def columns_of(format: str, nbytes: int) -> int:
    """Of a row of ``nbytes``."""
    block, each = block_of(format)
    return nbytes // each * block


def dequantised(weight: Any, format: str, dtype: str = "float32") -> Any:
    """weight: uint8 [out, bytes per row] → [out, in]. Computed in ``dtype``, ``float32`` or ``float64``; in the former
    every bit is what ggml makes of it."""
    import torch

    kind = getattr(torch, dtype)
    blocks = weight.unflatten(1, (-1, block_of(format)[1]))
    return _READERS[format](lambda part: part.contiguous().view(torch.float16).to(kind), blocks).flatten(1)


Half = Callable[[Any], Any]


def _nibbles(part: Any) -> Any:
    """[.., n] → int8 [.., 2 n]: the low halves of all bytes, then the high ones."""
    import torch

    return torch.cat((part & 15, part >> 4), dim=-1).to(torch.int8)


def _fifth(part: Any) -> Any:
    """[.., 4] → int8 [.., 32]: each bit, from the first byte's lowest on, in place of a fifth one."""
    import torch

    shifts = torch.arange(8, dtype=torch.uint8, device=part.device)
    return ((part[..., None] >> shifts & 1) << 4).flatten(-2).to(torch.int8)


def _q4_0(half: Half, b: Any) -> Any:
    return half(b[..., :2]) * (_nibbles(b[..., 2:]) - 8)


def _q4_1(half: Half, b: Any) -> Any:
    return half(b[..., :2]) * _nibbles(b[..., 4:]) + half(b[..., 2:4])


def _q5_0(half: Half, b: Any) -> Any:
    return half(b[..., :2]) * ((_nibbles(b[..., 6:]) | _fifth(b[..., 2:6])) - 16)


def _q5_1(half: Half, b: Any) -> Any:
    return half(b[..., :2]) * (_nibbles(b[..., 8:]) | _fifth(b[..., 4:8])) + half(b[..., 2:4])


def _q8_0(half: Half, b: Any) -> Any:
    import torch

    return half(b[..., :2]) * b[..., 2:].contiguous().view(torch.int8)


def _scales_and_mins(packed: Any) -> tuple[Any, Any]:
    """[.., 12] → two of [.., 8], 0..63."""
    import torch

    low, mid, high = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = torch.cat((low & 63, (high & 15) | (low >> 2 & 48)), dim=-1)
    return scales, torch.cat((mid & 63, (high >> 4) | (mid >> 2 & 48)), dim=-1)


def _k(half: Half, b: Any, codes: Any) -> Any:
    """codes: [.., 8, 32]."""
    scales, mins = _scales_and_mins(b[..., 4:16])
    factors, offsets = half(b[..., :2]) * scales, half(b[..., 2:4]) * mins
    return (factors[..., None] * codes - offsets[..., None]).flatten(-2)


def _q4_k(half: Half, b: Any) -> Any:
    return _k(half, b, _nibbles(b[..., 16:].unflatten(-1, (4, 32))).unflatten(-1, (2, 32)).flatten(-3, -2))


def _q5_k(half: Half, b: Any) -> Any:
    import torch

    low = _nibbles(b[..., 48:].unflatten(-1, (4, 32))).unflatten(-1, (2, 32)).flatten(-3, -2)
    shifts = torch.arange(8, dtype=torch.uint8, device=b.device)[:, None]
    return _k(half, b, low | ((b[..., None, 16:48] >> shifts & 1) << 4).to(torch.int8))


def _q6_k(half: Half, b: Any) -> Any:
    import torch

    low = _nibbles(b[..., :128].unflatten(-1, (2, 64)))
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8, device=b.device)[:, None]
    high = (b[..., 128:192].unflatten(-1, (2, 1, 32)) >> shifts & 3).flatten(-2)
    codes = (low | (high << 4).to(torch.int8)) - 32
    factors = half(b[..., 208:]) * b[..., 192:208].contiguous().view(torch.int8)
    return (factors[..., None] * codes.flatten(-2).unflatten(-1, (16, 16))).flatten(-2)


_READERS: dict[str, Callable[[Half, Any], Any]] = {
    "q4_0": _q4_0,
    "q4_1": _q4_1,
    "q5_0": _q5_0,
    "q5_1": _q5_1,
    "q8_0": _q8_0,
    "q4_k": _q4_k,
    "q5_k": _q5_k,
    "q6_k": _q6_k,
}

_SAMPLES = {
    "q4_0": (0, None, 4.6, 0.0),
    "q4_1": (0, 2, 4.6, -7.5),
    "q5_0": (0, None, 9.2, 0.0),
    "q5_1": (0, 2, 9.2, -15.5),
    "q8_0": (0, None, 74.0, 0.0),
    "q4_k": (0, 2, 270.0, 7.5),
    "q5_k": (0, 2, 550.0, 15.5),
    "q6_k": (208, None, 1370.0, 0.0),
}
"""Where a block has its factor and its offset, the spread of random codes, and the offset that moves them around zero,
in factors."""


def sample_blocks(rows: int, columns: int, format: str, rng: Any, largest: bool = False) -> Any:
    """uint8 [rows, bytes per row]: random codes of about ``columns ** -0.25``; ``largest``: all bits of them set. The
    last row is small, so that factors of ``_k`` are subnormal."""
    import torch

    (block, nbytes), (factor, offset, spread, middle) = block_of(format), _SAMPLES[format]
    count = columns // block
    found = torch.randint(256, (rows, count, nbytes), generator=rng).to(torch.uint8)
    if largest:
        found.fill_(127 if format == "q8_0" else 255)
    size = (torch.rand((rows, count, 1), generator=rng) + 0.5) / spread / columns**0.25
    size[-1] /= 16
    found[..., factor : factor + 2] = size.half().view(torch.uint8)
    if offset is not None:
        found[..., offset : offset + 2] = (size * middle).half().view(torch.uint8)
    return found.flatten(1)


_SHAPES = ((1, 1, 1), (2, 5, 3), (3, 16, 2), (7, 33, 1), (17, 48, 4), (130, 21, 1))
"""Tokens, rows, and columns in blocks or, where these are short, threes of blocks."""


def _cases(shapes: tuple[tuple[int, int, int], ...] = _SHAPES, bytes: int = 4, **attributes: Any) -> Iterator[Case]:
    """``bytes``: of an activation."""
    for place, format in enumerate(FORMATS):
        block = block_of(format)[0]
        for number, (tokens, out, count) in enumerate(shapes):
            columns = block * count * (3 if block == GROUP and number % 2 else 1)
            sizes = {"tokens": tokens, "hidden": columns, "out": out, "bias": (place + number) % 2, "bytes": bytes}
            yield Case({**sizes, "largest": 0}, {"format": format, **attributes})
        sizes = {"tokens": 2, "hidden": 768, "out": 17, "bias": 0, "bytes": bytes, "largest": 1}
        yield Case(sizes, {"format": format, **attributes})


def _inputs(case: Case, dtype: str, rng: Any) -> tuple[Any, ...]:
    """x, the weight, and a bias if the case has one."""
    import torch

    tokens, width, out, largest = (case.sizes[name] for name in ("tokens", "hidden", "out", "largest"))
    kind = getattr(torch, dtype)
    x = torch.randn((tokens, width), generator=rng) / width**0.25
    if largest:
        x = torch.tensor([1.0, -1.0])[:tokens, None].expand(tokens, width) / width**0.25
    weight = sample_blocks(out, width, case.attributes["format"], rng, bool(largest))
    bias = (torch.randn(out, generator=rng).to(kind),) if case.sizes["bias"] else ()
    return x.to(kind), weight, *bias


def _scaled_inputs(case: Case, dtype: str, rng: Any) -> tuple[Any, ...]:
    x, *rest = _inputs(case, dtype, rng)
    storage = f"int{8 * case.sizes['bytes']}"
    return *quantize_dynamic.reference(x, storage=storage, columns=GROUP, power_of_two=False), *rest


@op(
    shapes=lambda specs, attributes: (Spec(specs[0].dtype, (*specs[0].shape[:-1], specs[1].shape[0])),),
    inputs=_inputs,
    cases=tuple(_cases()),
    tolerance=SUMS,
    weights=(1, 2),
)
def block_linear(x: Any, weight: Any, bias: Any = None, *, format: str) -> Any:
    """``x @ wᵀ (+ bias)``, w the values of ``weight``. x: [tokens, in], floating; weight: uint8 [out, bytes per row] in
    ``format``, one of ``FORMATS``; bias: [out]. Sums are float32 (float64 for float64), rounded once to x's dtype."""
    import torch

    wide = torch.promote_types(x.dtype, torch.float32)
    values = dequantised(weight, format, str(wide).removeprefix("torch."))
    return torch.nn.functional.linear(x.to(wide), values, None if bias is None else bias.to(wide)).to(x.dtype)


@op(
    shapes=lambda specs, attributes: (Spec(attributes["result"], (*specs[0].shape[:-1], specs[2].shape[0])),),
    inputs=_scaled_inputs,
    cases=(
        *_cases(bytes=1, result="float32"),
        *_cases(_SHAPES[1::2], bytes=2, result="float32"),
        *(
            Case(
                {"tokens": 3, "hidden": 256, "out": 9, "bias": 1, "bytes": 1, "largest": 0},
                {"format": f, "result": "bfloat16"},
            )
            for f in FORMATS
        ),
    ),
    tolerance=SUMS,
    weights=(2, 3),
)
def scaled_block_linear(x: Any, scales: Any, weight: Any, bias: Any = None, *, format: str, result: str) -> Any:
    """``(x * scales) @ wᵀ (+ bias)`` in dtype ``result``, w the values of ``weight``.

    x: int8 or int16 [tokens, in], no value beyond the largest of its storage type; scales: float32 [tokens, in /
    GROUP], as ``quantize_dynamic`` makes them for groups of ``GROUP`` columns; weight: uint8 [out, bytes per row] in
    ``format``, one of ``FORMATS``; bias: [out]. Sums of a group are exact, or of each digit of int16, those of groups
    float32 (float64 for scales in float64), rounded once."""
    import torch

    wide = torch.promote_types(scales.dtype, torch.float32)
    values = dequantised(weight, format, str(wide).removeprefix("torch."))
    whole = (x.unflatten(-1, (-1, GROUP)) * scales[..., None].to(wide)).flatten(-2)
    total = torch.nn.functional.linear(whole, values, None if bias is None else bias.to(wide))
    return total.to(getattr(torch, result))


def _rows_inputs(case: Case, dtype: str, rng: Any) -> tuple[Any, ...]:
    import torch

    tokens, width, rows = (case.sizes[name] for name in ("tokens", "hidden", "rows"))
    ids = torch.randint(rows, (tokens,), generator=rng)
    return ids, sample_blocks(rows, width, case.attributes["format"], rng)


@op(
    shapes=lambda specs, attributes: (
        Spec(attributes["result"], (*specs[0].shape, columns_of(attributes["format"], int(specs[1].shape[1])))),
    ),
    inputs=_rows_inputs,
    cases=tuple(
        Case({"tokens": tokens, "hidden": hidden, "rows": rows}, {"format": format, "result": result})
        for format in FORMATS
        for tokens, hidden, rows, result in ((1, 256, 3, "float32"), (7, 768, 33, "float32"), (3, 512, 5, "bfloat16"))
    ),
    tolerance=ROUNDING,
    weights=(1,),
)
def block_embedding(ids: Any, weight: Any, *, format: str, result: str) -> Any:
    """Rows of a table, [tokens, hidden] in dtype ``result``. ids: [tokens] int64 in range; weight: uint8 [vocabulary,
    bytes per row] in ``format``, one of ``FORMATS``. Values are float32, rounded once."""
    import torch

    return dequantised(weight[ids], format).to(getattr(torch, result))
