"""From the core's tokens to the text that somebody reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from engine.batch import FinishReason, Output, TokenLogprobs
from engine.generation import Delta
from engine.sampling_params import SamplingParams
from engine.stop_strings import StopStrings

if TYPE_CHECKING:
    from engine.tokenizer import Tokenizer

__all__ = ["OutputProcessor"]


class _Token(NamedTuple):
    id: int
    logprobs: TokenLogprobs | None
    end: int  # characters of text up to and with this token
    silent: bool  # no character was complete with it


class OutputProcessor:
    """Detokenises, holds back what may become a stop string, and ends a choice at one.

    A stop string that lies across tokens never shows a part of itself. Which one ends the text is said by
    ``StopStrings``; one that is complete within the first ``min_tokens`` tokens is passed over. The text of a stop
    token is dropped unless ``include_stop_str_in_output``; its id is kept.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._choices: dict[str, _Choice] = {}

    def __len__(self) -> int:
        return len(self._choices)

    def add(self, request_id: str, prompt_ids: list[int], params: SamplingParams, index: int = 0) -> None:
        """Expect outputs of a request of the core (``n`` expanded), which is choice ``index`` of what was asked."""
        self._choices[request_id] = _Choice(self._tokenizer, prompt_ids, params, index)

    def drop(self, request_id: str) -> None:
        """Forget a request; what still comes for it is ignored."""
        self._choices.pop(request_id, None)

    def process(self, output: Output) -> tuple[Delta | None, bool]:
        """What is new to show, if anything, and whether the core must abort the request (its text has ended before the
        core knew). A request that has ended is forgotten; an output of an unknown one gives ``(None, False)``."""
        choice = self._choices.get(output.request_id)
        if choice is None:
            return None, False
        delta = choice.take(output)
        ended = delta is not None and delta.finish_reason is not None
        if ended:
            del self._choices[output.request_id]
        return delta, ended and output.finish_reason is None


class _Choice:
    def __init__(self, tokenizer: Tokenizer, prompt_ids: list[int], params: SamplingParams, index: int) -> None:
        from engine.tokenizer import Detokenizer

        self._params, self._index = params, index
        self._detokenizer = Detokenizer(tokenizer, params.skip_special_tokens, prompt_ids, params.shown_token_ids)
        self._eos_ids = frozenset() if params.ignore_eos else tokenizer.eos_ids
        self._stops = StopStrings(params.stop) if params.stop else None
        self._count = 0  # tokens so far
        self._end = 0  # characters so far
        self._held = ""  # the last of them, not shown yet
        self._tokens: list[_Token] = []  # not shown yet
        self._prompt_logprobs: list[TokenLogprobs] | None = None
        self._cached_tokens = 0

    def take(self, output: Output) -> Delta | None:
        if output.prompt_logprobs is not None:
            self._prompt_logprobs = (self._prompt_logprobs or []) + output.prompt_logprobs
        stop = self._read(output)
        finish_reason = output.finish_reason
        stop_reason: int | str | None = self._stop_token(output)
        if stop is not None:
            finish_reason, stop_reason = FinishReason.STOP, stop
        self._cached_tokens = max(self._cached_tokens, output.cached_tokens)
        text, tokens = self._show(all=finish_reason is not None)
        if not text and finish_reason is None:
            return None
        prompt_logprobs, self._prompt_logprobs = self._prompt_logprobs, None
        return Delta(
            index=self._index,
            text=text,
            token_ids=[token.id for token in tokens],
            logprobs=None if self._params.logprobs is None else [t.logprobs for t in tokens if t.logprobs is not None],
            prompt_logprobs=prompt_logprobs,
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            cached_tokens=self._cached_tokens,
            pooled=output.pooled,
        )

    def _read(self, output: Output) -> str | None:
        """Append the output's tokens and text, up to a stop string, which is returned."""
        last = len(output.tokens) - 1
        for place, token in enumerate(output.tokens):
            unread = place == last and token == output.stop_token and not self._params.include_stop_str_in_output
            piece = "" if unread else self._detokenizer.push([token])
            self._count += 1
            stop = self._append(piece)
            logprobs = output.logprobs[place] if output.logprobs else None
            self._tokens.append(_Token(token, logprobs, self._end, not piece))
            if stop is not None:
                return stop
        return None if output.finish_reason is None else self._append(self._detokenizer.flush())

    def _append(self, piece: str) -> str | None:
        self._held += piece
        self._end += len(piece)
        match = self._stops.feed(piece, self._count > self._params.min_tokens) if self._stops and piece else None
        if match is None:
            return None
        beyond = len(piece) - match.end
        if not self._params.include_stop_str_in_output:
            beyond += len(match.stop)
        self._held = self._held[: len(self._held) - beyond]
        self._end -= beyond
        return match.stop

    def _show(self, all: bool) -> tuple[str, list[_Token]]:
        hold = 0
        if self._stops and not all and not self._params.include_stop_str_in_output:
            hold = self._stops.held
        text, self._held = self._held[: len(self._held) - hold], self._held[len(self._held) - hold :]
        count = len(self._tokens) if all or text else 0
        while not all and count and (self._tokens[count - 1].end > self._end - hold or self._tokens[count - 1].silent):
            count -= 1
        tokens, self._tokens = self._tokens[:count], self._tokens[count:]
        return text, tokens

    def _stop_token(self, output: Output) -> int | None:
        token = output.stop_token
        return token if token in self._params.stop_token_ids and token not in self._eos_ids else None
