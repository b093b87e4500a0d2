"""Inputs and cases of the catalog's fused ops, for comparing kernels with the reference."""

from __future__ import annotations

from typing import Any

from engine.ops import OPS, Case

Sample = tuple[Any, tuple[Case, ...]]


def _parts(case: Case, dtype: str, rng: Any) -> tuple[Any, ...]:
    q, k, table = OPS["rotary"].inputs(case, dtype, rng)
    _, v, cache, slots = OPS["kv_write"].inputs(case, dtype, rng)
    return q, k, table, v, cache, slots


def _weights(case: Case, dtype: str, rng: Any) -> list[Any]:
    import torch

    return [torch.randn(case.attributes["head_dim"], generator=rng).to(getattr(torch, dtype)) for _ in range(2)]


def _normed(case: Case, dtype: str, rng: Any) -> tuple[Any, ...]:
    q, k, table, *_ = _parts(case, dtype, rng)
    q_weight, k_weight = _weights(case, dtype, rng)
    return q, q_weight, k, k_weight, table


def _normed_written(case: Case, dtype: str, rng: Any) -> tuple[Any, ...]:
    q, k, *rest = _parts(case, dtype, rng)
    q_weight, k_weight = _weights(case, dtype, rng)
    return q, q_weight, k, k_weight, *rest


def _cases(**attributes: Any) -> tuple[Case, ...]:
    return tuple(
        Case({**case.sizes, "blocks": 5, "page": 4}, {**case.attributes, **attributes}) for case in OPS["rotary"].cases
    )


SAMPLES: dict[str, Sample] = {
    "rotary_kv_write": (_parts, _cases()),
    "qk_norm_rotary": (_normed, _cases(eps=1e-6)),
    "qk_norm_rotary_kv_write": (_normed_written, _cases(eps=1e-6)),
}
