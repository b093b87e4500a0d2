"""Quantised activations and products with quantised weights.

A stored value times its scale is the value. Quotients are made in float32 (float64 for float64) and rounded once, to
the nearest value of the storage type, ties to even; what lies beyond its largest value is stored as that.
"""

from __future__ import annotations

from typing import Any

from engine.ops.linear import SUMS
from engine.ops.spec import Case, Spec, op

FLOATS = ("float8_e4m3fn", "float8_e4m3fnuz")
STORAGES = (*FLOATS, "int8")
LARGEST = 127 * 256
"""The largest value of int16: two digits from -127 to 127 to base 255 make each."""
SMALLEST = 1e-10
"""The least largest magnitude that a dynamic scale is made from, so that a row of zeros has a scale above zero."""

_STEP = {"float8_e4m3fn": (2**-3, 2**-9), "float8_e4m3fnuz": (2**-3, 2**-10), "int8": (0.0, 1.0), "int16": (0.0, 1.0)}
"""One step of a storage type: three bits of mantissa, or the least subnormal. Bounds of outputs of that type."""
_SCALE = (2**-22, 0.0)
_QUANTISED = {**dict.fromkeys(("float64", "float32", "float16", "bfloat16"), _SCALE), **_STEP}
_WIDTHS = (1, 2, 7, 127, 769)


def _limits(storage: str) -> tuple[float, float]:
    """Least and largest value."""
    import torch

    if storage == "int16":
        return -LARGEST, LARGEST
    kind = getattr(torch, storage)
    found = torch.finfo(kind) if kind.is_floating_point else torch.iinfo(kind)
    return found.min, found.max


def _store(quotient: Any, storage: str) -> Any:
    import torch

    kept = quotient.clamp(*_limits(storage))
    return (kept if storage in FLOATS else kept.round()).to(getattr(torch, storage))


def _activations(case: Case, dtype: str, rng: Any) -> Any:
    """One row of zeros where there are several, and one value far beyond the rest."""
    import torch

    x = torch.randn((case.sizes["tokens"], case.sizes["hidden"]), generator=rng) * 3
    x[0, 0] = -1000.0
    x[1:2] = 0.0
    return x.to(getattr(torch, dtype))


def _static_inputs(case: Case, dtype: str, rng: Any) -> tuple[Any, ...]:
    import torch

    return _activations(case, dtype, rng), torch.full((1,), 0.037)


@op(
    shapes=lambda specs, attributes: (Spec(attributes["storage"], specs[0].shape),),
    inputs=_static_inputs,
    cases=tuple(Case({"tokens": 1 + n % 4, "hidden": n}, {"storage": s}) for n in _WIDTHS for s in STORAGES),
    tolerance=_QUANTISED,
    weights=(1,),
)
def quantize_static(x: Any, scale: Any, *, storage: str) -> Any:
    """``x / scale`` in dtype ``storage``. x: [tokens, n], scale: [1] float32, above zero → [tokens, n]."""
    import torch

    wide = torch.promote_types(x.dtype, torch.float32)
    return _store(x.to(wide) / scale.to(wide), storage)


