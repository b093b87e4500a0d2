"""From logits to tokens: temperature, truncation, one draw per row.

Probabilities are whole numbers, units of 2**-32 of the most likely token's: their sums are exact in any order, so what
a row keeps depends neither on its neighbours nor on how a device adds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from engine.sampling.ranking import top
from engine.sampling.state import State, signed

_UNIT = 2.0**32
_GOLDEN, _MIX_1, _MIX_2 = (signed(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_RACE = 2**18  # noise made at once: what a second-level cache holds
_CHUNK = 2**23  # logits drawn from at once: the temporaries take some 31 bytes for each

Method = Callable[[Tensor, list[State]], Tensor]
Kernels = Mapping[str, Callable[..., Any]]


def best(logits: Tensor, kernel: Callable[..., Any] | None = None) -> tuple[Tensor, Tensor]:
    """The best token of each row of ``logits`` [n, vocab], [n] int64, and its logit [n]. Of equals the lowest id; NaN
    is above all. ``kernel``: who computes ``argmax``, the op; torch without."""
    if kernel is not None:
        tokens, peaks = kernel(logits if logits.dtype == torch.float32 else logits.float())
        return tokens, peaks
    tokens = logits.argmax(-1)
    return tokens, logits.gather(1, tokens.unsqueeze(-1)).squeeze(-1)


def choose(logits: Tensor, states: list[State], kernels: Kernels = MappingProxyType({})) -> Tensor:
    """Tokens [n] int64 for ``logits`` [n, vocab] float32, each row with a finite maximum and no NaN. ``kernels``: op →
    who computes it, of ``argmax`` for greedy rows and ``draw`` for the others, of which a key may then pick another of
    the allowed tokens."""
    take_best = _take_best(kernels.get("argmax"))
    groups: dict[Method, list[int]] = {}
    for row, state in enumerate(states):
        drawn = take_best if state.params.greedy else _method(state, logits.shape[1], kernels.get("draw"))
        groups.setdefault(drawn, []).append(row)
    if list(groups) == [take_best]:
        return take_best(logits, states)
    tokens = torch.empty(len(states), dtype=torch.int64, device=logits.device)
    most = max(1, _CHUNK // logits.shape[1])
    for method, rows in groups.items():
        for start in range(0, len(rows), most):
            some = rows[start : start + most]
            index = torch.tensor(some, device=logits.device)
            part = logits if len(some) == len(states) else logits[index]
            tokens[index] = method(part, [states[row] for row in some])
    return tokens


def _method(state: State, vocab: int, kernel: Callable[..., Tensor] | None) -> Method:
    if kernel is not None:
        return _draw_by(kernel)
    return _draw_few if 0 < state.params.top_k < vocab else _draw_any


@cache
def _draw_by(kernel: Callable[..., Tensor]) -> Method:
    def method(logits: Tensor, states: list[State]) -> Tensor:
        temperature, top_k, top_p, min_p = (column.squeeze(-1) for column in _columns(states, logits.device))
        keys = torch.tensor([state.key() for state in states], dtype=torch.int64, device=logits.device)
        limit = top_k.to(torch.int64).clamp(min=0)
        return kernel(logits, temperature.float(), limit, top_p.contiguous(), min_p.float(), keys)

    return method


@cache
def _take_best(kernel: Callable[..., Any] | None) -> Method:
    def method(logits: Tensor, states: list[State]) -> Tensor:
        return logits.argmax(-1) if kernel is None else best(logits, kernel)[0]

    return method


def _draw_few(logits: Tensor, states: list[State]) -> Tensor:
    """Rows with a top_k: only their best tokens, sorted."""
    temperature, top_k, top_p, min_p = _columns(states, logits.device)
    values, ids = top(logits, max(state.params.top_k for state in states))
    weights = _weigh(values, temperature)
    weights *= torch.arange(weights.shape[1], device=logits.device) < top_k
    mass = _mass(weights)
    before = mass.cumsum(-1) - mass
    mass *= (before < _share(mass, top_p)) & (weights >= min_p.float())
    return ids.gather(1, _pick(mass, ids, states)).squeeze(-1)


def _draw_any(logits: Tensor, states: list[State]) -> Tensor:
    """Rows without a top_k. A token drawn outside the nucleus is drawn again from those better than it: nothing of
    the nucleus is lost by that, and no row is sorted."""
    temperature, _, top_p, min_p = _columns(states, logits.device)
    weights = _weigh(logits, temperature)
    mass = alive = _mass(weights)
    if any(state.params.min_p > 0 for state in states):
        alive = mass * (weights >= min_p.float())
    every = torch.arange(logits.shape[1], device=logits.device)
    tokens = _pick(alive, every, states)
    if any(state.params.top_p < 1 for state in states):
        _redraw(tokens, weights, mass, alive, _share(mass, top_p), states)
    return tokens.squeeze(-1)


def _redraw(
    tokens: Tensor, weights: Tensor, mass: Tensor, alive: Tensor, target: Tensor, states: list[State], attempt: int = 1
) -> None:
    """Replace those of ``tokens`` [n, 1] that have ``target`` [n, 1] or more of the ``mass`` [n, vocab] before them, in
    the order of falling ``weights``, ties by lower id."""
    mine = weights.gather(1, tokens)
    before_at_most = (mass * (weights >= mine)).sum(-1, keepdim=True) - mass.gather(1, tokens)
    doubtful = (before_at_most >= target).flatten().nonzero().flatten()
    if not len(doubtful):
        return
    weights, mass, alive, mine = weights[doubtful], mass[doubtful], alive[doubtful], mine[doubtful]
    earlier = torch.arange(weights.shape[1], device=weights.device) < tokens[doubtful]
    better = (weights > mine) | ((weights == mine) & earlier)
    outside = ((mass * better).sum(-1) >= target[doubtful].squeeze(-1)).nonzero().flatten()
    if not len(outside):
        return
    rows = doubtful[outside]
    states = [states[row] for row in rows.tolist()]
    alive = alive[outside] * better[outside]
    every = torch.arange(alive.shape[1], device=alive.device)
    again = _pick(alive, every, states, attempt)
    _redraw(again, weights[outside], mass[outside], alive, target[rows], states, attempt + 1)
    tokens[rows] = again


def _pick(mass: Tensor, ids: Tensor, states: list[State], attempt: int = 0) -> Tensor:
    """The column [n, 1] that wins an exponential race: token i arrives after ``-ln(u_i) / mass_i``, first come first
    drawn. ``u_i`` is noise of (draw, token id), so logits that differ by rounding, as they do beside other neighbours,
    change a draw only where two arrivals nearly tie; a point on the cumulated mass would move across many tokens."""
    keys = torch.tensor([[state.key(attempt)] for state in states], dtype=torch.int64, device=mass.device)
    salt = (ids * _GOLDEN).expand_as(mass)
    rows = max(1, _RACE // mass.shape[1])
    parts = zip(*(torch.split(whole, rows) for whole in (mass, salt, keys)), strict=True)
    return torch.cat([_first(*part) for part in parts])


def _first(mass: Tensor, salt: Tensor, keys: Tensor) -> Tensor:
    bits = (salt + keys).mul_(_MIX_1)
    bits ^= (bits >> 32).bitwise_and_(0xFFFFFFFF)
    bits *= _MIX_2
    noise = bits.to(torch.float64).mul_(2.0**-64).add_(0.5 + 2.0**-54).log_()  # u in (0, 1): the high bits, 53 of them
    return noise.div_(mass).argmax(-1, keepdim=True)


def _columns(states: list[State], device: torch.device) -> tuple[Tensor, ...]:
    rows = [(s.params.temperature, s.params.top_k, s.params.top_p, s.params.min_p) for s in states]
    return torch.tensor(rows, dtype=torch.float64, device=device).t().unsqueeze(-1).unbind()


def _weigh(logits: Tensor, temperature: Tensor) -> Tensor:
    """Probabilities relative to each row's most likely token, float32 in [0, 1]."""
    return (logits - logits.amax(-1, keepdim=True)).div_(temperature.float()).exp_()


def _mass(weights: Tensor) -> Tensor:
    return (weights * _UNIT).to(torch.int64)


def _share(mass: Tensor, fraction: Tensor) -> Tensor:
    """The mass [n, 1] that makes up ``fraction`` [n, 1] float64 of each row: at least 1, at most all."""
    total = mass.sum(-1, keepdim=True)
    return (fraction * total).ceil().to(torch.int64).clamp_(min=1).minimum(total)
