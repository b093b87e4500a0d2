"""Generations through the real core process, with a core that plays a script."""

from __future__ import annotations

import asyncio

import pytest

from engine.batch import FinishReason, Output, Stats
from engine.client import AsyncEngine
from engine.errors import RequestError
from engine.messages import Abort, Outputs
from engine.sampling_params import SamplingParams
from tests.core_runs import ENDLESS, collect, running, text_of, until
from tests.scripted_core import ScriptedCore, ToyTokenizer, script


def test_a_generation_and_the_state_after_it():
    async def main():
        async with running(text="hello ", once=False) as engine:
            deltas = await collect(engine, SamplingParams(max_tokens=12, logprobs=1, prompt_logprobs=0))
            assert text_of(deltas) == "hello hello "
            assert deltas[-1].finish_reason is FinishReason.LENGTH
            assert [row.token for delta in deltas for row in delta.logprobs] == list(b"hello hello ")
            assert [row.token for row in deltas[0].prompt_logprobs] == [2, 3]
            assert engine.info.model_name == "script" and engine.live_requests == 0
            assert engine.stats.generation_tokens == 12 and engine.stats.running == 0

    asyncio.run(main())


def test_H_SCH_07_stop_string_through_the_process():
    async def main():
        async with running(text="ab—END—cd") as engine:
            deltas = await collect(engine, SamplingParams(max_tokens=500, stop=["—END—"]))
            assert text_of(deltas) == "ab"
            assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == (FinishReason.STOP, "—END—")
            await until(lambda: engine.stats.running == 0)
            assert engine.stats.generation_tokens < 100

    asyncio.run(main())


def test_a_step_is_told_once_whether_it_has_news_or_not():
    async def main():
        async with running(text="ab—END—cd", step_s=0.002) as engine:
            steps = []
            engine.on_step = steps.append
            for _ in range(5):
                deltas = engine.generate("left", [1], ENDLESS)
                await anext(deltas)
                await deltas.aclose()  # the core answers an abort without a step
            await collect(engine, SamplingParams(max_tokens=500, stop=["—END—"]))  # steps whose text is held back
            await collect(engine, SamplingParams(n=3, max_tokens=4))
            await until(lambda: engine.stats.running == 0)
            assert sum(steps) == engine.stats.generation_tokens and min(steps) > 0

    asyncio.run(main())


def test_times_of_every_choice_are_those_of_the_core():
    async def main():
        async with running(text="ab—END—cd", refuse=9) as engine:
            told = []

            async def run(params, prompt=(1,)):
                told.clear()
                async for _ in engine.generate("r", list(prompt), params, on_times=told.append):
                    pass

            for params in (SamplingParams(n=2, max_tokens=3), SamplingParams(n=2, max_tokens=500, stop=["—END—"])):
                await run(params)
                await until(lambda: len(told) == 2)
                assert all(times.scheduled == times.arrival for times in told)
            with pytest.raises(RequestError):
                await run(SamplingParams(n=2), prompt=[9])
            left = engine.generate("left", [1], ENDLESS, on_times=told.append)
            await anext(left)
            await left.aclose()
            await until(lambda: len(told) == 1)
            assert not engine._endings

    asyncio.run(main())


def test_a_seed_of_the_engine_repeats_a_run():
    async def run(**seed):
        async with running(**seed) as engine:
            found = []
            for _ in range(3):
                found.append(text_of(await collect(engine, SamplingParams(max_tokens=8))))
            return found

    first = asyncio.run(run(**{"model.seed": 7}))
    assert len(set(first)) == 3 and first == asyncio.run(run(**{"model.seed": 7}))
    assert first != asyncio.run(run(**{"model.seed": 8}))
    assert asyncio.run(run()) == ["abcabcab"] * 3


