"""Grammars of the requests in a core: compiled beside its loop, and kept in step with their tokens."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from engine.batch import Batch, Request, Sampled
from engine.errors import RequestError
from engine.grammar.answer import Live
from engine.grammar.compilations import LIMIT_S, Compilation, Compilations
from engine.grammar.contract import Compiler, Grammar, GrammarError
from engine.grammar.reasoning import Marks, start
from engine.grammar.vocabulary import Vocabulary
from engine.structured_outputs import FIELD, Reasoning, StructuredOutputsParams

if TYPE_CHECKING:
    from numpy import int32
    from numpy.typing import NDArray

KEPT = 64
_NO_VOCABULARY = "the core knows no vocabulary; structured outputs need one"
WAITING = RequestError("it is being compiled")
BUSY = RequestError("too many forms that take long are being compiled; try again in a moment", FIELD, 503)
log = logging.getLogger("engine")


class Grammars:
    """Belongs to the thread of the core's loop. A request is compiled, then live until it is forgotten."""

    def __init__(self) -> None:
        self._compilations = Compilations()
        self._compiler: Compilation[Compiler] | None = None
        self._vocabulary = Vocabulary([], [], [])
        self._marks: dict[tuple[str, str], Marks] = {}
        self._kept: OrderedDict[bytes, Compilation[Grammar]] = OrderedDict()
        self._pending: dict[str, tuple[Request, Compilation[Grammar]]] = {}
        self._live: dict[str, Live] = {}

    def learn(self, vocabulary: Vocabulary) -> None:
        """Must come before the first ``compile``."""
        self._vocabulary = vocabulary
        self._compiler = self._compilations.submit(partial(_make, vocabulary))

    def compile(self, request: Request, params: StructuredOutputsParams) -> None:
        """Start to; ``compiled`` tells the end."""
        key = params.key
        compilation = self._kept.get(key)
        if compilation is None or compilation.cancelled():
            compilation = self._kept[key] = self._compilations.submit(partial(self._compile, params))
        self._kept.move_to_end(key)
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        self._pending[request.id] = request, compilation

    def compiled(self) -> list[tuple[str, RequestError | None]]:
        """Requests whose grammar is done, each once; with a reason where there is none."""
        if self._pending:
            self._compilations.help()
        told = {name: self._outcome(*pending) for name, pending in self._pending.items()}
        result = [(name, error) for name, error in told.items() if error is not WAITING]
        for name, error in result:
            request, compilation = self._pending.pop(name)
            if error is None:
                self._live[name] = Live(compilation.result().copy(), request.params.ignore_eos)
        return result

    def wait(self, seconds: float) -> None:
        """Until a grammar is done, if one is being compiled."""
        if self._pending:
            wait({compilation for _, compilation in self._pending.values()}, seconds, FIRST_COMPLETED)

    def masks(self, batch: Batch, names: Sequence[str]) -> NDArray[int32] | None:
        """Which tokens may come next for ``names``, [len(names), words] as ``Grammar.fill`` writes them, all ones for
        requests without a grammar; ``None`` if all are. ``batch``: the step that ``names`` are sampled in."""
        if not self._live:
            return None
        for request, generated in batch.new:
            self._resume(request, generated)
        rows = [(row, self._live[name]) for row, name in enumerate(names) if name in self._live]
        if not rows:
            return None
        import numpy

        assert self._compiler is not None
        masks = numpy.full((len(names), self._compiler.result().words), -1, numpy.int32)
        for row, live in rows:
            if live.error is None:
                live.fill(masks[row])
            if live.endless:
                self._hold_ends(masks[row])
        return masks

    def accept(self, sampled: Iterable[Sampled], going: Collection[str]) -> list[Sampled]:
        """Go on by what was sampled for requests that are ``going`` on from there; say of each answer whether it is
        complete, or why it cannot go on."""
        return [
            self._accept(result) if result.request_id in self._live and result.request_id in going else result
            for result in sampled
        ]

    def forget(self, ids: Iterable[str]) -> None:
        """These requests have ended; unknown ids are fine."""
        for name in ids:
            self._pending.pop(name, None)
            self._live.pop(name, None)

    def close(self) -> None:
        self._compilations.close()

    def _outcome(self, request: Request, compilation: Compilation[Grammar]) -> RequestError | None:
        """Why there is no grammar, ``WAITING`` if there may still be one, ``None`` if there is."""
        if compilation.overdue:
            return RequestError(f"compiling it takes more than {LIMIT_S:.0f} s here; make it smaller", FIELD)
        if not compilation.running() and self._compilations.stuck:
            compilation.cancel()
        if compilation.cancelled():
            return BUSY
        if not compilation.done():
            return WAITING
        error = compilation.exception()
        if error is None:
            return None
        if isinstance(error, GrammarError):
            return RequestError(str(error), FIELD)
        log.error("the grammar of request %s cannot be compiled", request.id, exc_info=error)
        return RequestError("its form cannot be compiled; the server's log has the details", FIELD, 500)

    def _compile(self, params: StructuredOutputsParams) -> Grammar:
        if self._compiler is None:
            raise GrammarError(_NO_VOCABULARY)
        compiler = self._compiler.result()
        grammar = compiler.compile(params)
        if params.reasoning is None:
            return grammar
        return start(grammar, self._marks_of(params.reasoning, compiler.words), params.reasoning)

    def _marks_of(self, reasoning: Reasoning, words: int) -> Marks:
        key = reasoning.begin, reasoning.end
        if key not in self._marks:
            self._marks[key] = Marks(self._vocabulary, words, reasoning)
        return self._marks[key]

    def _resume(self, request: Request, generated: list[int]) -> None:
        live = self._live.get(request.id)
        if live is not None and live.error is None:
            live.follow(generated)

    def _accept(self, result: Sampled) -> Sampled:
        live = self._live[result.request_id]
        if result.error is None and live.error is None:
            live.accept(result.tokens)
        if live.error is not None:
            message = f"the answer cannot go on in this form, make it simpler: {live.error}"
            return Sampled(result.request_id, [], error=message, status=400, param=FIELD)
        return replace(result, ended=live.grammar.ended)

    def _hold_ends(self, row: NDArray[int32]) -> None:
        rest = row.copy()
        for token in self._vocabulary.ends:
            rest[token // 32] &= ~(1 << token % 32)
        if rest.any():
            row[:] = rest


def _make(vocabulary: Vocabulary) -> Compiler:
    from engine.grammar.guidance import GuidanceCompiler

    return GuidanceCompiler(vocabulary)