def _dynamic_shapes(specs: tuple[Spec, ...], attributes: Any) -> tuple[Spec, ...]:
    *rows, width = specs[0].shape
    groups = -(-int(width) // (attributes["columns"] or int(width)))
    return Spec(attributes["storage"], specs[0].shape), Spec("float32", (*rows, groups))


@op(
    shapes=_dynamic_shapes,
    inputs=lambda case, dtype, rng: (_activations(case, dtype, rng),),
    cases=tuple(
        Case({"tokens": 1 + n % 4, "hidden": n}, {"storage": s, "columns": c, "power_of_two": p})
        for n, s, c, p in [
            (1, "float8_e4m3fn", 0, False),
            (2, "int8", 0, False),
            (7, "float8_e4m3fnuz", 0, False),
            (7, "float8_e4m3fn", 2, True),
            (127, "float8_e4m3fn", 0, False),
            (127, "int8", 64, False),
            (127, "int16", 64, False),
            (96, "int16", 32, False),
            (7, "int16", 0, False),
            (769, "float8_e4m3fn", 128, True),
            (769, "float8_e4m3fn", 128, False),
            (769, "float8_e4m3fnuz", 128, False),
        ]
    ),
    tolerance=_QUANTISED,
)
def quantize_dynamic(x: Any, *, storage: str, columns: int, power_of_two: bool) -> Any:
    """x in dtype ``storage``, and the scales of each run of ``columns`` columns (0: the whole row; the last run may be
    shorter). x: [tokens, n] → [tokens, n], scales [tokens, ceil(n / columns)] float32.

    A scale is the run's largest magnitude, at least ``SMALLEST``, over the largest value of ``storage``;
    ``power_of_two`` rounds it up to a power of two. That of a run that holds NaN is NaN.
    """
    import torch

    width = x.shape[-1]
    run = columns or width
    wide = torch.promote_types(x.dtype, torch.float32)
    padded: Any = torch.nn.functional.pad(x.to(wide), (0, -width % run))
    rows = padded.unflatten(-1, (-1, run))
    scales = (rows.abs().amax(-1).clamp_min(SMALLEST) / _limits(storage)[1]).to(torch.float32)
    if power_of_two:
        scales = _round_up(scales)
    stored = _store(rows / scales[..., None].to(wide), storage)
    return stored.flatten(-2)[..., :width].contiguous(), scales


def _round_up(scales: Any) -> Any:
    """To powers of two, by carrying the mantissa of a normal float32 into its exponent: exact, unlike ``log2``. NaN
    stays."""
    import torch

    carried = ((scales.view(torch.int32) + 0x7FFFFF) & 0x7F800000).view(torch.float32)
    return torch.where(scales.isnan(), scales, carried)


def _scaled_inputs(case: Case, dtype: str, rng: Any) -> tuple[Any, ...]:
    """Quantised from random activations and weights; sizes ``storage`` and ``scaling`` count ``STORAGES`` and tensor,
    token, group."""
    import torch

    tokens, width, out = (case.sizes[name] for name in ("tokens", "hidden", "out"))
    storage, block = STORAGES[case.sizes["storage"]], case.attributes["block"]
    x, weight = (torch.randn(shape, generator=rng) / width**0.25 for shape in ((tokens, width), (out, width)))
    if case.sizes["scaling"]:
        columns = block[1] if case.sizes["scaling"] == 2 else 0
        stored, scale = quantize_dynamic.reference(x, storage=storage, columns=columns, power_of_two=False)
    else:
        scale = torch.full((1,), 3 / _limits(storage)[1])
        stored = quantize_static.reference(x, scale, storage=storage)
    rows, columns = block or (1, width)
    counts = (-(-out // rows), -(-width // columns))
    sides = (torch.rand(counts, generator=rng) + 0.5) * 3 / _limits(storage)[1]
    whole = sides.repeat_interleave(rows, 0)[:out].repeat_interleave(columns, 1)[:, :width]
    given = stored, scale, _store(weight / whole, storage), sides if block else sides[:, 0]
    if not case.sizes["bias"]:
        return given
    return *given, torch.randn(out, generator=rng).to(getattr(torch, dtype))


@op(
    shapes=lambda specs, attributes: (Spec(attributes["result"], (*specs[0].shape[:-1], specs[2].shape[0])),),
    inputs=_scaled_inputs,
    cases=tuple(
        Case(
            {"tokens": t, "hidden": k, "out": n, "storage": s, "scaling": how, "bias": t % 2},
            {"result": result, "block": block},
        )
        for t, k, n, s, how, block, result in [
            (1, 1, 1, 0, 0, None, "float32"),
            (2, 7, 2, 2, 1, None, "float32"),
            (3, 127, 33, 1, 1, None, "bfloat16"),
            (4, 769, 64, 0, 1, None, "float32"),
            (2, 769, 5, 2, 0, None, "float16"),
            (3, 96, 40, 0, 2, (32, 32), "float32"),
            (2, 127, 33, 1, 2, (16, 64), "bfloat16"),
            (2, 70, 7, 2, 1, (4, 32), "float32"),
            *((3, 64, 32, place, 1, None, "bfloat16") for place in range(len(STORAGES))),
        ]
    ),
    tolerance=SUMS,
    weights=(2, 3, 4),
)
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
    """``(x * x_scale) @ (weight * weight_scale)ᵀ (+ bias)`` in dtype ``result``.

    x: [tokens, in], weight: [out, in], both in one storage type. x_scale: [1], [tokens, 1], or one per group of
    ``block[1]`` columns, [tokens, ceil(in / block[1])]. weight_scale: [out], or one per block of ``block`` (rows,
    columns), [ceil(out / block[0]), ceil(in / block[1])]; scales are float32. bias: [out]. Sums are float32, those of
    int8 exact; they are scaled block by block and rounded once at the end.
    """
    import torch

    wide = torch.float32 if x.element_size() == 1 and x.is_floating_point() else torch.float64
    (out, width), tokens = weight.shape, x.shape[0]
    rows, columns = block or (1, width)
    grid = weight_scale.view(-1, 1, -(-width // columns))
    sides = grid.expand(-1, rows, -1).flatten(0, 1)[:out]
    scales = x_scale.expand(tokens, sides.shape[1])
    total = torch.zeros((tokens, out), dtype=wide, device=x.device)
    for at in range(sides.shape[1]):
        span = slice(at * columns, (at + 1) * columns)
        part = torch.nn.functional.linear(x[:, span].to(wide), weight[:, span].to(wide))
        total += part * scales[:, at, None] * sides[:, at]
    return (total if bias is None else total + bias.to(wide)).to(getattr(torch, result))
