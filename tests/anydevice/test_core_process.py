"""The core process and its client, for real, with a core that plays a script."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from engine.batch import FinishReason, Output, Stats
from engine.client import AsyncEngine, CoreProcess
from engine.errors import EngineDeadError, RequestError, UserError
from engine.messages import Abort, Outputs
from engine.sampling_params import SamplingParams
from tests.scripted_core import FACTORY, ScriptedCore, ToyTokenizer, script

ENDLESS = SamplingParams(max_tokens=None, temperature=0.0)


@contextlib.asynccontextmanager
async def running(**values):
    engine = await AsyncEngine.start(script(**values), ToyTokenizer(), factory=FACTORY)
    try:
        yield engine
    finally:
        await engine.close(timeout=5)


async def collect(engine, params, prompt=(1, 2, 3), name="r"):
    return [delta async for delta in engine.generate(name, list(prompt), params)]


def text_of(deltas, index=0):
    return "".join(delta.text for delta in deltas if delta.index == index)


async def until(condition, seconds=5.0):
    """Wait for it; failing to come true in time is an error."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


def gone(pid):
    """Ended; a zombie that nobody has waited for has ended, too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_generation_and_the_state_after_it():
    async def main():
        async with running(text="hello ", once=False) as engine:
            deltas = await collect(engine, SamplingParams(max_tokens=12, logprobs=1, prompt_logprobs=0))
            assert text_of(deltas) == "hello hello "
            assert deltas[-1].finish_reason is FinishReason.LENGTH and deltas[-1].times is not None
            assert [row.token for delta in deltas for row in delta.logprobs] == list(b"hello hello ")
            assert [row.token for row in deltas[0].prompt_logprobs] == [2, 3]
            assert engine.info.model_name == "script" and engine.live_requests == 0
            assert engine.stats.generation_tokens == 12 and engine.stats.running == 0
            await engine.ping(timeout=2)

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
            await engine.ping(timeout=2)
            assert engine.live_requests == 0 and engine.stats.generation_tokens == 0

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
        self.sent, self.said = [], 0

    def send(self, message):
        self.sent.append(message)

    async def receive(self):
        while not self.sent or self.said == 1000:
            await asyncio.sleep(0.001)
        self.said += 1
        return Outputs([Output(self.sent[0].requests[0].id, [97])], Stats(1, 0, 0.0, 0, 0, 0, 1, 0, self.said))


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
                engine._process._socket.send(junk)
            assert text_of(await collect(engine, SamplingParams(max_tokens=3))) == "abc"

    asyncio.run(main())


def test_H_SRV_03_killed_core_ends_every_stream_within_a_second():
    async def main():
        async with running(step_s=0.002) as engine:
            tasks = [asyncio.create_task(collect(engine, ENDLESS, name=str(n))) for n in range(10)]
            await until(lambda: engine.stats.running == 10)
            ping = asyncio.create_task(engine.ping(timeout=10))
            os.kill(engine.pid, signal.SIGKILL)
            begin = time.monotonic()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert time.monotonic() - begin < 1
            assert [type(result) for result in results] == [EngineDeadError] * 10
            with contextlib.suppress(EngineDeadError):
                await ping
            assert engine.dead.is_set() and "SIGKILL" in str(engine.errored) and engine.live_requests == 0
            with pytest.raises(EngineDeadError):
                engine.generate("late", [1], SamplingParams())
            with pytest.raises(EngineDeadError):
                await engine.ping(timeout=1)

    asyncio.run(main())


def test_an_idle_core_that_is_killed_is_noticed():
    async def main():
        async with running() as engine:
            os.kill(engine.pid, signal.SIGKILL)
            await asyncio.wait_for(engine.dead.wait(), 1)

    asyncio.run(main())


def test_a_failing_step_says_why_and_exits_with_1(capfd):
    async def main():
        async with running(crash_after=3) as engine:
            with pytest.raises(EngineDeadError, match="RuntimeError: the script is over"):
                await collect(engine, ENDLESS)
            assert engine.dead.is_set()
            await until(lambda: engine._process.exit_code is not None, 3)
            assert engine._process.exit_code == 1

    asyncio.run(main())
    assert "Traceback" in capfd.readouterr().err


def test_user_errors_at_the_start_reach_the_user():
    async def main():
        with pytest.raises(UserError, match="no such script; write one"):
            await AsyncEngine.start(script(open_error="user"), ToyTokenizer(), factory=FACTORY)

    asyncio.run(main())


def test_other_failures_at_the_start_say_what_failed():
    async def main():
        with pytest.raises(EngineDeadError, match="ValueError: the script is torn"):
            await AsyncEngine.start(script(open_error="crash"), ToyTokenizer(), factory=FACTORY)

    asyncio.run(main())


def test_progress_is_reported():
    async def main():
        lines = []
        engine = await AsyncEngine.start(script(), ToyTokenizer(), factory=FACTORY, report=lines.append)
        await engine.close()
        assert lines == ["opening the script"]

    asyncio.run(main())


def test_H_SRV_02_a_cancelled_start_leaves_no_process():
    async def main():
        task = asyncio.create_task(AsyncEngine.start(script(open_s=30), ToyTokenizer(), factory=FACTORY))
        await asyncio.sleep(0.5)
        pids = children()
        assert pids
        task.cancel()
        begin = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - begin < 2
        await until(lambda: all(map(gone, pids)))

    asyncio.run(main())


def children():
    """Pids of the core processes that belong to this process."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int(entry.joinpath("stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and b"spawn_main" in entry.joinpath("cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def test_close_ends_the_core_and_cleans_up(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    async def main():
        async with running(step_s=0.002) as engine:
            assert list(tmp_path.iterdir()) == []
            pid = engine.pid
            task = asyncio.create_task(collect(engine, ENDLESS))
            await until(lambda: engine.stats.running == 1)
            await engine.close(timeout=5)
            assert gone(pid) and engine._process.exit_code == 0 and not engine.dead.is_set()
            with pytest.raises(EngineDeadError, match="closed"):
                await task
            with pytest.raises(EngineDeadError, match="closed"):
                engine.generate("late", [1], SamplingParams())

    asyncio.run(main())


def test_close_kills_a_core_that_does_not_listen():
    async def main():
        async with running(step_s=30, hold=True) as engine:
            task = asyncio.create_task(collect(engine, ENDLESS))
            await asyncio.sleep(0.2)
            begin = time.monotonic()
            await engine.close(timeout=0.3)
            assert time.monotonic() - begin < 2 and gone(engine.pid)
            with pytest.raises(EngineDeadError):
                await task

    asyncio.run(main())


def test_a_temporary_folder_with_too_long_a_name(tmp_path, monkeypatch):
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))

    async def main():
        with pytest.raises(UserError, match="TMPDIR"):
            CoreProcess.start(script(), FACTORY)

    asyncio.run(main())
    assert list(deep.iterdir()) == []


