"""From logits to tokens: temperature, truncation, one draw per row.

Probabilities are whole numbers, units of 2**-32 of the most likely token's: their sums are exact in any order, so a
row's result depends neither on its neighbours nor on how a device adds.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from engine.sampling.ranking import top
from engine.sampling.state import State
from engine.sampling.truncation import largest, mass_of, nucleus, share

CANDIDATES = 128  # rows whose survivors are sure to be among so many best tokens are cut down to these first

Method = Callable[[Tensor, list[State]], Tensor]


def choose(logits: Tensor, states: list[State]) -> Tensor:
    """Tokens [n] int64 for ``logits`` [n, vocab] float32, each row with a finite maximum and no NaN."""
    groups: dict[Method, list[int]] = {}
    for row, state in enumerate(states):
        groups.setdefault(_method(state, logits.shape[1]), []).append(row)
    if len(groups) == 1:
        return next(iter(groups))(logits, states)
    tokens = torch.empty(len(states), dtype=torch.int64, device=logits.device)
    for method, rows in groups.items():
        index = torch.tensor(rows, device=logits.device)
        tokens[index] = method(logits[index], [states[row] for row in rows])
    return tokens


def _method(state: State, vocab: int) -> Method:
    params = state.params
    if params.greedy:
        return _take_best
    if 0 < params.top_k < vocab:
        return _draw_few if params.top_k <= CANDIDATES else _draw_any
    return _draw_nucleus if params.top_p < 1 and vocab > CANDIDATES else _draw_any


def _take_best(logits: Tensor, states: list[State]) -> Tensor:
    return logits.argmax(-1)


def _draw_few(logits: Tensor, states: list[State]) -> Tensor:
    temperature, top_k, top_p, min_p, uniform = _columns(states, logits.device)
    values, ids = top(logits, max(state.params.top_k for state in states))
    weights = _weigh(values, temperature)
    weights *= torch.arange(weights.shape[1], device=logits.device) < top_k
    mass = mass_of(weights)
    return _pick_sorted(weights, ids, share(mass, top_p), min_p, uniform)


def _draw_nucleus(logits: Tensor, states: list[State]) -> Tensor:
    temperature, _, top_p, min_p, uniform = _columns(states, logits.device)
    weights = _weigh(logits, temperature)
    mass = mass_of(weights)
    target = share(mass, top_p)
    values, ids = top(logits, CANDIDATES)
    best = _weigh(values, temperature)
    tokens = _pick_sorted(best, ids, target, min_p, uniform)
    covered = (mass_of(best).sum(-1) >= target.squeeze(-1)).tolist()
    rest = [row for row, enough in enumerate(covered) if not enough]
    if rest:
        index = torch.tensor(rest, device=logits.device)
        weights, mass, target = weights[index], mass[index], target[index]
        mass *= nucleus(weights, mass, target)
        mass *= weights >= min_p[index].float()
        tokens[index] = _pick(mass, uniform[index]).squeeze(-1)
    return tokens


def _draw_any(logits: Tensor, states: list[State]) -> Tensor:
    vocab = logits.shape[1]
    temperature, top_k, top_p, min_p, uniform = _columns(states, logits.device)
    weights = _weigh(logits, temperature)
    if any(0 < state.params.top_k < vocab for state in states):
        limit = torch.where((top_k > 0) & (top_k < vocab), top_k, vocab).to(torch.int64)
        weights *= largest(weights, limit)
    mass = mass_of(weights)
    if any(state.params.top_p < 1 for state in states):
        mass *= nucleus(weights, mass, share(mass, top_p))
    if any(state.params.min_p > 0 for state in states):
        mass *= weights >= min_p.float()
    return _pick(mass, uniform).squeeze(-1)


def _pick_sorted(weights: Tensor, ids: Tensor, target: Tensor, min_p: Tensor, uniform: Tensor) -> Tensor:
    mass = mass_of(weights)
    before = mass.cumsum(-1) - mass
    mass *= (before < target) & (weights >= min_p.float())
    return ids.gather(1, _pick(mass, uniform)).squeeze(-1)


def _pick(mass: Tensor, uniform: Tensor) -> Tensor:
    reached = mass.cumsum(-1)
    point = (uniform * reached[:, -1:]).to(torch.int64)  # below the total: totals are exact, uniform <= 1 - 2**-53
    return torch.searchsorted(reached, point, right=True)


def _columns(states: list[State], device: torch.device) -> tuple[Tensor, ...]:
    rows = [(s.params.temperature, s.params.top_k, s.params.top_p, s.params.min_p, s.uniform()) for s in states]
    return torch.tensor(rows, dtype=torch.float64, device=device).t().unsqueeze(-1).unbind()


def _weigh(logits: Tensor, temperature: Tensor) -> Tensor:
    return (logits - logits.amax(-1, keepdim=True)).div_(temperature.float()).exp_()
