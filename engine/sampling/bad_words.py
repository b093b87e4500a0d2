"""Sequences of tokens whose last one may not come."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.sampling_params import SamplingParams

_ANY, _NONE = -1, -2


def bad_words_of(
    params: SamplingParams, generated: list[int], vocab_size: int, device: torch.device
) -> BadWords | None:
    """Those of a request that can come at all, if there are any."""
    words = [word for word in params.bad_words_token_ids if word and all(0 <= token < vocab_size for token in word)]
    return BadWords(words, generated, device) if words else None


class BadWords:
    """Those of one request. What was generated stays on the device."""

    def __init__(self, words: list[list[int]], generated: list[int], device: torch.device) -> None:
        longest = max(map(len, words)) - 1
        prefixes = [[_ANY] * (longest + 1 - len(word)) + word[:-1] for word in words]
        latest = ([_NONE] * longest + generated)[len(generated) :] if longest else []
        self._last = torch.tensor([word[-1] for word in words], device=device)
        self._prefixes = torch.tensor(prefixes, dtype=torch.int64, device=device).reshape(len(words), longest)
        self._latest = torch.tensor(latest, dtype=torch.int64, device=device)

    def apply(self, logits: Tensor) -> None:
        """Take what would complete a word out of ``logits`` [vocab], in place."""
        complete = ((self._prefixes == self._latest) | (self._prefixes == _ANY)).all(-1)
        logits.index_add_(0, self._last, torch.where(complete, -torch.inf, 0.0))

    def record(self, token: Tensor) -> None:
        """``token`` [1] was generated."""
        if self._latest.numel():
            self._latest = torch.cat([self._latest[1:], token])
