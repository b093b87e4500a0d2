"""Grammars of the requests in a core: compiled beside its loop, and kept in step with their tokens."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec.structs import replace

from engine.batch import Batch, Request, Sampled
from engine.grammar.contract import Compiler, Grammar, GrammarError
from engine.grammar.reasoning import Marks, start
from engine.grammar.vocabulary import Vocabulary
from engine.structured_outputs import Reasoning, StructuredOutputsParams

if TYPE_CHECKING:
    from numpy import int32
    from numpy.typing import NDArray

KEPT = 64
_NO_VOCABULARY = "the core knows no vocabulary; structured outputs need one"
log = logging.getLogger("engine")


@dataclass(slots=True)
class Live:
    """``endless``: end tokens may come only where nothing else may. ``tokens``: accepted so far. ``error``: why the
    answer cannot go on."""

    grammar: Grammar
    endless: bool
    tokens: list[int] = field(default_factory=list)
    error: str | None = None

    def follow(self, tokens: list[int]) -> None:
        """Be where an answer of ``tokens`` is."""
        shared = next(
            (place for place, (mine, given) in enumerate(zip(self.tokens, tokens, strict=False)) if mine != given),
            min(len(self.tokens), len(tokens)),
        )
        if shared < len(self.tokens):
            self.grammar.rollback(len(self.tokens) - shared)
        self.grammar.accept(tokens[shared:])
        self.tokens = list(tokens)


class Grammars:
    """Belongs to the thread of the core's loop. A request is compiled, then live until it is forgotten."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._compiler: Future[Compiler] | None = None
        self._vocabulary = Vocabulary([], [], [])
        self._marks: dict[tuple[str, str], Marks] = {}
        self._kept: OrderedDict[bytes, Future[Grammar]] = OrderedDict()
        self._pending: dict[str, tuple[Request, Future[Grammar]]] = {}
        self._live: dict[str, Live] = {}

    def learn(self, vocabulary: Vocabulary) -> None:
        """Must come before the first ``compile``."""
        self._vocabulary = vocabulary
        self._compiler = self._pool.submit(_make, vocabulary)

    def compile(self, request: Request, params: StructuredOutputsParams) -> None:
        """Start to; ``compiled`` tells the end."""
        key = params.key
        future = self._kept.get(key)
        if future is None:
            future = self._kept[key] = self._pool.submit(self._compile, params)
        self._kept.move_to_end(key)
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        self._pending[request.id] = request, future

    def compiled(self) -> list[tuple[str, str | None]]:
        """Requests whose grammar is done, each once; with a reason where there is none."""
        done = [name for name, (_, future) in self._pending.items() if future.done()]
        result: list[tuple[str, str | None]] = []
        for name in done:
            request, future = self._pending.pop(name)
            error = future.exception()
            if error is None:
                self._live[name] = Live(future.result().copy(), request.params.ignore_eos)
            elif not isinstance(error, GrammarError):
                log.error("the grammar of request %s cannot be compiled", name, exc_info=error)
            result.append((name, None if error is None else f"{type(error).__name__}: {error}"))
        return result

    def wait(self, seconds: float) -> None:
        """Until a grammar is done, if one is being compiled."""
        if self._pending:
            wait({future for _, future in self._pending.values()}, seconds, FIRST_COMPLETED)

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
                try:
                    live.grammar.fill(masks[row])
                except GrammarError as error:
                    live.error = str(error)
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
        self._pool.shutdown(wait=False, cancel_futures=True)

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
            try:
                live.follow(generated)
            except GrammarError as error:
                live.error = str(error)

    def _accept(self, result: Sampled) -> Sampled:
        live = self._live[result.request_id]
        if result.error is None and live.error is None:
            try:
                live.grammar.accept(result.tokens)
                live.tokens += result.tokens
            except GrammarError as error:
                live.error = str(error)
        if live.error is not None:
            return Sampled(result.request_id, [], error=f"its grammar fails: {live.error}")
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
