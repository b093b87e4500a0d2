"""Exact order of logits: best first, ties by lower id."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.batch import TokenLogprobs

_BLOCK = 32
_LOW = 2**32 - 1


def top(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Values [n, k] and ids [n, k] int64 of the k largest of ``logits`` [n, vocab] float32 without NaN, k <= vocab.

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
    ids = _best(padded.gather(1, ids), ids, k)
    return logits.gather(1, ids), ids


def describe(logits: Tensor, tokens: Tensor, ks: list[int]) -> list[TokenLogprobs]:
    """Log-probabilities of ``tokens`` [n] int64 and of the ``ks[i]`` best of row i of ``logits`` [n, vocab] float32.

    Rank and order follow the logits, so that rank 1 is the greedy token even where two logarithms round to one value.
    """
    logprobs = logits.log_softmax(-1)
    column = tokens.unsqueeze(-1)
    mine = logits.gather(1, column)
    earlier = torch.arange(logits.shape[1], device=logits.device) < column
    ranks = 1 + ((logits > mine) | ((logits == mine) & earlier)).sum(-1)
    ids = top(logits, min(max(ks), logits.shape[1]))[1]
    table = zip(
        tokens.tolist(),
        logprobs.gather(1, column).squeeze(-1).tolist(),
        ranks.tolist(),
        ids.tolist(),
        logprobs.gather(1, ids).tolist(),
        ks,
        strict=True,
    )
    return [
        TokenLogprobs(token, logprob, rank, list(zip(best[:k], values[:k], strict=True)))
        for token, logprob, rank, best, values, k in table
    ]


def named(logits: Tensor, entry: TokenLogprobs, ids: list[int]) -> TokenLogprobs:
    """``entry`` of ``logits`` [vocab] with the log-probabilities of ``ids`` in place of the best."""
    values = logits.log_softmax(-1)[torch.tensor(ids, device=logits.device)].tolist()
    return TokenLogprobs(entry.token, entry.logprob, entry.rank, list(zip(ids, values, strict=True)))


def _best(values: Tensor, ids: Tensor, k: int) -> Tensor:
    bits = (values + 0.0).view(torch.int32)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    keys = (ordered.to(torch.int64) << 32) | (_LOW - ids)
    return _LOW - (keys.topk(k).values & _LOW)
