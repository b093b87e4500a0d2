"""Products of dense activations with weights of four bits.

Weights lie in runs of ``RUN`` columns: byte j of a run's ``RUN // 2`` holds column j in its low and column
``RUN // 2 + j`` in its high half, so that both halves of a run of bytes are columns side by side.
"""

from __future__ import annotations

from typing import Any

from engine.ops.linear import SUMS
from engine.ops.spec import Case, Spec, op

RUN = 64
BIAS = 127
"""Of an exponent that is a byte, e8m0: OCP Microscaling Formats (MX) Specification 1.0, section 5.4.1."""


def pack(values: Any) -> Any:
    """values: [out, in] whole numbers 0..15, of any integer dtype; ``in`` is filled up with zeros to whole runs →
    uint8 [out, ceil(in / RUN) · RUN / 2]."""
    import torch

    padded: Any = torch.nn.functional.pad(values.to(torch.uint8), (0, -values.shape[1] % RUN))
    low, high = padded.unflatten(-1, (-1, 2, RUN // 2)).unbind(-2)
    return (low | high << 4).flatten(-2)


def unpack(packed: Any, columns: int) -> Any:
    """What ``pack`` was given: uint8 [out, columns]."""
    import torch

    runs = packed.unflatten(-1, (-1, RUN // 2))
    return torch.stack((runs & 15, runs >> 4), dim=-2).flatten(1)[:, :columns]


def e2m1(bits: Any) -> Any:
    """4-bit floats (sign, two bits of exponent, one of mantissa), int32 0..15 → float32. Source: the same
    specification, section 5.3.3."""
    import torch

    exponent, mantissa = bits >> 1 & 3, (bits & 1) * 0.5
    size = torch.where(exponent == 0, mantissa, (1 + mantissa) * torch.exp2(exponent.float() - 1))
    return torch.where(bits >= 8, -size, size)


def _inputs(case: Case, dtype: str, rng: Any) -> tuple[Any, ...]:
    import torch

    tokens, width, out, group = (case.sizes[name] for name in ("tokens", "hidden", "out", "group"))
    kind, groups = getattr(torch, dtype), -(-width // group)
    x = (torch.randn((tokens, width), generator=rng) / width**0.25).to(kind)
    weight = pack(torch.randint(16, (out, width), generator=rng))
    if case.attributes["format"] == "mxfp4":
        scales = torch.randint(BIAS - 5, BIAS - 1, (out, groups), generator=rng).to(torch.uint8)
        zeros = None
    else:
        scales = ((torch.rand((out, groups), generator=rng) + 0.5) / 8).to(kind)
        zeros = torch.randint(16, (out, groups), generator=rng).to(torch.uint8) if case.sizes["zeros"] else None
    bias = torch.randn(out, generator=rng).to(kind) if case.sizes["bias"] else None
    given = x, weight, scales
    if bias is None and zeros is None:
        return given
    zeros = torch.full((out, groups), 8, dtype=torch.uint8) if zeros is None else zeros
    return (*given, zeros) if bias is None else (*given, zeros, bias)


@op(
    shapes=lambda specs, attributes: (Spec(specs[0].dtype, (*specs[0].shape[:-1], specs[1].shape[0])),),
    inputs=_inputs,
    cases=tuple(
        Case(
            {"tokens": t, "hidden": k, "out": n, "group": group, "zeros": zeros, "bias": bias},
            {"group": group, "format": "mxfp4" if mx else "int4"},
        )
        for t, k, n, group, zeros, bias, mx in [
            (1, 64, 5, 32, 0, 0, False),
            (2, 128, 7, 128, 1, 0, False),
            (3, 96, 33, 32, 1, 1, False),
            (17, 256, 64, 64, 0, 0, False),
            (2, 192, 9, 192, 0, 1, False),
            (1, 64, 5, 32, 0, 0, True),
            (5, 160, 40, 32, 0, 1, True),
        ]
    ),
    tolerance=SUMS,
    weights=(1, 2, 3, 4),
)
def packed_linear(
    x: Any, weight: Any, scales: Any, zeros: Any = None, bias: Any = None, *, group: int, format: str
) -> Any:
    """``x @ wᵀ (+ bias)`` with a weight w [out, in] of four bits a value.

    x: [tokens, in]; weight: uint8 as ``pack`` makes it. ``format``: ``int4``, where w = (stored - zero) * scale with
    scales [out, in / group] in x's dtype and zeros of that shape in uint8 (8 where there are none), or ``mxfp4``, where
    stored is a 4-bit float, e2m1, scales are uint8 exponents, 2^(scale - 127), and zeros, if given, are not read.
    ``group``: columns that share a scale, a multiple of 32 that divides in. bias: [out]. w is rounded to x's dtype,
    sums are float32 (float64 for float64), rounded once. Sources: Lin et al., "AWQ"; OCP MX specification 1.0.
    """
    import torch

    wide = torch.promote_types(x.dtype, torch.float32)
    stored = unpack(weight, x.shape[1])
    if format == "mxfp4":
        values, factors = e2m1(stored.to(torch.int32)).to(wide), torch.exp2(scales.to(wide) - BIAS)
    else:
        offset = 8 if zeros is None else zeros.to(wide).repeat_interleave(group, 1)
        values, factors = stored.to(wide) - offset, scales.to(wide)
    dense = (values * factors.repeat_interleave(group, 1)).to(x.dtype)
    return torch.nn.functional.linear(x, dense, None if bias is None else bias.to(x.dtype))