def test_H_SCH_08_closing_the_stream_frees_the_core():
    async def main():
        async with running(step_s=0.002) as engine:
            for _ in range(50):
                deltas = engine.generate("r", [1], ENDLESS)
                await anext(deltas)
                await deltas.aclose()
            assert engine.live_requests == 0
            await until(lambda: engine.stats.running == 0, 1)

    asyncio.run(main())


def test_H_SCH_08_cancelling_the_consumer_frees_the_core():
    async def main():
        async with running(step_s=0.002) as engine:
            tasks = [asyncio.create_task(collect(engine, ENDLESS, name=str(n))) for n in range(20)]
            await until(lambda: engine.stats.running == 20)
            for task in tasks[:10]:
                task.cancel()
            await until(lambda: engine.stats.running == 10, 1)
            assert engine.live_requests == 10
            for task in tasks:
                task.cancel()
            await until(lambda: engine.stats.running == 0, 1)
            assert engine.stats.kv_usage == 0

    asyncio.run(main())


def test_a_stream_that_is_dropped_frees_the_core():
    async def main():
        async with running(step_s=0.002) as engine:
            async for _ in engine.generate("r", [1], ENDLESS):
                break
            await until(lambda: engine.live_requests == 0 and engine.stats.running == 0, 1)

    asyncio.run(main())


def test_a_stream_never_begun_runs_nothing():
    async def main():
        async with running() as engine:
            await engine.generate("r", [1], ENDLESS).aclose()
            assert engine.live_requests == 0
            await collect(engine, SamplingParams(max_tokens=3))
            assert engine.stats.generation_tokens == 3

    asyncio.run(main())


def test_H_SCH_09_three_choices_with_a_seed():
    async def main():
        async with running() as engine:
            runs = []
            for _ in range(2):
                deltas = await collect(engine, SamplingParams(n=3, seed=7, max_tokens=16))
                assert {delta.index for delta in deltas} == {0, 1, 2}
                ends = {delta.index: delta.finish_reason for delta in deltas if delta.finish_reason}
                assert ends == dict.fromkeys(range(3), FinishReason.LENGTH)
                runs.append([text_of(deltas, index) for index in range(3)])
            assert len(set(runs[0])) == 3 and runs[0] == runs[1]

    asyncio.run(main())


def test_abort_by_name_ends_the_stream_with_what_there_is():
    async def main():
        async with running(step_s=0.002) as engine:
            task = asyncio.create_task(collect(engine, SamplingParams(max_tokens=None, n=2), name="mine"))
            await until(lambda: engine.stats.running == 2)
            engine.abort("other")
            engine.abort("mine")
            deltas = await asyncio.wait_for(task, 1)
            ends = {delta.index: delta.finish_reason for delta in deltas if delta.finish_reason}
            assert ends == {0: FinishReason.ABORT, 1: FinishReason.ABORT}

    asyncio.run(main())


def test_a_name_can_be_used_again_at_once():
    async def main():
        async with running(text="abcdef", step_s=0.001) as engine:
            first = engine.generate("same", [1], ENDLESS)
            await anext(first)
            await first.aclose()
            both = await asyncio.gather(*(collect(engine, SamplingParams(max_tokens=6), name="same") for _ in range(2)))
            assert [text_of(deltas) for deltas in both] == ["abcdef", "abcdef"]

    asyncio.run(main())


def test_a_slow_consumer_gets_one_merged_delta():
    async def main():
        async with running(text="0123456789", chunk=10) as engine:
            deltas = engine.generate("slow", [1], SamplingParams(max_tokens=5000, logprobs=0))
            first = await anext(deltas)
            await collect(engine, SamplingParams(max_tokens=5000), name="fast")
            await until(lambda: engine.stats.running == 0)
            rest = [delta async for delta in deltas]
            assert len(rest) <= 2
            assert first.text + text_of(rest) == "0123456789" * 500
            assert len(first.token_ids + [t for d in rest for t in d.token_ids]) == 5000
            assert sum(len(delta.logprobs) for delta in [first, *rest]) == 5000

    asyncio.run(main())


