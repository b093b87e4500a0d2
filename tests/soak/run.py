"""A server at saturation for as long as it is asked to, and what is found."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

from tests.live_server import LiveServer
from tests.soak.clients import REFUSED, Clients, Known, Tally
from tests.soak.watch import Held, Memory, held

CLIENTS = 40
WARM_SHARE = 0.35
MOST_GROWTH = 0.02
SETTLED_SECONDS = 120.0
MARGIN = 0.2
"""A known answer is sure of every token by so much log-probability: sums in another order cannot turn it."""
SERVER = ("--max-model-len", "256", "--kv-cache-memory-bytes", "13M", "--max-num-seqs", "16",
          "--max-num-queued-reqs", "16", "--idle-timeout", "30")  # fmt: skip
OPENINGS = ("The capital of France is", "Once upon a time", "1, 2, 3, 4,", "The sun rises in the", "A B C D E",
            "Water boils at", "Monday, Tuesday,", "She sells sea shells", "In the beginning", "The quick brown fox")


@dataclass
class Report:
    """What came of it. ``blocks``: share of the KV cache in use at the end; ``growth``: of memory, API process and
    core."""

    seconds: float
    tally: Tally
    stops: int
    preemptions: float
    before: Held
    after: Held
    blocks: float
    growth: tuple[float, float]
    resident: tuple[int, int]
    exit_code: int
    output: str
    problems: list[str] = field(default_factory=list)

    def table(self) -> str:
        outcomes: Counter[str] = self.tally.outcomes
        rows = [
            ("seconds", f"{self.seconds:.0f}"),
            *((f"clients: {name}", str(count)) for name, count in sorted(outcomes.items())),
            ("tokens per second, of those who stayed", f"{self.tally.tokens / self.seconds:.0f}"),
            ("stops of the core, preemptions", f"{self.stops}, {self.preemptions:.0f}"),
            ("memory of API process, core", ", ".join(f"{size / 2**20:.0f} MiB" for size in self.resident)),
            ("growth after warm-up", ", ".join(f"{share:+.2%}" for share in self.growth)),
            ("tasks before, after", f"{self.before.tasks}, {self.after.tasks}"),
            ("files before, after: API process", f"{self.before.api_files}, {self.after.api_files}"),
            ("files before, after: core", f"{self.before.core_files}, {self.after.core_files}"),
            ("KV cache in use at the end", f"{self.blocks:.0%}"),
            ("exit code after SIGTERM", str(self.exit_code)),
            ("problems", str(len(self.problems))),
        ]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def soak(seconds: float, seed: int, growth: float = MOST_GROWTH) -> Report:
    """Raises ``AssertionError`` where the server does not even start. ``growth``: the most that memory may grow."""
    command = [sys.executable, "-m", "tests.soak.server", "serve", "--port", "0", *SERVER]
    server = LiveServer(command=command)
    try:
        server.wait_ready(300)
        known = known_answers(server)
        assert server.is_idle(SETTLED_SECONDS), "blocks are in use before anything began"
        for body in REFUSED:  # a wrong form starts the compiler of forms
            assert server.post("/v1/completions", **body).status_code == 400
        before = held(server)
        memory = Memory(server, server.core())
        clients, stops = asyncio.run(_load(server, memory, known, seconds, seed))
        spent = time.monotonic() - memory.begin
        blocks = 0.0 if server.is_idle(SETTLED_SECONDS) else server.metric("kv_cache_usage_perc")
        after = _settled(server, before)
        report = Report(
            spent, clients.tally, stops, server.metric("num_preemptions_total"), before, after, blocks,
            memory.growth(seconds * WARM_SHARE), memory.samples[-1][1:], -1, "",
        )  # fmt: skip
        server.process.send_signal(signal.SIGTERM)
        report.exit_code = server.wait_exit(60)
        report.output = server.output
    finally:
        server.stop()
    report.problems = [*_problems(report, growth)]
    return report


def known_answers(server: LiveServer) -> list[Known]:
    """Requests of several lengths whose greedy answers are sure of themselves."""
    found = []
    for number, (opening, repeats) in enumerate(itertools.product(OPENINGS, (3, 14))):
        text = " ".join([opening] * repeats)
        body = {"prompt": text, "max_tokens": 8 + 10 * (number % 4), "temperature": 0, "ignore_eos": True}
        choice = server.post("/v1/completions", **body, logprobs=2).json()["choices"][0]
        sure = 0
        for own, top in zip(choice["logprobs"]["token_logprobs"], choice["logprobs"]["top_logprobs"], strict=True):
            others = sorted(top.values(), reverse=True)
            if own - others[1] < MARGIN:
                break
            sure += 1
        if sure < 4:
            continue
        if sure < body["max_tokens"]:
            body["max_tokens"] = sure
            choice = server.post("/v1/completions", **body).json()["choices"][0]
        found.append(Known(body, choice["text"]))
    assert len(found) >= 8, f"only {len(found)} answers are sure enough"
    return found


async def _load(
    server: LiveServer, memory: Memory, known: list[Known], seconds: float, seed: int
) -> tuple[Clients, int]:
    clients, chance, stops = Clients(server.url, known, seed), random.Random(seed + 1), 0
    running = asyncio.create_task(clients.run(CLIENTS))
    next_stop = memory.begin + 5
    while (now := time.monotonic()) < memory.begin + seconds:
        memory.sample()
        if now >= next_stop and now < memory.begin + seconds - 5:
            stops += 1
            os.kill(memory.core, signal.SIGSTOP)
            await asyncio.sleep(chance.choice((0.2, 1.0, 6.0)))
            os.kill(memory.core, signal.SIGCONT)
            next_stop = time.monotonic() + chance.uniform(3, 12)
        await asyncio.sleep(0.5)
    clients.stopped.set()
    await running
    return clients, stops


def _settled(server: LiveServer, before: Held) -> Held:
    """What is held once everybody has gone; closing takes a moment."""
    until = time.monotonic() + SETTLED_SECONDS
    while True:
        after = held(server)
        if after == before or time.monotonic() > until:
            return after
        time.sleep(0.5)


def _problems(report: Report, growth: float) -> list[str]:
    outcomes, found = report.tally.outcomes, list(report.tally.faults[:20])
    if report.after.tasks > report.before.tasks:
        found.append("tasks are left")
    if report.after.api_files > report.before.api_files or report.after.core_files > report.before.core_files:
        found.append("files are left open")
    if report.blocks:
        found.append("blocks are left")
    if max(report.growth) > growth:
        found.append(f"memory grew by more than {growth:.0%}")
    if report.exit_code != 0:
        found.append("it did not end with 0")
    if "Traceback" in report.output:
        found.append(report.output[report.output.index("Traceback") - 300 :][:6000])
    wanted = ("whole", "stream", "two prompts", "slow", "deaf", "left", "refused (400)", "no HTTP (400)", "busy (429)")
    found += [f"nobody was {kind!r}" for kind in wanted if not outcomes[kind]]
    return found
