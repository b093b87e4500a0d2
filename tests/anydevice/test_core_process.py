"""The core process from its start to its end, whoever ends it, with a core that plays a script."""

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

from engine.client import AsyncEngine, CoreProcess
from engine.errors import EngineDeadError, UserError
from engine.sampling_params import SamplingParams
from tests.core_runs import ENDLESS, collect, gone, running, text_of, until
from tests.scripted_core import FACTORY, ToyTokenizer, script


def test_H_SRV_03_killed_core_ends_every_stream_within_a_second():
    async def main():
        async with running(step_s=0.002) as engine:
            tasks = [asyncio.create_task(collect(engine, ENDLESS, name=str(n))) for n in range(10)]
            await until(lambda: engine.stats.running == 10)
            os.kill(engine.pid, signal.SIGKILL)
            begin = time.monotonic()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert time.monotonic() - begin < 1
            assert [type(result) for result in results] == [EngineDeadError] * 10
            assert engine.dead.is_set() and "SIGKILL" in str(engine.errored) and engine.live_requests == 0
            with pytest.raises(EngineDeadError):
                engine.generate("late", [1], SamplingParams())

    asyncio.run(main())


def test_an_idle_core_that_is_killed_is_noticed():
    async def main():
        async with running() as engine:
            os.kill(engine.pid, signal.SIGKILL)
            await asyncio.wait_for(engine.dead.wait(), 1)

    asyncio.run(main())


def test_H_SRV_03_a_core_that_is_stopped_shows_within_five_seconds_and_a_long_step_does_not():
    async def main():
        async with running() as stopped, running(step_s=60) as busy, running(step_s=60, hold=True) as stuck:
            engines = (stopped, busy, stuck)
            assert [engine.trouble(30) for engine in engines] == [None] * 3
            tasks = [asyncio.create_task(collect(engine, ENDLESS)) for engine in (busy, stuck)]
            await until(lambda: busy.trouble(0.2) and stuck.trouble(0.2))
            os.kill(stopped.pid, signal.SIGSTOP)
            begin = time.monotonic()
            await until(lambda: stopped.trouble(30) and stuck.trouble(30))
            assert "has not run" in stopped.trouble(30)
            await asyncio.sleep(begin + 5 - time.monotonic())
            assert busy.trouble(30) is None and "one step" in busy.trouble(2)
            os.kill(stopped.pid, signal.SIGCONT)
            await until(lambda: stopped.trouble(30) is None)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for engine in (busy, stuck):
                await engine.close(timeout=0)

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