def test_an_idle_core_uses_no_processor():
    def ticks(pid):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    async def main():
        async with running() as engine:
            await collect(engine, SamplingParams(max_tokens=3))
            await asyncio.sleep(0.1)
            before = ticks(engine.pid)
            await asyncio.sleep(2)
            assert ticks(engine.pid) - before <= 0.01 * 2 * os.sysconf("SC_CLK_TCK")

    asyncio.run(main())


def test_interrupt_from_the_terminal_is_left_to_the_parent():
    async def main():
        async with running() as engine:
            os.kill(engine.pid, signal.SIGINT)
            assert text_of(await collect(engine, SamplingParams(max_tokens=3))) == "abc"

    asyncio.run(main())


PARENT = """
import asyncio
from engine.client import AsyncEngine, CoreProcess
from engine.sampling_params import SamplingParams
from tests.scripted_core import FACTORY, ToyTokenizer, script

async def main():
    if {moment!r} == "loading":
        core = CoreProcess.start(script(**{script!r}), FACTORY)
        print(core.pid, flush=True)
        await core.receive()
        print("ready", flush=True)
        await asyncio.sleep(60)
    engine = await AsyncEngine.start(script(**{script!r}), ToyTokenizer(), factory=FACTORY)
    print(engine.pid, flush=True)
    task = None
    if {moment!r} == "generating":
        task = asyncio.create_task(anext(engine.generate("r", [1], SamplingParams(max_tokens=None))))
        await asyncio.sleep(0.2)
    print("ready", flush=True)
    {end}

if __name__ == "__main__":
    asyncio.run(main())
"""


@contextlib.contextmanager
def parent_with_core(tmp_path, moment, values, end="await asyncio.sleep(60)"):
    """A process with a core, and the pid of the core, once the moment has come."""
    file = tmp_path / "parent.py"
    file.write_text(PARENT.format(moment=moment, script=values, end=end))
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "TMPDIR": str(tmp_path)}
    parent = subprocess.Popen([sys.executable, str(file)], stdout=subprocess.PIPE, text=True, env=environment)
    pid = 0
    try:
        pid = int(parent.stdout.readline())
        assert parent.stdout.readline() == "ready\n"
        yield parent, pid
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
        if pid and not gone(pid):
            os.kill(pid, signal.SIGKILL)


MOMENTS = {
    "loading": {"open_s": 30},
    "loading without the lock": {"open_s": 30, "hold": True},
    "idle": {},
    "generating": {"step_s": 0.01},
    "generating in a long step": {"step_s": 30},
    "generating without the lock": {"step_s": 30, "hold": True},
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_H_SRV_01_no_core_survives_its_killed_parent(tmp_path, moment):
    with parent_with_core(tmp_path, moment.partition(" ")[0], MOMENTS[moment]) as (parent, pid):
        assert not gone(pid)
        parent.kill()
        parent.wait()
        deadline = time.monotonic() + 1
        while not gone(pid):
            assert time.monotonic() < deadline, "the core lives on"
            time.sleep(0.01)
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith("engine-")] == []


@pytest.mark.parametrize("end", ["pass", "raise ValueError('oops')", "import sys; sys.exit(3)"])
def test_a_parent_that_ends_without_closing_does_not_hang(tmp_path, end):
    with parent_with_core(tmp_path, "idle", {}, end) as (parent, pid):
        parent.wait(timeout=5)
        assert gone(pid)


def test_the_front_end_imports_no_torch():
    code = "import engine.client, engine.tokenizer, engine, sys; print('torch' in sys.modules)"
    root = str(Path(__file__).parents[2])
    result = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": root}, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "False"
