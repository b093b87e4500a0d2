"""The paged KV cache and attention over it.

Reference layout of a cache: [2 (key, value), blocks, page, kv_heads, head_dim]; a slot is ``block * page + offset``.
A stored value times its scale is the value; one scale each for keys and values, both or neither given, or one behind
each head of a token: see ``engine.ops.paged``.
"""

from __future__ import annotations

from typing import Any

from engine.ops.paged import read, stored, write
from engine.ops.quant import FLOATS, quantize_static
from engine.ops.spec import EXACT, Case, Spec, op

_CASES = tuple(
    Case(
        {"tokens": 11 + pad, "requests": 3 + pad, "blocks": 9, "page": p, "heads": h, "kv_heads": g, **more},
        {"heads": h, "kv_heads": g, "head_dim": d, "scale": d**-0.5, "window": w, "softcap": c},
    )
    for p, h, g, d, w, c, pad, more in [
        (4, 4, 2, 16, None, 0.0, 0, {}),
        (4, 3, 1, 8, 3, 0.0, 0, {}),
        (4, 2, 2, 64, None, 1.5, 0, {}),
        (4, 4, 2, 16, None, 0.0, 2, {}),
        (4, 4, 2, 24, None, 0.0, 1, {"flavour": 0}),
        (4, 3, 1, 16, 5, 2.0, 0, {"flavour": 1}),
        (16, 4, 2, 64, None, 0.0, 0, {}),
    ]
)
"""Some have rows and requests of padding, as a replayed graph does. ``flavour``: which 8-bit float the cache holds,
with scales. The last has pages as large as vendors' kernels want them."""


def _cache(case: Case, dtype: str, rng: Any) -> Any:
    import torch

    shape = (2, *(case.sizes[name] for name in ("blocks", "page", "kv_heads")), case.attributes["head_dim"])
    kept = FLOATS[case.sizes["flavour"]] if "flavour" in case.sizes else dtype
    return torch.randn(shape, generator=rng).to(getattr(torch, kept))


def _scales(case: Case) -> tuple[Any, ...]:
    import torch

    return (torch.full((1,), 0.037), torch.full((1,), 1.3)) if "flavour" in case.sizes else ()


def _write_inputs(case: Case, dtype: str, rng: Any) -> tuple[Any, ...]:
    import torch

    tokens, width = case.sizes["tokens"], case.sizes["kv_heads"] * case.attributes["head_dim"]
    k, v = (torch.randn((tokens, width), generator=rng).to(getattr(torch, dtype)) for _ in range(2))
    slots = torch.randperm(case.sizes["blocks"] * case.sizes["page"], generator=rng)[:tokens]
    slots[0] = slots[tokens // 2] = -1
    return k, v, _cache(case, dtype, rng), slots, *_scales(case)


@op(
    shapes=lambda specs, attributes: (specs[2],),
    inputs=_write_inputs,
    cases=tuple(
        Case({"tokens": 7, "blocks": 5, "page": 4, "kv_heads": g, **more}, {"head_dim": d})
        for g, d, more in [(1, 2, {}), (3, 64, {}), (3, 24, {"flavour": 0}), (1, 16, {"flavour": 1})]
    ),
    mutates=(2,),
    weights=(4, 5),
    tolerance=EXACT | {name: quantize_static.tolerance[name] for name in FLOATS},
)
def kv_write(
    k: Any, v: Any, cache: Any, slots: Any, k_scale: Any = None, v_scale: Any = None, *, head_dim: int
) -> Any:
    """Store keys and values in place. k, v: [tokens, kv_heads·head_dim]; slots: [tokens] int64, -1 writes nothing;
    k_scale, v_scale: [1] float32, above zero. An 8-bit cache keeps its largest value for what lies beyond."""
    flat = cache.view(2, -1, *cache.shape[3:])
    for side, (x, scale) in enumerate(((k, k_scale), (v, v_scale))):
        write(flat[side], stored(x.unflatten(-1, (-1, head_dim)), cache.dtype, scale), slots)
    return cache


def _attention_inputs(case: Case, dtype: str, rng: Any) -> tuple[Any, ...]:
    import torch

    pad = case.sizes["requests"] - 3
    lengths = torch.tensor([9, 1, 12] + [0] * pad, dtype=torch.int32)
    starts = torch.tensor([0, 5, 6, 11] + [11] * pad, dtype=torch.int32)
    order = torch.randperm(case.sizes["blocks"], generator=rng).to(torch.int32)
    order = torch.cat([order, order.new_zeros(3 * pad)])
    width = case.sizes["heads"] * case.attributes["head_dim"]
    q = torch.randn((case.sizes["tokens"], width), generator=rng).to(getattr(torch, dtype))
    return q, _cache(case, dtype, rng), order.view(-1, 3), starts, lengths, *_scales(case)


@op(
    shapes=lambda specs, attributes: (Spec(specs[0].dtype, specs[0].shape),),
    inputs=_attention_inputs,
    cases=_CASES,
    weights=(5, 6),
    host_reads=True,
    tolerance={"float64": (1e-10, 1e-10), "float32": (1e-4, 2e-5), "float16": (1e-2, 5e-3), "bfloat16": (5e-2, 2e-2)},
)
def attention(
    q: Any,
    cache: Any,
    blocks: Any,
    starts: Any,
    lengths: Any,
    k_scale: Any = None,
    v_scale: Any = None,
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    scale: float,
    window: int | None,
    softcap: float = 0.0,
) -> Any:
    """Causal softmax attention of each request's new tokens over its own cached tokens, the new ones included.

    q: [tokens, heads·head_dim]; blocks: [requests, width] int32 block table; starts: [requests + 1] int32, first row
    of each request in q; lengths: [requests] int32, tokens in the cache after this step, at least as many as new ones.
    k_scale, v_scale: [1] float32. A query at position p sees keys ``max(0, p - window + 1) .. p``. With ``softcap``
    above zero a score s is ``softcap · tanh(s / softcap)`` (Gemma 2 report, section 2). Rows past ``starts[-1]`` are
    padding: zeros; so are requests without new tokens, of length 0.
    Softmax in float32 (float64 for float64). Source: Vaswani et al., equation 1; paging: Kwon et al., section 4.1.
    """
    import torch

    wide = torch.promote_types(q.dtype, torch.float32)
    out = torch.zeros_like(q)
    edges = starts.tolist()
    for request, length in enumerate(lengths.tolist()):
        rows = slice(edges[request], edges[request + 1])
        new = rows.stop - rows.start
        if new == 0:
            continue
        own = cache[:, blocks[request].long()].flatten(1, 2)[:, :length].transpose(1, 2)
        k, v = (read(x, wide, factor) for x, factor in zip(own, (k_scale, v_scale), strict=True))
        query = q[rows].to(wide).view(new, kv_heads, heads // kv_heads, head_dim).permute(1, 2, 0, 3)
        scores = query @ k[:, None].transpose(-1, -2) * scale
        if softcap:
            scores = (scores / softcap).tanh() * softcap
        behind = torch.arange(length - new, length, device=q.device)[:, None] - torch.arange(length, device=q.device)
        hidden = behind < 0 if window is None else (behind < 0) | (behind >= window)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        out[rows] = (weights @ v[:, None]).permute(2, 0, 1, 3).reshape(new, -1).to(q.dtype)
    return out
