"""Cutting a row of weights down to its best, without sorting it.

Weights are float32 in [0, 1], probabilities relative to the row's most likely token, which weighs 1.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_UNIT = 2.0**32
_ONE = 0x3F800000  # the bits of 1.0, the largest weight
_BITS = 30
_DIGIT = 10


def mass_of(weights: Tensor) -> Tensor:
    """Whole numbers, int64; a row of 2**20 weights sums to at most 2**52, exact in float64 too."""
    return (weights * _UNIT).to(torch.int64)


def share(mass: Tensor, fraction: Tensor) -> Tensor:
    """The mass [n, 1] int64 that makes up ``fraction`` [n, 1] float64 of each row, at least 1."""
    total = mass.sum(-1, keepdim=True)
    return (fraction * total).ceil().to(torch.int64).clamp_(min=1).minimum(total)


def largest(weights: Tensor, limit: Tensor) -> Tensor:
    """True [n, vocab] for the ``limit`` [n, 1] int64 (1 to vocab) largest of each row, ties by lower id."""
    return _lead(weights, torch.ones_like(weights, dtype=torch.int64), target=limit, unit_of=torch.ones_like)


def nucleus(weights: Tensor, mass: Tensor, target: Tensor) -> Tensor:
    """True [n, vocab] for the fewest largest of each row, ties by lower id, whose ``mass`` (``mass_of`` the weights)
    reaches ``target`` [n, 1] int64, at least 1 and at most the row's total."""
    return _lead(weights, mass, target, unit_of=mass_of)


def _lead(weights: Tensor, measured: Tensor, target: Tensor, unit_of: Callable[[Tensor], Tensor]) -> Tensor:
    """Non-negative floats order like their bits: histograms of digit after digit find the last one kept."""
    order = _ONE - weights.view(torch.int32)
    last = torch.zeros_like(target, dtype=torch.int32)
    for shift in range(_BITS - _DIGIT, -1, -_DIGIT):
        digits = (order - last).bitwise_right_shift_(shift).clamp_(-1, 1 << _DIGIT).add_(1).to(torch.int64)
        sums = measured.new_zeros(len(weights), (1 << _DIGIT) + 2).scatter_add_(1, digits, measured).cumsum_(-1)
        reached = torch.searchsorted(sums, target)
        last = last + ((reached - 1) << shift).to(torch.int32)
    leads = order <= last
    before = sums.gather(1, reached - 1)
    unit = unit_of((_ONE - last).view(torch.float32)).to(torch.int64)
    needed = (target - before + unit - 1) // unit
    if (before + needed * unit < sums.gather(1, reached)).any():
        ties = order == last
        leads &= ~ties | (ties.cumsum(-1) <= needed)
    return leads
