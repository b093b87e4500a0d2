"""Multi-head latent attention over a paged cache of latents.

Reference layout of a cache: [blocks, page, kv_rank + rope]: a token's latent, then the rotated key that all heads
share; a slot is ``block * page + offset``.
"""

from __future__ import annotations

from typing import Any

from engine.ops.paged import write
from engine.ops.spec import EXACT, Case, Spec, op


def _split_shapes(specs: tuple[Spec, ...], attributes: Any) -> tuple[Spec, ...]:
    width, sizes = specs[0].shape[-1], attributes["sizes"]
    return tuple(Spec(specs[0].dtype, (*specs[0].shape[:-1], int(width) // sum(sizes) * size)) for size in sizes)


def _split_inputs(case: Case, dtype: str, rng: Any) -> tuple[Any, ...]:
    import torch

    width = case.sizes["heads"] * sum(case.attributes["sizes"])
    return (torch.randn((case.sizes["tokens"], width), generator=rng).to(getattr(torch, dtype)),)


@op(
    shapes=_split_shapes,
    inputs=_split_inputs,
    cases=(Case({"tokens": 3, "heads": 2}, {"sizes": (4, 2)}), Case({"tokens": 1, "heads": 3}, {"sizes": (5, 1, 2)})),
    tolerance=EXACT,
)
def split_heads(x: Any, *, sizes: tuple[int, ...]) -> Any:
    """Each head's parts apart. x: [tokens, heads·sum(sizes)] → one [tokens, heads·size] per size, new."""
    parts = x.unflatten(-1, (-1, sum(sizes))).split(list(sizes), dim=-1)
    return tuple(part.flatten(-2) for part in parts)


def _cache(case: Case, dtype: str, rng: Any, width: int) -> Any:
    import torch

    shape = (case.sizes["blocks"], case.sizes["page"], width)
    return torch.randn(shape, generator=rng).to(getattr(torch, dtype))


def _write_inputs(case: Case, dtype: str, rng: Any) -> tuple[Any, ...]:
    import torch

    tokens, rank, rope = (case.sizes[name] for name in ("tokens", "kv_rank", "rope"))
    latent, k_rope = (torch.randn((tokens, n), generator=rng).to(getattr(torch, dtype)) for n in (rank, rope))
    slots = torch.randperm(case.sizes["blocks"] * case.sizes["page"], generator=rng)[:tokens]
    slots[0] = slots[tokens // 2] = -1
    return latent, k_rope, _cache(case, dtype, rng, rank + rope), slots


@op(
    shapes=lambda specs, attributes: (specs[2],),
    inputs=_write_inputs,
    cases=tuple(
        Case({"tokens": 7, "blocks": 5, "page": 4, "kv_rank": rank, "rope": rope}) for rank, rope in [(3, 2), (64, 16)]
    ),
    mutates=(2,),
    tolerance=EXACT,
)
def mla_write(latent: Any, k_rope: Any, cache: Any, slots: Any) -> Any:
    """Store latents and rotated keys in place. latent: [tokens, kv_rank], k_rope: [tokens, rope]; slots: [tokens]
    int64, -1 writes nothing."""
    import torch

    write(cache.view(-1, cache.shape[-1]), torch.cat((latent, k_rope), dim=-1), slots)
    return cache


def _attention_inputs(case: Case, dtype: str, rng: Any) -> tuple[Any, ...]:
    import torch

    kind, sizes, attributes = getattr(torch, dtype), case.sizes, case.attributes
    heads, nope, rope, rank = (attributes[name] for name in ("heads", "nope", "rope", "kv_rank"))
    pad = sizes["requests"] - 3
    lengths = torch.tensor([9, 1, 12] + [0] * pad, dtype=torch.int32)
    starts = torch.tensor([0, 5, 6, 11] + [11] * pad, dtype=torch.int32)
    order = torch.randperm(sizes["blocks"], generator=rng).to(torch.int32)
    order = torch.cat([order, order.new_zeros(3 * pad)])
    q_nope, q_rope = (torch.randn((sizes["tokens"], heads * n), generator=rng).to(kind) for n in (nope, rope))
    up = torch.randn((heads * (nope + attributes["value"]), rank), generator=rng) / rank**0.5
    return q_nope, q_rope, _cache(case, dtype, rng, rank + rope), up.to(kind), order.view(-1, 3), starts, lengths


def _attention_shapes(specs: tuple[Spec, ...], attributes: Any) -> tuple[Spec, ...]:
    return (Spec(specs[0].dtype, (specs[0].shape[0], attributes["heads"] * attributes["value"])),)


@op(
    shapes=_attention_shapes,
    inputs=_attention_inputs,
    cases=tuple(
        Case(
            {"tokens": tokens, "requests": 3 + pad, "blocks": 9, "page": page},
            {"heads": h, "nope": n, "rope": r, "kv_rank": k, "value": v, "scale": (n + r) ** -0.5},
        )
        for tokens, pad, page, h, n, r, k, v in [
            (11, 0, 4, 2, 8, 4, 16, 8),
            (13, 2, 4, 3, 12, 8, 24, 20),
            (11, 0, 16, 2, 8, 16, 32, 8),
        ]
    ),
    host_reads=True,
    tolerance={"float64": (1e-10, 1e-10), "float32": (1e-4, 2e-5), "float16": (1e-2, 5e-3), "bfloat16": (5e-2, 2e-2)},
    weights=(3,),
)
def mla_attention(
    q_nope: Any,
    q_rope: Any,
    cache: Any,
    up: Any,
    blocks: Any,
    starts: Any,
    lengths: Any,
    *,
    heads: int,
    nope: int,
    rope: int,
    kv_rank: int,
    value: int,
    scale: float,
) -> Any:
    """Causal softmax attention of each request's new tokens over its own cached tokens, the new ones included. ``up``
    makes each head's key without position and its value from a latent; the rotated key serves all heads.

    q_nope: [tokens, heads·nope]; q_rope: [tokens, heads·rope], rotated; up: [heads·(nope + value), kv_rank], each
    head's key rows above its value rows; blocks: [requests, width] int32 block table; starts: [requests + 1] int32,
    first row of each request; lengths: [requests] int32, tokens in the cache after this step, at least as many as new
    ones. → [tokens, heads·value]. Rows past ``starts[-1]`` are padding: zeros; so are requests without new tokens, of
    length 0. Everything in float32 (float64 for
    float64), rounded once. Source: DeepSeek-V2, section 2.1, equations 9 to 19, unabsorbed.
    """
    import torch

    wide = torch.promote_types(q_nope.dtype, torch.float32)
    out = torch.zeros((q_nope.shape[0], heads * value), dtype=q_nope.dtype, device=q_nope.device)
    matrix = up.to(wide).view(heads, nope + value, kv_rank)
    edges = starts.tolist()
    for request, length in enumerate(lengths.tolist()):
        rows = slice(edges[request], edges[request + 1])
        new = rows.stop - rows.start
        if new == 0:
            continue
        latent, k_rope = cache[blocks[request].long()].flatten(0, 1)[:length].to(wide).split((kv_rank, rope), dim=-1)
        k_nope, v = (latent @ matrix.transpose(-1, -2)).split((nope, value), dim=-1)
        query, turned = (q[rows].to(wide).unflatten(-1, (heads, -1)).transpose(0, 1) for q in (q_nope, q_rope))
        scores = (query @ k_nope.transpose(-1, -2) + turned @ k_rope.transpose(-1, -2)) * scale
        ahead = torch.arange(length, device=up.device) > torch.arange(length - new, length, device=up.device)[:, None]
        weights = scores.masked_fill(ahead, float("-inf")).softmax(-1)
        out[rows] = (weights @ v).transpose(0, 1).flatten(-2).to(out.dtype)
    return out
