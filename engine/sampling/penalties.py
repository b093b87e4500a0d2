"""Repetition, frequency and presence penalties over counts that live on the device."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from engine.sampling_params import SamplingParams

_FIRST_CAPACITY = 8


class Penalties:
    """A table with one slot per penalised request: ``seen`` [slots, vocab] bool, the tokens of prompt and output;
    ``counts`` [slots, vocab] int32, those of the output. It holds nothing until a request needs it, then doubles.
    ``kernel``: who computes ``penalize``, the op; by itself without."""

    def __init__(self, vocab_size: int, device: torch.device, kernel: Callable[..., Tensor] | None = None) -> None:
        self._kernel = kernel
        self.seen = torch.zeros(0, vocab_size, dtype=torch.bool, device=device)
        self.counts = torch.zeros(0, vocab_size, dtype=torch.int32, device=device)
        self.free: list[int] = []

    def add(self, prompt: list[int], generated: list[int]) -> int:
        """The slot now holding these tokens. Ids outside the vocabulary have no logit and are left out."""
        if not self.free:
            self._grow()
        slot = self.free.pop()
        self.seen[slot] = self._count(prompt + generated).bool()
        self.counts[slot] = self._count(generated)
        return slot

    def forget(self, slot: int) -> None:
        self.free.append(slot)

    def record(self, slots: Tensor, tokens: Tensor) -> None:
        """Count one more token per slot; both [m] int64, slots distinct."""
        self.seen[slots, tokens] = True
        self.counts[slots, tokens] += 1

    def penalise(self, logits: Tensor, slots: Tensor, params: list[SamplingParams]) -> Tensor:
        """``logits`` [m, vocab] float32 after repetition (prompt and output), frequency and presence (output)."""
        rows = [(_bounded(p.repetition_penalty), p.frequency_penalty, p.presence_penalty) for p in params]
        columns = torch.tensor(rows, dtype=torch.float32, device=logits.device).t().contiguous()
        if self._kernel is not None:
            return self._kernel(logits, self.seen, self.counts, slots, *columns.unbind())
        repetition, frequency, presence = columns.unsqueeze(-1).unbind()
        if any(row[0] != 1 for row in rows):
            repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
            logits = torch.where(self.seen[slots], repeated, logits)
        if any(row[1:] != (0, 0) for row in rows):
            counts = self.counts[slots]
            logits = logits - frequency * counts
            logits -= presence * (counts > 0)
        return logits

    def _count(self, tokens: list[int]) -> Tensor:
        vocab = self.counts.shape[1]
        known = torch.tensor([token for token in tokens if 0 <= token < vocab], dtype=torch.int64)
        return torch.bincount(known, minlength=vocab).to(self.counts.device, torch.int32)

    def _grow(self) -> None:
        used = self.counts.shape[0]
        more = max(used, _FIRST_CAPACITY)
        self.seen = torch.cat([self.seen, self.seen.new_zeros(more, self.seen.shape[1])])
        self.counts = torch.cat([self.counts, self.counts.new_zeros(more, self.counts.shape[1])])
        self.free.extend(range(used + more - 1, used - 1, -1))


def _bounded(repetition: float) -> float:
    """Beyond these bounds logits leave float32, and 0 * inf is not a number."""
    return min(max(repetition, 1e-10), 1e10)
