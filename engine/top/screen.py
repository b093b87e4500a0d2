"""A reading as people see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.top.reading import Quantiles, Reading

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

STEPS = "▁▂▃▄▅▆▇█"
BAR = 24
NONE = "–"


def render(url: str, reading: Reading | None, history: Sequence[float], problem: str = "") -> RenderableType:
    """``history``: tokens per second of earlier readings, oldest first; ``problem``: why there is no news."""
    from rich.console import Group
    from rich.text import Text

    lines: list[RenderableType] = [Text.assemble(("engine top", "bold"), "  ", (url, "dim"))]
    if problem:
        lines.append(Text(f"no news: {problem}", "yellow"))
    if reading is not None:
        lines += [_head(reading), Text(), _figures(reading, history), Text(), _latencies(reading), Text()]
        lines.append(_plan(reading))
    return Group(*lines)


def sparkline(values: Sequence[float]) -> str:
    """One character per value, scaled to the largest."""
    most = max(values, default=0.0)
    if most <= 0:
        return STEPS[0] * len(values)
    return "".join(STEPS[min(int(value / most * len(STEPS)), len(STEPS) - 1)] for value in values)


def written_seconds(seconds: float | None) -> str:
    """``850 µs``, ``12.3 ms``, ``1.25 s``."""
    if seconds is None:
        return NONE
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _head(reading: Reading) -> Text:
    from rich.text import Text

    plan = reading.plan
    device = ":".join(part for part in (plan.get("platform", ""), plan.get("arch", "")) if part)
    parts = [device, plan.get("level", ""), f"compile {plan.get('compile_mode', NONE)}",
             f"graphs {plan.get('graph_mode', NONE)}", f"plan {plan.get('plan_hash', NONE)[:12]}"]  # fmt: skip
    about = "  ".join(part for part in parts if part) if plan else ""
    return Text.assemble((reading.model, "bold cyan"), "\n" if about else "", about)


def _figures(reading: Reading, history: Sequence[float]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(justify="right", style="bold")
    table.add_column(overflow="crop", no_wrap=True)
    deferred = f", {reading.deferred} deferred" if reading.deferred else ""
    hits = NONE if reading.prefix_hit_rate is None else f"{100 * reading.prefix_hit_rate:.1f} %"
    bad = [Text(str(count), "bold red" if count else "") for count in (reading.preemptions, reading.refused)]
    table.add_row("generation", f"{reading.generation_rate:.1f} tok/s", Text(sparkline(history), "cyan"))
    table.add_row("prompts", f"{reading.prompt_rate:.1f} tok/s", "")
    table.add_row("running", str(reading.running), f"{reading.request_rate:.2f} requests ended/s")
    table.add_row("waiting", str(reading.waiting), deferred.removeprefix(", "))
    table.add_row("KV cache", f"{100 * reading.kv_usage:.1f} %", _bar(reading.kv_usage))
    table.add_row("prefix hits", hits, "of the prompt tokens looked up")
    table.add_row("preemptions", bad[0], f"{reading.preemptions_total} since the start")
    table.add_row("refused", bad[1], f"{reading.refused_total} since the start, for want of room")
    return table


def _bar(share: float) -> Text:
    from rich.text import Text

    full = round(max(0.0, min(share, 1.0)) * BAR)
    colour = "red" if share > 0.95 else "yellow" if share > 0.8 else "green"
    return Text.assemble(("█" * full, colour), ("░" * (BAR - full), "dim"))


def _latencies(reading: Reading) -> RenderableType:
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    for _ in range(2):
        table.add_column(justify="right", min_width=9)
    table.add_row("latency", "p50", "p95", style="dim")
    rows: dict[str, Quantiles] = {
        "first token": reading.ttft, "between tokens": reading.itl, "whole request": reading.e2e
    }  # fmt: skip
    for name, found in rows.items():
        table.add_row(name, written_seconds(found.p50), written_seconds(found.p95))
    return table


def _plan(reading: Reading) -> Text:
    from rich.text import Text

    native = sum(calls for _, kernel, calls in reading.kernels if kernel != "reference")
    calls = sum(calls for _, _, calls in reading.kernels)
    fusions = ", ".join(f"{rule} ×{places}" for rule, places in reading.fusions.items()) or "none"
    lines = [f"kernels  {native} of {calls} calls native", f"fusions  {fusions}"] if reading.kernels else []
    return Text("\n".join(lines), "dim")