class FloodingProcess:
    """Stands for a core that is faster than its client: once asked for something, its next message is always there."""

    def __init__(self):
        self.sent, self.said, self.number = [], 0, 0

    def send(self, message):
        self.sent.append(message)

    async def receive(self):
        while not self.sent or self.said == 1000:
            await asyncio.sleep(0.001)
        self.said += 1
        return Outputs([Output(self.sent[0].requests[0].id, [97])], Stats(1, 0, 0.0, 0, 0, 0, 1, 0, self.said), 1)


def test_a_flood_does_not_starve_the_consumer():
    async def main():
        process = FloodingProcess()
        engine = AsyncEngine(process, ScriptedCore(script()).info, ToyTokenizer())
        deltas = engine.generate("r", [1], ENDLESS)
        async with asyncio.timeout(5):
            for _ in range(10):
                await anext(deltas)
        assert process.said < 100
        await deltas.aclose()
        assert isinstance(process.sent[-1], Abort)
        engine._listener.cancel()

    asyncio.run(main())


class BreakingProcess(FloodingProcess):
    """Stands for a core whose first step gives tokens, and no more after them."""

    async def receive(self):
        while not self.sent or self.said:
            await asyncio.sleep(0.001)
        self.said += 1
        name = self.sent[0].requests[0].id
        return Outputs(
            [Output(name, list(b"abc"), FinishReason.ERROR, error="NaN")], Stats(0, 0, 0.0, 0, 0, 0, 3, 0, 3), 3
        )


def test_an_answer_that_a_stop_string_ends_does_not_break_behind_it():
    async def main():
        for stop in (["b"], []):
            engine = AsyncEngine(BreakingProcess(), ScriptedCore(script()).info, ToyTokenizer())
            deltas = collect(engine, SamplingParams(max_tokens=9, stop=stop))
            if stop:
                found = await deltas
                assert text_of(found) == "a" and found[-1].finish_reason is FinishReason.STOP
            else:
                with pytest.raises(RequestError, match="NaN") as error:
                    await deltas
                assert error.value.status == 500
            assert engine.live_requests == 0 and len(engine._processor) == 0
            engine._listener.cancel()

    asyncio.run(main())


def test_what_only_the_core_refuses():
    async def main():
        async with running(refuse=9, confuse=8) as engine:
            with pytest.raises(RequestError, match="more cache") as error:
                await collect(engine, SamplingParams(n=3), prompt=[9])
            assert error.value.param == "prompt" and error.value.status == 400
            with pytest.raises(RequestError, match="KeyError") as error:
                await collect(engine, SamplingParams(), prompt=[8])
            assert error.value.status == 500
            assert text_of(await collect(engine, SamplingParams(max_tokens=3))) == "abc"
            assert engine.live_requests == 0 and engine.errored is None

    asyncio.run(main())


def test_what_the_client_refuses_never_reaches_the_core():
    async def main():
        async with running(max_model_len=64) as engine:
            for prompt, params, name in (
                ([], SamplingParams(), "prompt"),
                ([-1], SamplingParams(), "prompt"),
                ([1] * 64, SamplingParams(), "prompt"),
                ([1] * 10, SamplingParams(max_tokens=55), "max_tokens"),
                ([1], SamplingParams(temperature=3.0), "temperature"),
            ):
                with pytest.raises(RequestError) as error:
                    engine.generate("r", prompt, params)
                assert error.value.param == name
            assert engine.live_requests == 0

    asyncio.run(main())


def test_a_message_that_cannot_be_read_is_passed_over():
    async def main():
        async with running() as engine:
            for junk in (b"", b"\xff", b"\x93abc", b"\x81\xa4type\xa5Other"):
                engine._process._link._socket.send(junk)
            assert text_of(await collect(engine, SamplingParams(max_tokens=3))) == "abc"

    asyncio.run(main())
