"""The batched sampler: logits and what each request asked for in, tokens and log-probabilities out.

Order: mask, logit_bias, allowed_token_ids and bad_words, min_tokens, penalties (repetition, frequency, presence);
greedy rows then take their best token, the others temperature, top_k, top_p, min_p and one draw. Reported
log-probabilities are those of the masked logits, before anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from engine.batch import Request, TokenLogprobs
from engine.ops.sampling import mask
from engine.sampling.bad_words import bad_words_of
from engine.sampling.draw import best, choose
from engine.sampling.penalties import Penalties
from engine.sampling.ranking import Described
from engine.sampling.state import State, penalised
from engine.sampling_params import NO_TOKEN_LEFT
from platforms.contract import Fetch

_CHUNK = 2**23
_NOT_FINITE = "the logits hold NaN or infinity"
_NOT_ALLOWED = "the mask allows no token"


class Sampler:
    """One per worker. ``vocab_size``: columns of the logits. ``kernels``: op → function for those of ``argmax``,
    ``mask``, ``penalize`` and ``draw`` that a kernel computes. ``fetch``: of the runtime. Every row's result is a
    function of its own logits, mask and request alone, bit for bit."""

    def __init__(
        self,
        vocab_size: int,
        device: torch.device | str,
        kernels: Mapping[str, Callable[..., Any]] | None = None,
        fetch: Callable[[Any], Fetch] = Fetch,
    ) -> None:
        self.vocab_size = vocab_size
        self.device = torch.device(device)
        self._states: dict[str, State] = {}
        self._kernels = kernels or {}
        self._fetch = fetch
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
    def sample(self, logits: Tensor, request_ids: list[str], masks: Tensor | None = None) -> Picks:
        """Start to choose one token per request, recorded as generated.

        ``logits`` [n, vocab] of any float dtype, changed only where a mask forbids; ``request_ids`` distinct and added;
        ``masks`` [n, words] int32 as ``mask``, the op, takes them. Where a mask allows only what ``min_tokens``
        forbids, the mask wins. Waits for the device only where no kernel draws.
        """
        assert logits.shape == (len(request_ids), self.vocab_size)
        states = [self._states[request_id] for request_id in request_ids]
        nothing = _NOT_FINITE
        if masks is not None:
            logits, nothing = logits.float(), _NOT_ALLOWED
            self._kernels.get("mask", mask.reference)(logits, masks)
        if all(state.plain and not state.held for state in states):
            tokens, peaks = best(logits, self._kernels.get("argmax"))
            self._record(tokens, states)
            return Picks(tokens, self._fetch(tokens), [_Check(self._fetch(peaks), _NOT_FINITE, nothing)])
        raw = logits.float()
        checks = [_Check(self._fetch(self._peaks(raw)), _NOT_FINITE, nothing)]
        adjusted = self._adjust(raw, states)
        if adjusted is not raw:
            checks.append(_Check(self._fetch(self._peaks(adjusted)), NO_TOKEN_LEFT, NO_TOKEN_LEFT))
        if "draw" not in self._kernels:
            adjusted = _blank(adjusted, checks)
        tokens = choose(adjusted, states, self._kernels)
        self._record(tokens, states)
        return Picks(tokens, self._fetch(tokens), checks, self._describe(raw, tokens, states))

    @torch.inference_mode()
    def prompt_logprobs(self, logits: Tensor, targets: list[int], k: int) -> Scores:
        """Start to score the prompt token ``targets[i]`` by ``logits[i]`` ([m, vocab] of any float dtype, the logits of
        the position before it), with the ``k`` most likely."""
        assert logits.shape == (len(targets), self.vocab_size)
        parts = []
        rows = max(1, _CHUNK // self.vocab_size)
        for start in range(0, len(targets), rows):
            part = logits[start : start + rows].float()
            wanted = targets[start : start + rows]
            check = _Check(self._fetch(part.amax(-1)), _NOT_FINITE, _NOT_FINITE)
            wanted_ids = torch.tensor(wanted, device=part.device)
            parts.append((check, Described(part, wanted_ids, [k] * len(wanted), self._fetch)))
        return Scores(parts)

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

    def _record(self, tokens: Tensor, states: list[State]) -> None:
        slots = [(row, s.slot) for row, s in enumerate(states) if s.slot is not None]
        if slots:
            rows, places = zip(*slots, strict=True)
            self._penalties.record(self._ids(places), tokens[self._ids(rows)])
        for row, state in enumerate(states):
            state.step += 1
            if state.bad_words is not None:
                state.bad_words.record(tokens[row : row + 1])

    def _describe(self, raw: Tensor, tokens: Tensor, states: list[State]) -> tuple[list[int], Described] | None:
        """What was asked to be reported: its rows and their log-probabilities."""
        asked = [(row, s.params.logprobs) for row, s in enumerate(states) if s.params.logprobs is not None]
        if not asked:
            return None
        rows = [row for row, _ in asked]
        some = self._ids(rows)
        named = [states[row].params.logprob_token_ids for row in rows]
        return rows, Described(raw[some], tokens[some], [k for _, k in asked], self._fetch, named)

    def _ids(self, values: list[int] | tuple[int, ...]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)


class Picks:
    """``tokens`` [n] int64 on the device; that of a request without one means nothing, and names one of the
    vocabulary."""

    def __init__(
        self, tokens: Tensor, fetched: Fetch, checks: list[_Check], described: tuple[list[int], Described] | None = None
    ) -> None:
        self.tokens = tokens
        self._fetched, self._checks, self._described = fetched, checks, described

    def wait(self) -> tuple[list[int], list[list[TokenLogprobs] | None], list[str | None]]:
        """Per request: its token; a list of one ``TokenLogprobs``, or None where it did not ask; None, or why it has no
        token: the logits of what is allowed hold NaN or +inf, or its mask allows nothing. Others are as if such a
        request was not there; it has nothing to go on from."""
        errors = self.problems()
        reports: list[list[TokenLogprobs] | None] = [None] * len(errors)
        if self._described is not None:
            rows, described = self._described
            for row, entry in zip(rows, described.wait(), strict=True):
                reports[row] = [entry] if errors[row] is None else None
        return self._fetched.wait().tolist(), reports, errors


    def problems(self) -> list[str | None]:
        """Per request: why it has no token."""
        errors = self._checks[0].wait()
        for check in self._checks[1:]:
            errors = [first or second for first, second in zip(errors, check.wait(), strict=True)]
        return errors


class Scores:
    """Log-probabilities of prompt tokens, in parts."""

    def __init__(self, parts: list[tuple[_Check, Described]]) -> None:
        self._parts = parts

    def wait(self) -> tuple[list[TokenLogprobs], str | None]:
        """With NaN or +inf among the logits there are no entries, but an error."""
        if any(error for check, _ in self._parts for error in check.wait()):
            return [], f"{_NOT_FINITE} inside the prompt"
        return [entry for _, described in self._parts for entry in described.wait()], None


@dataclass(frozen=True, slots=True)
class _Check:
    """``maxima`` of rows: ``cause`` where one is no number or infinite, ``nothing`` where all logits are -inf."""

    maxima: Fetch
    cause: str
    nothing: str

    def wait(self) -> list[str | None]:
        return [
            None if isfinite(peak) else self.nothing if peak < 0 else self.cause for peak in self.maxima.wait().tolist()
        ]


def _blank(logits: Tensor, checks: list[_Check]) -> Tensor:
    """Zeros in place of the rows that have an error: no cause of trouble for what is computed with them."""
    bad = [any(errors) for errors in zip(*(check.wait() for check in checks), strict=True)]
    if not any(bad):
        return logits
    return logits.masked_fill(torch.tensor(bad, device=logits.device).unsqueeze(-1), 0)
