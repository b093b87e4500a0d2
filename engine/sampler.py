"""The batched sampler: logits and what each request asked for in, tokens and log-probabilities out.

Order: mask, logit_bias, allowed_token_ids and bad_words, min_tokens, penalties (repetition, frequency, presence);
greedy rows then take their best token, the others temperature, top_k, top_p, min_p and one draw. Reported
log-probabilities are those of the masked logits, before anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from engine.batch import Request, TokenLogprobs
from engine.sampling.bad_words import bad_words_of
from engine.sampling.draw import best, choose
from engine.sampling.penalties import Penalties
from engine.sampling.ranking import describe, named
from engine.sampling.state import State, penalised
from engine.sampling_params import NO_TOKEN_LEFT

_CHUNK = 2**23
_NOT_FINITE = "the logits hold NaN or infinity"
_NOT_ALLOWED = "the mask allows no token"


class Sampler:
    """One per worker. ``vocab_size``: columns of the logits. ``kernels``: op → function for those of ``argmax``,
    ``penalize`` and ``draw`` that a kernel computes. Every row's result is a function of its own logits, mask and
    request alone, bit for bit."""

    def __init__(
        self, vocab_size: int, device: torch.device | str, kernels: Mapping[str, Callable[..., Any]] | None = None
    ) -> None:
        self.vocab_size = vocab_size
        self.device = torch.device(device)
        self._states: dict[str, State] = {}
        self._kernels = kernels or {}
        self._penalties = Penalties(vocab_size, self.device, self._kernels.get("penalize"))

    @torch.inference_mode()
    def add(self, request: Request, generated: list[int]) -> None:
        """Know a request, new or seen again after preemption with the tokens it has ``generated``; replaces what was
        known under its id. A request with a seed goes on as if never preempted."""
        self.forget(request.id)
        slot = self._penalties.add(request.prompt, generated) if penalised(request.params) else None
        words = bad_words_of(request.params, generated, self.vocab_size, self.device)
        ids = request.params.allowed_token_ids
        allowed = None if ids is None else self._ids(sorted(set(ids)))
        self._states[request.id] = State.of(request, len(generated), slot, self.vocab_size, words, allowed)

    def forget(self, request_id: str) -> None:
        """Drop a request; unknown ids are fine."""
        state = self._states.pop(request_id, None)
        if state is not None and state.slot is not None:
            self._penalties.forget(state.slot)

    @torch.inference_mode()
    def sample(
        self, logits: Tensor, request_ids: list[str], masks: Tensor | None = None
    ) -> tuple[Tensor, list[list[TokenLogprobs] | None], list[str | None]]:
        """One token per request, recorded as generated.

        ``logits`` [n, vocab] of any float dtype, left unchanged; ``request_ids`` distinct and added; ``masks``
        [n, vocab] bool, true where a token is allowed. Returns tokens [n] int64 on the device; per request a list of
        one ``TokenLogprobs``, or None where it did not ask; per request None, or why it has no token: the logits of
        what is allowed hold NaN or +inf, or its mask allows nothing. Nothing is recorded for such a request, its number
        among the tokens means nothing, and the others are as if it were not there. Where a mask allows only what
        ``min_tokens`` forbids, the mask wins. Waits for the device.
        """
        assert logits.shape == (len(request_ids), self.vocab_size)
        states = [self._states[request_id] for request_id in request_ids]
        nothing = _NOT_FINITE
        if masks is not None:
            logits, nothing = torch.where(masks, logits, -torch.inf), _NOT_ALLOWED
        if all(state.plain and not state.held for state in states):
            tokens, peaks = best(logits, self._kernels.get("argmax"))
            errors = _explain(peaks, _NOT_FINITE, nothing)
            self._record(tokens, states, errors)
            return tokens, [None] * len(states), errors
        raw = logits.float()
        errors = _explain(self._peaks(raw), _NOT_FINITE, nothing)
        raw = _blank(raw, errors)
        adjusted = self._adjust(raw, states)
        if adjusted is not raw:
            later = _explain(self._peaks(adjusted), NO_TOKEN_LEFT, NO_TOKEN_LEFT)
            errors = [first or second for first, second in zip(errors, later, strict=True)]
            adjusted = _blank(adjusted, later)
        tokens = choose(adjusted, states, self._kernels)
        self._record(tokens, states, errors)
        return tokens, _report(raw, tokens, states, errors), errors

    @torch.inference_mode()
    def prompt_logprobs(self, logits: Tensor, targets: list[int], k: int) -> tuple[list[TokenLogprobs], str | None]:
        """Score the prompt token ``targets[i]`` by ``logits[i]`` ([m, vocab] of any float dtype, the logits of the
        position before it), with the ``k`` most likely. With NaN or +inf among the logits there are no entries, but an
        error."""
        assert logits.shape == (len(targets), self.vocab_size)
        result: list[TokenLogprobs] = []
        rows = max(1, _CHUNK // self.vocab_size)
        for start in range(0, len(targets), rows):
            part = logits[start : start + rows].float()
            wanted = targets[start : start + rows]
            if any(_explain(part.amax(-1), _NOT_FINITE, _NOT_FINITE)):
                return [], f"{_NOT_FINITE} inside the prompt"
            result += describe(part, torch.tensor(wanted, device=part.device), [k] * len(wanted))
        return result, None

    def _peaks(self, logits: Tensor) -> Tensor:
        """The largest of each row, NaN where there is one."""
        kernel = self._kernels.get("argmax")
        return logits.amax(-1) if kernel is None else best(logits, kernel)[1]

    def _adjust(self, raw: Tensor, states: list[State]) -> Tensor:
        logits = raw
        biased = [(row, token, value) for row, s in enumerate(states) for token, value in s.bias.items()]
        held = [(row, token) for row, s in enumerate(states) if s.held for token in s.stop_ids]
        slots = [(row, s.slot) for row, s in enumerate(states) if s.slot is not None]
        narrow = [(row, s) for row, s in enumerate(states) if s.allowed is not None or s.bad_words is not None]
        if logits is raw and (biased or held or slots or narrow):
            logits = raw.clone()
        if biased:
            rows, tokens, values = zip(*biased, strict=True)
            cells = self._ids(rows), self._ids(tokens)
            logits[cells] += torch.tensor(values, dtype=torch.float32, device=self.device)
        for row, state in narrow:
            if state.allowed is not None:
                kept = logits[row, state.allowed]
                logits[row] = -torch.inf
                logits[row, state.allowed] = kept
            if state.bad_words is not None:
                state.bad_words.apply(logits[row])
        if held:
            cells = self._ids([row for row, _ in held]), self._ids([token for _, token in held])
            before = logits[cells]
            logits[cells] = -torch.inf
            logits[cells] = torch.where(logits.amax(-1)[cells[0]].isinf(), before, -torch.inf)
        if slots:
            rows, places = zip(*slots, strict=True)
            index = self._ids(rows)
            params = [states[row].params for row in rows]
            logits[index] = self._penalties.penalise(logits[index], self._ids(places), params)
        return logits

    def _record(self, tokens: Tensor, states: list[State], errors: list[str | None]) -> None:
        good = [(row, s) for row, (s, error) in enumerate(zip(states, errors, strict=True)) if error is None]
        slots = [(row, s.slot) for row, s in good if s.slot is not None]
        if slots:
            rows, places = zip(*slots, strict=True)
            self._penalties.record(self._ids(places), tokens[self._ids(rows)])
        for row, state in good:
            state.step += 1
            if state.bad_words is not None:
                state.bad_words.record(tokens[row : row + 1])

    def _ids(self, values: list[int] | tuple[int, ...]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)


def _report(
    raw: Tensor, tokens: Tensor, states: list[State], errors: list[str | None]
) -> list[list[TokenLogprobs] | None]:
    result: list[list[TokenLogprobs] | None] = [None] * len(states)
    asked = [
        (row, s.params.logprobs)
        for row, (s, error) in enumerate(zip(states, errors, strict=True))
        if s.params.logprobs is not None and error is None
    ]
    if asked:
        index = torch.tensor([row for row, _ in asked], device=raw.device)
        described = describe(raw[index], tokens[index], [k for _, k in asked])
        for (row, _), entry in zip(asked, described, strict=True):
            ids = states[row].params.logprob_token_ids
            result[row] = [named(raw[row], entry, ids) if ids else entry]
    return result


def _explain(maxima: Tensor, cause: str, nothing: str) -> list[str | None]:
    """``nothing``: the cause where all logits are -inf."""
    return [None if isfinite(peak) else nothing if peak < 0 else cause for peak in maxima.tolist()]


def _blank(logits: Tensor, errors: list[str | None]) -> Tensor:
    """Zeros in place of the rows that have an error: no cause of trouble for what is computed with them."""
    if not any(errors):
        return logits
    rows = torch.tensor([error is not None for error in errors], device=logits.device)
    return logits.masked_fill(rows.unsqueeze(-1), 0)
