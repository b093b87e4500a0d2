"""Drafts of a request's next tokens, copied from behind an earlier place that reads like its end. No model, no tensors.

Whoever verifies a draft takes from each position what it would have taken without one, so drafts change only how many
tokens a step gives.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Drafting:
    """``num_speculative_tokens``: of the longest draft. ``prompt_lookup_max``, ``prompt_lookup_min``: how many last
    tokens are looked for, the most first."""

    num_speculative_tokens: int
    prompt_lookup_max: int
    prompt_lookup_min: int


class NGrams:
    """Where each sequence of ``shortest`` to ``longest`` tokens of one history was seen last."""

    def __init__(self, shortest: int, longest: int) -> None:
        self._ends: dict[int, dict[tuple[int, ...], int]] = {length: {} for length in range(longest, shortest - 1, -1)}
        self._indexed = 0

    def propose(self, tokens: list[int], count: int) -> list[int]:
        """What followed the last earlier place that has the longest end of ``tokens`` in common with their own end, as
        if it went on so: ``count`` tokens, or none without such a place. ``tokens``: those of the call before and more
        behind them. Takes time for the new ones alone."""
        known = len(tokens)
        for end in range(self._indexed + 1, known):
            for length, ends in self._ends.items():
                if length <= end:
                    ends[tuple(tokens[end - length : end])] = end
        self._indexed = max(self._indexed, known - 1)
        for length, ends in self._ends.items():
            place = ends.get(tuple(tokens[-length:])) if length <= known else None
            if place is not None:
                draft = tokens[place : place + count]
                while len(draft) < count:
                    draft.append(draft[place - known])
                return draft
        return []


class Drafter:
    """Drafts for every request of a scheduler, and what became of them. ``drafts``, ``draft_tokens`` and ``accepted``,
    by place in the draft, are totals."""

    def __init__(self, drafting: Drafting) -> None:
        self._drafting = drafting
        self._histories: dict[str, NGrams] = {}
        self.drafts = 0
        self.draft_tokens = 0
        self.accepted = [0] * drafting.num_speculative_tokens

    @property
    def most(self) -> int:
        """Tokens of the longest draft."""
        return self._drafting.num_speculative_tokens

    def propose(self, request_id: str, tokens: list[int], count: int) -> list[int]:
        """At most ``count`` tokens to come after ``tokens``, which only grow from call to call."""
        if request_id not in self._histories:
            self._histories[request_id] = NGrams(self._drafting.prompt_lookup_min, self._drafting.prompt_lookup_max)
        return self._histories[request_id].propose(tokens, count)

    def count(self, proposed: int, accepted: int) -> None:
        """A draft was verified."""
        self.drafts += 1
        self.draft_tokens += proposed
        for place in range(accepted):
            self.accepted[place] += 1

    def forget(self, request_id: str) -> None:
        """A request has ended; unknown ids are fine."""
        self._histories.pop(request_id, None)
