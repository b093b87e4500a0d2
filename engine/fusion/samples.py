"""Inputs and cases of the catalog's fused ops, for comparing kernels with the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from engine.ops import OPS, Case

if TYPE_CHECKING:
    from engine.fusion.fused import Step

Inputs = Callable[[Case, str, Any], tuple[Any, ...]]
Sample = tuple[Inputs, tuple[Case, ...]]


def composed(steps: Sequence[Step], names: Sequence[str]) -> Inputs:
    """Inputs of a fused op from those of its steps: every step makes its own for the same case, and gives what no step
    before it has given or made. ``names``: inputs of the fused op, in order."""

    def inputs(case: Case, dtype: str, rng: Any) -> tuple[Any, ...]:
        found: dict[str, Any] = {}
        for step in steps:
            given = OPS[step.op].inputs(case, dtype, rng)
            for name, tensor in zip(step.inputs, given, strict=False):
                found.setdefault(name, tensor)
        return tuple(found[name] for name in names if name in found)

    return inputs


def _weights(widths: Sequence[int], dtype: str, rng: Any) -> list[Any]:
    import torch

    return [torch.randn(width, generator=rng).to(getattr(torch, dtype)) for width in widths]


def _normed(case: Case, dtype: str, rng: Any) -> tuple[Any, ...]:
    q, k, table = OPS["rotary"].inputs(case, dtype, rng)
    q_weight, k_weight = _weights([case.attributes["head_dim"]] * 2, dtype, rng)
    return q, q_weight, k, k_weight, table


def _normed_written(case: Case, dtype: str, rng: Any) -> tuple[Any, ...]:
    _, *written = OPS["kv_write"].inputs(case, dtype, rng)
    return *_normed(case, dtype, rng), *written


def _latents(case: Case, dtype: str, rng: Any) -> tuple[Any, ...]:
    return *OPS["split"].inputs(case, dtype, rng), *_weights(case.attributes["sizes"][:2], dtype, rng)


def _attended(case: Case, dtype: str, rng: Any) -> tuple[Any, ...]:
    """A scale of one, so that attention's own bound is not divided by a small one."""
    import torch

    given = OPS["attention"].inputs(case, dtype, rng)
    return *given[:5], torch.ones(1), *given[5:]


def _rotary_cases(*more: dict[str, int], **attributes: Any) -> tuple[Case, ...]:
    return tuple(
        Case({**case.sizes, "blocks": 5, "page": 4, **sizes}, {**case.attributes, **attributes})
        for sizes in ({}, *more)
        for case in OPS["rotary"].cases
    )


_FLAVOURS = ({"flavour": 0}, {"flavour": 1})
"""Of 8-bit caches."""


def _row_cases(*kinds: dict[str, Any]) -> tuple[Case, ...]:
    """Rows of odd widths, each with the next of ``kinds`` as attributes."""
    widths = ((1, 1), (3, 127), (2, 769), (5, 64), (4, 64))
    return tuple(
        Case({"tokens": tokens, "hidden": width}, kinds[at % len(kinds)]) for at, (tokens, width) in enumerate(widths)
    )


def _static(**more: Any) -> tuple[Case, ...]:
    return _row_cases(*({"storage": kind, **more} for kind in ("float8_e4m3fn", "int8", "float8_e4m3fnuz")))


def _dynamic(**more: Any) -> tuple[Case, ...]:
    fn, fnuz = "float8_e4m3fn", "float8_e4m3fnuz"
    kinds = ((fn, 0, False), ("int8", 0, False), (fn, 128, True), (fnuz, 32, False), (fn, 32, False))
    names = ("storage", "columns", "power_of_two")
    return _row_cases(*({**dict(zip(names, kind, strict=True)), **more} for kind in kinds))


_EPS, _TP = {"eps": 1e-6}, {"group": "tp"}

CASES: dict[str, tuple[Case, ...]] = {
    "add_rms_norm_pad": _row_cases({"multiple": 128, **_EPS}, {"multiple": 8, **_EPS}),
    "all_reduce_add_rms_norm_quantize_static": _static(**_EPS, **_TP),
    "all_reduce_add_rms_norm_quantize_dynamic": _dynamic(**_EPS, **_TP),
    "all_reduce_add_rms_norm": _row_cases({**_EPS, **_TP}),
    "all_reduce_rms_norm": _row_cases({**_EPS, **_TP}),
    "add_rms_norm_quantize_static": _static(**_EPS),
    "add_rms_norm_quantize_dynamic": _dynamic(**_EPS),
    "rms_norm_quantize_static": _static(**_EPS),
    "rms_norm_quantize_dynamic": _dynamic(**_EPS),
    "silu_and_mul_quantize_static": _static(),
    "silu_and_mul_quantize_dynamic": _dynamic(),
    "gelu_and_mul_quantize_static": (*_static(approximate="tanh"), *_static(approximate="none")),
    "gelu_and_mul_quantize_dynamic": (*_dynamic(approximate="tanh"), *_dynamic(approximate="none")),
    "rotary_kv_write": _rotary_cases(*_FLAVOURS),
    "rotary_mla_write": tuple(
        Case(
            {"tokens": 5, "heads": heads, "kv_heads": 1, "blocks": 5, "page": 4, "kv_rank": rank, "rope": dim},
            {"head_dim": dim},
        )
        for heads, rank, dim in [(1, 3, 2), (4, 64, 16)]
    ),
}
"""Fused op → cases whose inputs its steps make."""

SAMPLES: dict[str, Sample] = {
    "attention_quantize_static": (
        _attended,
        tuple(
            Case(case.sizes, {**case.attributes, "storage": storage})
            for storage, least in (("float8_e4m3fn", 0), ("float8_e4m3fnuz", -1))
            for case in OPS["attention"].cases[least:]
        ),
    ),
    "qk_norm_rotary": (_normed, _rotary_cases(eps=1e-6)),
    "qk_norm_rotary_kv_write": (_normed_written, _rotary_cases(*_FLAVOURS, eps=1e-6)),
    "dual_rms_norm": (
        _latents,
        tuple(Case({"tokens": 3}, {"sizes": sizes, "eps": 1e-6}) for sizes in [(7, 5, 2), (96, 64, 8)]),
    ),
}
"""Fused op → inputs and cases of its own, where the widths of its steps differ."""
