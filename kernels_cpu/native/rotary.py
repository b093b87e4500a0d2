"""Rotation of queries and keys, their normalisation before it, and the write into the paged cache after it."""

from __future__ import annotations

from functools import cache
from typing import Any

from kernels_cpu.native.attention import kind_of, side_of
from kernels_cpu.record import call, empty, native, rows


def _call(
    q: Any,
    k: Any,
    v: Any,
    table: Any,
    new: tuple[Any, Any],
    cache: Any,
    slots: Any,
    head_dim: int,
    scales: tuple[Any, Any] = (None, None),
    weights: tuple[Any, Any] = (None, None),
    eps: float = 0.0,
) -> None:
    """New queries and keys into ``new``; keys and values into the cache. ``None``: the op has none."""
    given = (q, k, v, table)
    strides = tuple(0 if x is None else rows(x).stride(0) for x in given)
    heads = 0 if q is None else q.shape[1] // head_dim
    sizes = (k.shape[0], heads, k.shape[1] // head_dim, head_dim, 0 if table is None else table.shape[1], *strides)
    kept = (0, 0) if cache is None else (side_of(cache, head_dim), kind_of(cache))
    call("engine_rotary", (*given, *weights, *new, cache, slots, *scales), (*sizes, *kept), (eps,))


def _new(x: Any) -> Any:
    return empty(x.shape, x.dtype)


@cache
def _kept(frequencies: tuple[float, ...]) -> Any:
    import torch

    return torch.tensor(frequencies, dtype=torch.float32)


@native
def rotary_table(positions: Any, *, frequencies: tuple[float, ...], factor: float) -> Any:
    """As the op. positions: [tokens] int64, side by side."""
    import torch

    out = empty((len(positions), 2 * len(frequencies)), torch.float32)
    sizes = (len(positions), len(frequencies))
    call("engine_rotary_table", (rows(positions), _kept(tuple(frequencies)), out), sizes, (factor,))
    return out


@native
def rotary(q: Any, k: Any, table: Any, *, head_dim: int) -> Any:
    """As the op, for float32."""
    new = _new(q), _new(k)
    _call(q, k, None, table, new, None, None, head_dim)
    return new


@native
def kv_write(k: Any, v: Any, cache: Any, slots: Any, k_scale: Any = None, v_scale: Any = None, *, head_dim: int) -> Any:
    """As the op, for float32 keys and values."""
    _call(None, k, v, None, (None, None), cache, slots, head_dim, (k_scale, v_scale))
    return cache


@native
def rotary_kv_write(
    q: Any,
    k: Any,
    table: Any,
    v: Any,
    cache: Any,
    slots: Any,
    k_scale: Any = None,
    v_scale: Any = None,
    *,
    head_dim: int,
) -> Any:
    """As the fused op, for float32: new queries, and the cache."""
    new = _new(q)
    _call(q, k, v, table, (new, None), cache, slots, head_dim, (k_scale, v_scale))
    return new, cache


@native
def qk_norm_rotary(q0: Any, qw: Any, k0: Any, kw: Any, table: Any, *, eps: float, head_dim: int) -> Any:
    """As the fused op, for float32 and weights of one head."""
    new = _new(q0), _new(k0)
    _call(q0, k0, None, table, new, None, None, head_dim, weights=(qw, kw), eps=eps)
    return new


@native
def qk_norm_rotary_kv_write(
    q0: Any,
    qw: Any,
    k0: Any,
    kw: Any,
    table: Any,
    v: Any,
    cache: Any,
    slots: Any,
    k_scale: Any = None,
    v_scale: Any = None,
    *,
    eps: float,
    head_dim: int,
) -> Any:
    """As the fused op, for float32 and weights of one head: new queries, and the cache."""
    new = _new(q0)
    _call(q0, k0, v, table, (new, None), cache, slots, head_dim, (k_scale, v_scale), (qw, kw), eps)
    return new, cache
