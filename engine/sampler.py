"""The batched sampler: logits and what each request asked for in, tokens and log-probabilities out.

Order: mask, logit_bias, min_tokens, penalties (repetition, frequency, presence); greedy rows then take their best
token, the others temperature, top_k, top_p, min_p and one draw. Reported log-probabilities are those of the raw logits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.batch import Request, TokenLogprobs
from engine.sampling.draw import choose
from engine.sampling.penalties import Penalties
from engine.sampling.ranking import describe
from engine.sampling.state import State, penalised

_CHUNK = 2**23


class Sampler:
    """One per worker. ``vocab_size``: columns of the logits. Every row's result is a function of its own logits, mask
    and request alone, bit for bit."""

    def __init__(self, vocab_size: int, device: torch.device | str) -> None:
        self.vocab_size = vocab_size
        self.device = torch.device(device)
        self._states: dict[str, State] = {}
        self._penalties = Penalties(vocab_size, self.device)

    @torch.inference_mode()
    def add(self, request: Request, generated: list[int]) -> None:
        """Know a request, new or seen again after preemption with the tokens it has ``generated``; replaces what was
        known under its id. A request with a seed goes on as if never preempted."""
        self.forget(request.id)
        slot = self._penalties.add(request.prompt, generated) if penalised(request.params) else None
        self._states[request.id] = State.of(request, len(generated), slot, self.vocab_size)

    def forget(self, request_id: str) -> None:
        """Drop a request; unknown ids are fine."""
        state = self._states.pop(request_id, None)
        if state is not None and state.slot is not None:
            self._penalties.forget(state.slot)

    @torch.inference_mode()
    def sample(
        self, logits: Tensor, request_ids: list[str], masks: Tensor | None = None
    ) -> tuple[Tensor, list[list[TokenLogprobs] | None]]:
        """One token per request, recorded as generated.

        ``logits`` [n, vocab] of any float dtype, left unchanged; ``request_ids`` distinct and added; ``masks``
        [n, vocab] bool, true where a token is allowed. Returns tokens [n] int64 on the device and per request a list
        of one ``TokenLogprobs``, or None where it did not ask. Where a mask allows only what ``min_tokens`` forbids,
        the mask wins. Raises ``RuntimeError`` naming the requests whose logits hold NaN or +inf, or whose mask allows
        nothing; then nothing is recorded. Waits for the device.
        """
        assert logits.shape == (len(request_ids), self.vocab_size)
        states = [self._states[request_id] for request_id in request_ids]
        if masks is None and all(state.plain and not state.held for state in states):
            tokens = logits.argmax(-1)
            _require_finite(logits.gather(1, tokens.unsqueeze(-1)), request_ids, "the logits hold NaN or infinity")
            for state in states:
                state.step += 1
            return tokens, [None] * len(states)
        raw = logits.float()
        _require_finite(raw.amax(-1), request_ids, "the logits hold NaN or infinity")
        tokens = choose(self._adjust(raw, states, request_ids, masks), states)
        self._record(tokens, states)
        return tokens, _report(raw, tokens, states)

    @torch.inference_mode()
    def prompt_logprobs(self, logits: Tensor, targets: list[int], k: int) -> list[TokenLogprobs]:
        """Score the prompt token ``targets[i]`` by ``logits[i]`` ([m, vocab] of any float dtype, the logits of the
        position before it), with the ``k`` most likely. Raises ``RuntimeError`` if the logits hold NaN or +inf."""
        assert logits.shape == (len(targets), self.vocab_size)
        result: list[TokenLogprobs] = []
        rows = max(1, _CHUNK // self.vocab_size)
        for start in range(0, len(targets), rows):
            part = logits[start : start + rows].float()
            wanted = targets[start : start + rows]
            positions = [f"row {start + i} of prompt_logprobs" for i in range(len(wanted))]
            _require_finite(part.amax(-1), positions, "the logits hold NaN or infinity")
            result += describe(part, torch.tensor(wanted, device=part.device), [k] * len(wanted))
        return result

    def _adjust(self, raw: Tensor, states: list[State], request_ids: list[str], masks: Tensor | None) -> Tensor:
        logits = raw
        if masks is not None:
            logits = raw.masked_fill(~masks, -torch.inf)
            _require_finite(logits.amax(-1), request_ids, "the mask allows no token")
        biased = [(row, token, value) for row, s in enumerate(states) for token, value in s.bias.items()]
        held = [(row, token) for row, s in enumerate(states) if s.held for token in s.stop_ids]
        slots = [(row, s.slot) for row, s in enumerate(states) if s.slot is not None]
        if logits is raw and (biased or held or slots):
            logits = raw.clone()
        if biased:
            rows, tokens, values = zip(*biased, strict=True)
            cells = self._ids(rows), self._ids(tokens)
            logits[cells] += torch.tensor(values, dtype=torch.float32, device=self.device)
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
        for state in states:
            state.step += 1

    def _ids(self, values: list[int] | tuple[int, ...]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)


def _report(raw: Tensor, tokens: Tensor, states: list[State]) -> list[list[TokenLogprobs] | None]:
    result: list[list[TokenLogprobs] | None] = [None] * len(states)
    asked = [(row, s.params.logprobs) for row, s in enumerate(states) if s.params.logprobs is not None]
    if asked:
        index = torch.tensor([row for row, _ in asked], device=raw.device)
        described = describe(raw[index], tokens[index], [k for _, k in asked])
        for (row, _), entry in zip(asked, described, strict=True):
            result[row] = [entry]
    return result


def _require_finite(maxima: Tensor, names: list[str], problem: str) -> None:
    wrong = ~maxima.flatten().isfinite()
    if wrong.any():
        raise RuntimeError(f"{problem}: {', '.join(names[i] for i in wrong.nonzero().flatten().tolist())}")
