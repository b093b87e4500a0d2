"""Exact order of logits: best first, ties by lower id."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from engine.batch import TokenLogprobs
from platforms.contract import Fetch

_BLOCK = 32
_LOW = 2**32 - 1


def top(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Values [n, k] and ids [n, k] int64 of the k largest of ``logits`` [n, vocab] float32, k <= vocab; with NaN in
    a row, any k of it.

    The k best lie inside the k blocks of ids with the best maxima, so that only those are sorted.
    """
    rows, vocab = logits.shape
    if 2 * k * _BLOCK >= vocab:
        ids = _best(logits, torch.arange(vocab, device=logits.device).expand(rows, vocab), k)
        return logits.gather(1, ids), ids
    spare = -vocab % _BLOCK
    padded = torch.nn.functional.pad(logits, (0, spare), value=-torch.inf) if spare else logits
    maxima = padded.reshape(rows, -1, _BLOCK).amax(-1)
    blocks = _best(maxima, torch.arange(maxima.shape[1], device=logits.device).expand(rows, -1), k)
    ids = (blocks.unsqueeze(-1) * _BLOCK + torch.arange(_BLOCK, device=logits.device)).flatten(1)
    ids = _best(padded.gather(1, ids), ids, k).clamp(max=vocab - 1)
    return logits.gather(1, ids), ids


class Described:
    """Log-probabilities of ``tokens`` [n] int64 and of the ``ks[i]`` best of row i of ``logits`` [n, vocab] float32,
    under way to the host; of the tokens ``named[i]`` in place of the best, where there are any.

    Rank and order follow the logits, so that rank 1 is the greedy token even where two logarithms round to one value.
    """

    def __init__(
        self,
        logits: Tensor,
        tokens: Tensor,
        ks: list[int],
        fetch: Callable[[Any], Fetch] = Fetch,
        named: Sequence[list[int]] = (),
    ) -> None:
        logprobs = logits.log_softmax(-1)
        column = tokens.unsqueeze(-1)
        mine = logits.gather(1, column)
        earlier = torch.arange(logits.shape[1], device=logits.device) < column
        ranks = 1 + ((logits > mine) | ((logits == mine) & earlier)).sum(-1)
        ids = top(logits, min(max(ks), logits.shape[1]))[1]
        scores = logprobs.gather(1, column).squeeze(-1), logprobs.gather(1, ids)
        self._ks, self._named = ks, named or [[]] * len(ks)
        self._columns = [fetch(each) for each in (tokens, scores[0], ranks, ids, scores[1])]
        self._values = None
        if longest := max(map(len, self._named)):
            wanted = torch.tensor([ids + [0] * (longest - len(ids)) for ids in self._named], device=logits.device)
            self._values = fetch(logprobs.gather(1, wanted))

    def wait(self) -> list[TokenLogprobs]:
        tokens, scores, ranks, ids, values = (each.wait().tolist() for each in self._columns)
        tops = [list(zip(*best, strict=True))[:k] for *best, k in zip(ids, values, self._ks, strict=True)]
        if self._values is not None:
            found = zip(self._named, self._values.wait().tolist(), tops, strict=True)
            tops = [list(zip(names, logprobs, strict=False)) or best for names, logprobs, best in found]
        return [TokenLogprobs(*each) for each in zip(tokens, scores, ranks, tops, strict=True)]


def _best(values: Tensor, ids: Tensor, k: int) -> Tensor:
    bits = (values + 0.0).view(torch.int32)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    keys = (ordered.to(torch.int64) << 32) | (_LOW - ids)
    return _LOW - (keys.topk(k).values & _LOW)
