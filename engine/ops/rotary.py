"""Rotary position embedding."""

from __future__ import annotations

from typing import Any

from engine.ops.constant import constant
from engine.ops.spec import Case, Spec, op

_CASES = tuple(
    Case({"tokens": t, "heads": h, "kv_heads": g}, {"head_dim": d})
    for t, h, g, d in [(1, 1, 1, 2), (5, 4, 2, 16), (3, 9, 3, 64)]
)


def _table_inputs(case: Case, dtype: str, rng: Any) -> tuple[Any, ...]:
    import torch

    return (torch.randint(4096, (case.sizes["tokens"],), generator=rng),)


@op(
    shapes=lambda specs, attributes: (Spec("float32", (*specs[0].shape, 2 * len(attributes["frequencies"]))),),
    inputs=_table_inputs,
    cases=(Case({"tokens": 5}, {"frequencies": (1.0, 0.1, 0.01), "factor": 1.0}),),
    tolerance=dict.fromkeys(("float64", "float32"), (1e-6, 1e-5)),
)
def rotary_table(positions: Any, *, frequencies: tuple[float, ...], factor: float) -> Any:
    """``[cos(p·f) | sin(p·f)] * factor``. positions: [tokens] int64 → float32 [tokens, 2·len(frequencies)].
    Source: Su et al., "RoFormer", section 3.4.2; ``factor`` is YaRN's attention scaling."""
    import torch

    angles = positions.to(torch.float32)[:, None] * _on(positions.device, frequencies)
    return torch.cat((angles.cos(), angles.sin()), dim=-1) * factor


@constant
def _on(device: Any, frequencies: tuple[float, ...]) -> Any:
    import torch

    return torch.tensor(frequencies, device=device)


def _inputs(case: Case, dtype: str, rng: Any) -> tuple[Any, ...]:
    import torch

    tokens, dim, kind = case.sizes["tokens"], case.attributes["head_dim"], getattr(torch, dtype)
    q, k = (torch.randn((tokens, case.sizes[name] * dim), generator=rng).to(kind) for name in ("heads", "kv_heads"))
    angles = torch.rand((tokens, dim // 2), generator=rng) * 6.28
    return q, k, torch.cat((angles.cos(), angles.sin()), dim=-1)


@op(shapes=lambda specs, attributes: (specs[0], specs[1]), inputs=_inputs, cases=_CASES)
def rotary(q: Any, k: Any, table: Any, *, head_dim: int) -> Any:
    """Rotate the first ``table.shape[1]`` elements of every head, halves paired (i, i + n/2).

    q: [tokens, heads·head_dim], k: [tokens, kv_heads·head_dim], table: [tokens, cos | sin] float32 → both, new.
    """
    import torch

    cos, sin = (part[:, None, :] for part in table.chunk(2, dim=-1))
    width = table.shape[-1]

    def rotate(x: Any) -> Any:
        heads = x.unflatten(-1, (-1, head_dim))
        turned, rest = heads[..., :width].to(torch.promote_types(x.dtype, torch.float32)), heads[..., width:]
        first, second = turned.chunk(2, dim=-1)
        turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
        return torch.cat((turned, rest), dim=-1).flatten(-2)

    return rotate(q), rotate(k)
