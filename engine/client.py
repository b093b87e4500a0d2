"""The engine as the front end sees it: text streams out of a process of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from engine.bad_words import with_bad_words
from engine.batch import FinishReason, Output, Request, Stats, Times
from engine.config import value_of
from engine.core_handle import DEFAULT_FACTORY, CoreProcess, SharedCore
from engine.errors import EngineDeadError, RequestError, UserError
from engine.expand import derive_seed, expand, seeds_from
from engine.generation import CoreInfo, Delta
from engine.grammar.vocabulary import vocabulary_of
from engine.messages import Abort, Add, Failed, Learn, Outputs, Progress, Ready, Rejected
from engine.outputs import OutputProcessor
from engine.sampling_params import CAPS, Caps, SamplingParams
from engine.streams import Stream

if TYPE_CHECKING:
    from engine.plan_values import Given
    from engine.tokenizer import Tokenizer

__all__ = ["AsyncEngine", "CoreProcess"]

log = logging.getLogger(__name__)


class AsyncEngine:
    """Runs generations in a core process. Belongs to the event loop it was started in; no method is thread-safe.

    ``info``: what the core said of itself. ``on_step``: told the tokens of each step once. ``dead``: set when the core
    has ended although nobody closed it; ``errored`` then says why. ``seed``: what the seeds of requests that bring none
    are made from; without it they are fresh. ``caps``: the most that one request may ask for.
    """

    def __init__(
        self,
        process: CoreProcess | SharedCore,
        info: CoreInfo,
        tokenizer: Tokenizer,
        seed: int | None = None,
        caps: Caps = CAPS,
    ) -> None:
        self.info = info
        self._stats = Stats(0, 0, 0.0, 0, 0, 0, 0, 0, 0)
        self.on_step: Callable[[int], None] = lambda tokens: None
        self.dead = asyncio.Event()
        self.errored: EngineDeadError | None = None
        self._process, self._tokenizer = process, tokenizer
        self._processor = OutputProcessor(tokenizer)
        self._streams: dict[int, tuple[str, Stream]] = {}
        self._choices: dict[str, Stream] = {}
        self._endings: dict[str, _Ending] = {}
        self._number = 0
        self._taught = False
        self._seeds = seeds_from(seed if seed is None else derive_seed(seed, process.number))
        self._caps = caps
        self._listener = asyncio.create_task(self._listen(), name="engine-listener")

    @classmethod
    async def start(
        cls,
        given: dict[str, Given],
        tokenizer: Tokenizer,
        *,
        factory: str = DEFAULT_FACTORY,
        report: Callable[[str], None] = lambda text: None,
        caps: Caps = CAPS,
    ) -> AsyncEngine:
        """Start a core and wait until it is ready. ``report`` gets its lines on the way.

        Raises ``UserError`` as the core does, ``EngineDeadError`` if it fails otherwise. When this raises, or is
        cancelled, the process is gone.
        """
        process = CoreProcess.start(given, factory)
        try:
            return cls(process, await _ready(process, report), tokenizer, value_of(given, "model.seed"), caps)
        except BaseException:
            await process.stop(timeout=0)
            raise

    @classmethod
    async def join(
        cls, shared: SharedCore, tokenizer: Tokenizer, *, seed: int | None = None, caps: Caps = CAPS
    ) -> AsyncEngine:
        """Use a core that another process has started and told of ``shared``. Raises ``EngineDeadError`` if it fails
        before it is ready."""
        try:
            return cls(shared, await _ready(shared, lambda text: None), tokenizer, seed, caps)
        except BaseException:
            await shared.stop(timeout=0)
            raise

    @property
    def pid(self) -> int:
        """Of the core process."""
        return self._process.pid

    @property
    def stats(self) -> Stats:
        """The core's state after its latest step, whoever asked for it."""
        return self._stats if self._process.board is None else self._process.board.read()

    @property
    def live_requests(self) -> int:
        """How many generations are under way, each counted once whatever its ``n``."""
        return len(self._streams)

    def generate(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        on_times: Callable[[Times], None] = lambda times: None,
        timeout: float | None = None,
        pool: str | None = None,
        tenant: str | None = None,
    ) -> AsyncGenerator[Delta, None]:
        """Deltas of all choices as they come; each choice ends with the delta that has a ``finish_reason``.

        A consumer that lags gets fewer, longer deltas. Closing the iterator, or cancelling the task that awaits it,
        ends the generation in the core at once. Raises ``RequestError`` here for what can be seen in the request
        itself, and with the first delta for what only the core sees; ``EngineDeadError`` at once when the core has
        ended or ends. Nothing runs before the first delta is asked for. ``on_times`` is told once per choice when the
        core has ended it, which for a stop string comes after the last delta. ``timeout``: seconds after which what is
        not finished fails with ``RequestError`` (504). ``pool``, ``tenant``: see ``Request``.
        """
        self._check_alive()
        self._number += 1
        requests = expand(
            f"{request_id}#{self._process.number}.{self._number}",
            prompt_ids,
            with_bad_words(params, self._tokenizer),
            eos_ids=self._tokenizer.eos_ids,
            vocab_size=self.info.vocab_size,
            max_model_len=self.info.max_model_len,
            priority=priority,
            cache_salt=cache_salt,
            seeds=self._seeds,
            caps=self._caps,
            pool=pool,
            tenant=tenant,
        )
        return self._generate(self._number, request_id, requests, on_times, timeout)

    def abort(self, request_id: str) -> None:
        """End a generation; its consumer gets what there is, with the finish reason ``abort``."""
        for name, stream in self._streams.values():
            if name == request_id and stream.open:
                self._process.send(Abort(sorted(stream.open)))

    def trouble(self, patience: float) -> str | None:
        """Why a living core is not fit to serve, if so: it does not run, or a step takes longer than ``patience``
        seconds."""
        return self._process.pulse.trouble(patience)

    async def close(self, timeout: float = 10.0) -> None:
        """End the core, by force after ``timeout`` seconds. What is under way raises ``EngineDeadError``."""
        if self.errored is None:
            self._fail_all("the engine was closed")
        self._listener.cancel()
        await self._process.stop(timeout)

    async def _generate(
        self,
        number: int,
        name: str,
        requests: list[Request],
        on_times: Callable[[Times], None],
        timeout: float | None,
    ) -> AsyncGenerator[Delta, None]:
        self._check_alive()
        stream = Stream(request.id for request in requests)
        self._streams[number] = (name, stream)
        ending = _Ending([request.id for request in requests], on_times)
        for index, request in enumerate(requests):
            self._choices[request.id], self._endings[request.id] = stream, ending
            self._processor.add(request.id, request.prompt, request.params, index)
        if requests[0].params.structured_outputs is not None and not self._taught:
            self._process.send(Learn(vocabulary_of(self._tokenizer, self.info.vocab_size)))
            self._taught = True
        late = None
        if timeout is not None:
            error = RequestError("The request was not finished in the time it may take (--request-timeout).", None, 504)
            late = asyncio.get_running_loop().call_later(timeout, stream.fail, error)
        try:
            self._process.send(Add(requests))
            while not stream.ended:
                for delta in await stream.take():
                    yield delta
        finally:
            if late is not None:
                late.cancel()
            del self._streams[number]
            for request in requests:
                self._processor.drop(request.id)
                del self._choices[request.id]
            if stream.open:
                self._process.send(Abort(sorted(stream.open)))

    async def _listen(self) -> None:
        try:
            while self.errored is None:
                self._hear(await self._process.receive())
                await asyncio.sleep(0)  # messages that are there already must not starve the consumers
        except EngineDeadError as error:
            self._die(str(error))
        except Exception as error:
            log.exception("the front end cannot follow its core")
            self._die(f"the front end cannot follow its core: {type(error).__name__}: {error}")
            self._process.kill()

    def _hear(self, message: object) -> None:
        match message:
            case Outputs(outputs, stats, step_tokens):
                self._stats = stats
                if step_tokens:
                    self.on_step(step_tokens)
                ended = [output.request_id for output in outputs if self._deliver(output)]
                if ended:
                    self._process.send(Abort(ended))
                for output in outputs:
                    if output.finish_reason is not None:
                        self._end(output)
            case Rejected(request_id, text, param, status):
                ending = self._endings.get(request_id)
                for name in ending.ids if ending is not None else ():
                    self._endings.pop(name, None)
                stream = self._choices.get(request_id)
                if stream is not None:
                    stream.open.clear()
                    stream.fail(RequestError(text, param, status))
            case Failed(text):
                self._die(text)

    def _deliver(self, output: Output) -> bool:
        """Whether the core must abort the request."""
        stream = self._choices.get(output.request_id)
        if stream is None:
            return False
        if output.finish_reason is not None:
            stream.open.discard(output.request_id)
        try:
            delta, abort = self._processor.process(output)
        except Exception as error:
            log.exception("an output of request %s cannot be read", output.request_id)
            stream.fail(error)
            return False
        stopped = delta is not None and delta.finish_reason is FinishReason.STOP
        if output.finish_reason is FinishReason.ERROR and not stopped:
            message = output.error or "the engine could not go on with this request"
            stream.fail(RequestError(message, output.param, output.status))
            return False
        if abort:
            stream.open.discard(output.request_id)
        if delta is not None:
            stream.push(delta)
        return abort

    def _end(self, output: Output) -> None:
        ending = self._endings.pop(output.request_id, None)
        if ending is not None and output.times is not None:
            ending.on_times(output.times)

    def _check_alive(self) -> None:
        if self.errored is not None:
            raise EngineDeadError(str(self.errored))

    def _die(self, reason: str) -> None:
        if self.errored is None:
            self._fail_all(reason)
            self.dead.set()

    def _fail_all(self, reason: str) -> None:
        self.errored = EngineDeadError(reason)
        for _, stream in self._streams.values():
            stream.fail(EngineDeadError(reason))


class _Ending(NamedTuple):
    """What the core still has to end: ``ids`` of all choices of one generation, and who is told."""

    ids: list[str]
    on_times: Callable[[Times], None]


async def _ready(process: CoreProcess | SharedCore, report: Callable[[str], None]) -> CoreInfo:
    while True:
        match await process.receive():
            case Progress(text):
                report(text)
            case Ready(info):
                return info
            case Failed(text, user):
                raise UserError(text) if user else EngineDeadError(text)
            case message:
                raise EngineDeadError(f"the engine core said {type(message).__name__} before it was ready")
