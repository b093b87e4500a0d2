"""Kernels with one fault each; ``right`` has none, and takes float32 alone."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch
from toy_platform.kernels import rms_norm, rotary_kv_write

_CALLS = itertools.count()


def right(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    if x.dtype != torch.float32:
        raise TypeError(f"no {x.dtype} here")
    return rms_norm(x, weight, eps=eps)


def wrong(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """The mean is subtracted, as another norm does."""
    return rms_norm(x - x.mean(-1, keepdim=True), weight, eps=eps)


def wrong_beyond_2048(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """A register holds no more."""
    scale = torch.rsqrt(x[:, :2048].square().mean(-1, keepdim=True) + eps)
    return x * scale * weight


def wrong_at_64(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """A special path that no case of the op reaches."""
    return rms_norm(x if weight.shape[0] != 64 else x.flip(-1), weight, eps=eps)


def forgets_values(*tensors: Any, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    q, k, table, v, cache, slots = tensors
    return rotary_kv_write(q, k, table, torch.zeros_like(v), cache, slots, head_dim=head_dim)


def other_signature(weight: torch.Tensor, x: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    return rms_norm(x, weight, eps=eps)


def writes_beside(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """One element too many."""
    x.as_strided((1,), (1,), x.storage_offset() + x.numel()).fill_(0)
    return rms_norm(x, weight, eps=eps)


def changes_input(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """Its input is its scratch."""
    result = rms_norm(x, weight, eps=eps)
    x.mul_(2)
    return result


def not_twice(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """Sums in whatever order threads end."""
    result = rms_norm(x, weight, eps=eps)
    return torch.nextafter(result, torch.full_like(result, float(next(_CALLS) % 2)))


def packed(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """Takes for granted that rows lie one after the other."""
    return rms_norm(x.as_strided(x.shape, (x.shape[-1], 1)), weight, eps=eps)


def pack(weights: tuple[torch.Tensor, ...], attributes: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
    """In place: who reads the plain weights reads others."""
    return tuple(weight.mul_(1.5) for weight in weights)


def looks(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """The host decides by a value."""
    return rms_norm(x, weight, eps=eps) if float(x[0, 0]) < 1e9 else x
