"""The engine inside a Python program: prompts in, finished answers out."""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from engine.bad_words import with_bad_words
from engine.batch import Output, Request, TokenLogprobs
from engine.chat_template import read_template
from engine.errors import EngineDeadError, RequestError
from engine.expand import check_priority, expand, seeds_from
from engine.generation import Delta
from engine.generation_bar import generation_bar
from engine.grammar.contract import GrammarError
from engine.grammar.vocabulary import vocabulary_of
from engine.interrupt import deferred_interrupt
from engine.outputs import OutputProcessor
from engine.pooling import Pooling, read_pooling
from engine.pooling_params import PoolingParams, finished
from engine.prompts import Prompt, at_prompt, read_conversations, read_params, read_prompts
from engine.request_output import CompletionOutput, EmbeddingOutput, EmbeddingRequestOutput, RequestOutput, positions
from engine.sampling_params import CAPS, Caps, SamplingParams
from engine.streams import MergedDelta

if TYPE_CHECKING:
    from engine.core import EngineCore
    from engine.grammar.checker import Checker
    from engine.plan_values import Given, Plan
    from engine.tokenizer import Tokenizer

NOTHING = SamplingParams(max_tokens=0, temperature=0)
log = logging.getLogger(__name__)


class LLM:
    """A model in this process. Use it as a context manager, or call ``close``, to give the device back.

    ``settings`` are the flags of ``engine serve`` in Python spelling (``optimization_level=2``,
    ``max_model_len=4096``, ``compilation_config={"mode": 0}``); they win over the environment. Raises ``UserError``
    for what cannot be done. One thread at a time: a second one that asks meanwhile gets a ``RuntimeError``.
    """

    def __init__(self, model: str | None = None, **settings: Any) -> None:
        from engine.config.sources import from_environment, from_keywords

        self._open(from_environment(os.environ) | from_keywords(model=model, **settings))

    @classmethod
    def of(cls, given: Mapping[str, Given]) -> Self:
        """An LLM of settings that have been read already, by canonical key. Raises ``UserError``."""
        self = cls.__new__(cls)
        self._open(given)
        return self

    def _open(self, given: Mapping[str, Given]) -> None:
        from engine.config.sources import value_of
        from engine.core import EngineCore
        from engine.tokenizer import load_tokenizer
        from engine.weights.checkpoint import find_gguf
        from engine.weights.dummy import is_dummy
        from engine.weights.resolve import resolve_model

        template = read_template(value_of(given, "model.chat_template"))
        path = resolve_model(value_of(given, "model.name")).path
        pooling = read_pooling(path, value_of(given, "model.pooler_config"))
        tokenizer = load_tokenizer(find_gguf(path, weights=not is_dummy(given)) or path)
        self._set_up(EngineCore(given, offline=True), tokenizer, template, value_of(given, "model.seed"), pooling)
        self._caps = Caps(logprobs=value_of(given, "model.max_logprobs"))

    @classmethod
    def over(
        cls, core: EngineCore, tokenizer: Tokenizer, chat_template: str | None = None, seed: int | None = None
    ) -> Self:
        """An LLM over a core that is open already, which it will close."""
        self = cls.__new__(cls)
        self._set_up(core, tokenizer, chat_template, seed, Pooling())
        return self

    def _set_up(
        self, core: EngineCore, tokenizer: Tokenizer, chat_template: str | None, seed: int | None, pooling: Pooling
    ) -> None:
        self._core: EngineCore | None = core
        self._tokenizer, self._chat_template, self._pooling = tokenizer, chat_template, pooling
        self._info = core.info
        self._numbers = itertools.count()
        self._seeds = seeds_from(seed)
        self._caps = CAPS
        self._failure = "the engine was closed"
        self._busy = threading.Lock()
        self._checker: Checker | None = None

    def generate(
        self,
        prompts: str | Sequence[int] | Mapping[str, Any] | Sequence[str | Sequence[int] | Mapping[str, Any]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Answers, in the order of the prompts.

        A prompt is a string, a list of token ids, ``{"prompt": text}`` or ``{"prompt_token_ids": ids}``.
        ``sampling_params``: one for all, or one per prompt. ``use_tqdm``: show a bar if it takes long. ``priority``:
        one number per prompt, lower first, under ``scheduling_policy="priority"``. Raises ``RequestError`` before
        anything runs, with the index of the prompt at fault; ``EngineDeadError`` when the engine fails or has been
        closed.
        """
        self._open_core()
        return self._run(read_prompts(prompts, self._tokenizer), sampling_params, use_tqdm, priority)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """``generate`` for one conversation, or a list of them, rendered with the model's chat template or the one
        given. Raises as ``generate`` does."""
        self._open_core()
        prompts = []
        for index, conversation in enumerate(read_conversations(messages)):
            try:
                text = self._tokenizer.render_chat(
                    conversation,
                    tools=tools,
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=continue_final_message,
                    chat_template=chat_template or self._chat_template,
                    **(chat_template_kwargs or {}),
                )
                prompts.append(Prompt(self._tokenizer.encode(text, add_special_tokens=False), text))
            except RequestError as error:
                raise at_prompt(index, error) from None
        return self._run(prompts, sampling_params, use_tqdm, None)

    def embed(
        self,
        prompts: str | Sequence[int] | Mapping[str, Any] | Sequence[str | Sequence[int] | Mapping[str, Any]],
        pooling_params: PoolingParams | None = None,
        use_tqdm: bool = True,
    ) -> list[EmbeddingRequestOutput]:
        """One vector for each prompt, in their order; prompts are as in ``generate``. Raises as ``generate`` does, and
        ``RequestError`` where this model's vectors cannot be made."""
        core, asked = self._open_core(), pooling_params or PoolingParams()
        self._pooling.check()
        asked.check(core.info.hidden_size)
        limit = core.info.max_model_len
        shortened = [
            replace(prompt, ids=asked.shortened(prompt.ids, limit)) for prompt in read_prompts(prompts, self._tokenizer)
        ]
        normalize = self._pooling.normalize if asked.normalize is None else asked.normalize
        jobs = self._done(shortened, [NOTHING] * len(shortened), use_tqdm, None, self._pooling.type)
        return [job.embedding(asked.dimensions, normalize) for job in jobs]

    @property
    def plan(self) -> Plan:
        """Every decision about this model on this device, with origins and reasons."""
        return self._open_core().plan

    def get_tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def close(self) -> None:
        """Give the device back. May be called again."""
        core, self._core = self._core, None
        if core is not None:
            core.close()
        if self._checker is not None:
            self._checker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _open_core(self) -> EngineCore:
        if self._core is None:
            raise EngineDeadError(self._failure)
        return self._core

    def _run(
        self,
        prompts: list[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: bool,
        priority: Sequence[int] | None,
    ) -> list[RequestOutput]:
        params = read_params(sampling_params, len(prompts))
        return [job.result(self._tokenizer) for job in self._done(prompts, params, use_tqdm, priority)]

    def _done(
        self,
        prompts: list[Prompt],
        params: list[SamplingParams],
        use_tqdm: bool,
        priority: Sequence[int] | None,
        pool: str | None = None,
    ) -> list[_Job]:
        if priority is not None and len(priority) != len(prompts):
            raise RequestError(f"{len(priority)} priorities were given for {len(prompts)} prompts", "priority")
        with self._alone():
            jobs = []
            for index, prompt in enumerate(prompts):
                try:
                    jobs.append(self._job(prompt, params[index], priority[index] if priority else 0, pool))
                except RequestError as error:
                    raise at_prompt(index, error) from None
            with generation_bar(len(jobs), use_tqdm) as advance, deferred_interrupt() as check_interrupt:
                self._work(jobs, advance, check_interrupt)
        return jobs

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._busy.acquire(blocking=False):
            raise RuntimeError(
                "this LLM is answering another thread; give all prompts in one call, or let threads take turns"
            )
        try:
            yield
        finally:
            self._busy.release()

    def _job(self, prompt: Prompt, params: SamplingParams, priority: int, pool: str | None) -> _Job:
        check_priority(priority, self._info.policy)
        name = str(next(self._numbers))
        requests = expand(
            name,
            prompt.ids,
            with_bad_words(params, self._tokenizer),
            eos_ids=self._tokenizer.eos_ids,
            vocab_size=self._info.vocab_size,
            max_model_len=self._info.max_model_len,
            priority=priority,
            cache_salt=prompt.cache_salt,
            seeds=self._seeds,
            caps=self._caps,
            pool=pool,
        )
        self._check_structure(requests[0])
        return _Job(name, prompt, requests)

    def _check_structure(self, request: Request) -> None:
        wanted = request.params.structured_outputs
        if wanted is None:
            return
        if self._checker is None:
            from engine.grammar.checker import Checker

            self._checker = Checker()
            self._open_core().learn(vocabulary_of(self._tokenizer, self._info.vocab_size))
        try:
            self._checker.submit(wanted).result()
        except GrammarError as error:
            raise RequestError(f"structured_outputs.{wanted.form}: {error}", "structured_outputs") from None

    def _work(self, jobs: list[_Job], advance: Callable[[int, int], None], check_interrupt: Callable[[], None]) -> None:
        """Run all of them. When this raises, nothing of them is left in the core."""
        core = self._open_core()
        processor = OutputProcessor(self._tokenizer)
        live: dict[str, _Job] = {}
        try:
            for place, job in enumerate(jobs):
                for index, request in enumerate(job.requests):
                    try:
                        core.add(request)
                    except RequestError as error:
                        raise at_prompt(place, error) from None
                    live[request.id] = job
                    processor.add(request.id, request.prompt, request.params, index)
            while live:
                check_interrupt()
                for output in self._step(core):
                    self._take(output, core, processor, live, advance)
        finally:
            if live and self._core is not None:
                core.abort(list(live))

    def _take(
        self,
        output: Output,
        core: EngineCore,
        processor: OutputProcessor,
        live: dict[str, _Job],
        advance: Callable[[int, int], None],
    ) -> None:
        delta, abort = processor.process(output)
        if abort:
            core.abort([output.request_id])
        if output.error is not None:
            log.warning("request %s ended with an error: %s", output.request_id, output.error)
        if delta is None:
            return
        job = live[output.request_id]
        job.append(delta)
        if delta.finish_reason is not None:
            del live[output.request_id]
        advance(job.finished, len(delta.token_ids))

    def _step(self, core: EngineCore) -> list[Output]:
        try:
            return core.step()
        except BaseException as error:
            # What is half done in a step cannot be taken back, so the core is of no use any more.
            self._failure = f"the engine failed: {type(error).__name__}: {error}"
            self.close()
            if isinstance(error, Exception):
                raise EngineDeadError(self._failure) from error
            raise


class _Job:
    """One prompt under way."""

    def __init__(self, name: str, prompt: Prompt, requests: list[Request]) -> None:
        self.name, self.prompt, self.requests = name, prompt, requests
        self._choices = [MergedDelta() for _ in requests]
        self._open = len(requests)

    @property
    def finished(self) -> bool:
        return self._open == 0

    def append(self, delta: Delta) -> None:
        self._choices[delta.index].append(delta)
        self._open -= delta.finish_reason is not None

    def result(self, tokenizer: Tokenizer) -> RequestOutput:
        deltas = [choice.delta() for choice in self._choices]
        prompt_logprobs = None
        if self.requests[0].params.prompt_logprobs is not None:
            prompt_logprobs = [None, *positions(deltas[0].prompt_logprobs or [], tokenizer.token_text)]
        return RequestOutput(
            request_id=self.name,
            prompt=self.prompt.text,
            prompt_token_ids=self.requests[0].prompt,
            prompt_logprobs=prompt_logprobs,
            outputs=[_completion(delta, tokenizer) for delta in deltas],
            finished=True,
            num_cached_tokens=deltas[0].cached_tokens,
        )


    def embedding(self, dimensions: int | None, normalize: bool) -> EmbeddingRequestOutput:
        delta = self._choices[0].delta()
        if delta.pooled is None:
            raise RequestError(f"prompt {self.name} has no vector: its hidden values hold NaN or infinity", status=500)
        return EmbeddingRequestOutput(
            request_id=self.name,
            outputs=EmbeddingOutput(finished(delta.pooled, dimensions, normalize).tolist()),
            prompt_token_ids=self.requests[0].prompt,
            finished=True,
            num_cached_tokens=delta.cached_tokens,
        )


def _completion(delta: Delta, tokenizer: Tokenizer) -> CompletionOutput:
    rows: list[TokenLogprobs] | None = delta.logprobs
    return CompletionOutput(
        index=delta.index,
        text=delta.text,
        token_ids=delta.token_ids,
        cumulative_logprob=None if rows is None else sum(row.logprob for row in rows),
        logprobs=None if rows is None else positions(rows, tokenizer.token_text),
        finish_reason=None if delta.finish_reason is None else str(delta.finish_reason),
        stop_reason=delta.stop_reason,
    )
