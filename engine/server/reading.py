"""How the answers of one request are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from engine.sampling_params import SamplingParams
from engine.server.state import ServerState
from engine.server.structure import Structure
from engine.server.tools import ToolParser
from engine.server.tools.choice import ToolUse
from engine.structured_outputs import Reasoning


@dataclass(frozen=True)
class Reading:
    """``several``: whether more than one call counts. ``marks``: special tokens that must be seen in the text."""

    parser: ToolParser | None = None
    reasoning: Reasoning | None = None
    several: bool = True
    marks: tuple[int, ...] = ()

    @property
    def plain(self) -> bool:
        """Answers are text throughout."""
        return self.parser is None and self.reasoning is None

    def apply(self, params: SamplingParams, wanted: Structure | None) -> SamplingParams:
        """``params`` of such answers, which have the form ``wanted`` behind their reasoning."""
        form = None if wanted is None else msgspec.structs.replace(wanted.params, reasoning=self.reasoning)
        return msgspec.structs.replace(params, structured_outputs=form, shown_token_ids=list(self.marks))


def expect(state: ServerState, use: ToolUse, prompt: Sequence[int], continued: str | None) -> Reading:
    """What answers to ``prompt`` are made of. ``continued``: the message that they go on with, if they do."""
    _, tokenizer = state.serving()
    thinks = state.chat.reasoning_parser
    reasoning = None if thinks is None else thinks.expect(tokenizer, prompt, continued)
    texts = {text for _, text in use.parser.markers} if use.parser else set()
    if reasoning is not None:
        texts |= {reasoning.begin, reasoning.end}
    marks = {text.encode() for text in texts}
    shown = [token for token in tokenizer.pieces.special if tokenizer.pieces[token] in marks] if marks else []
    return Reading(use.parser, reasoning, use.several, tuple(sorted(shown)))
