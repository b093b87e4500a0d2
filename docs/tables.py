"""Writes the tables that documents take from the code, between their markers. ``--check`` only compares."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:
    from engine.config import Field
    from engine.models.config import ModelConfig
    from engine.plan import Plan
    from platforms.contract import PlatformPlugin


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def code(*words: str) -> str:
    return ", ".join(f"`{word}`" for word in words if word)


def level_table() -> str:
    from engine.fusion.catalog import LEVEL_OF
    from engine.levels import describe

    titles = {
        "level": "level",
        "mode": "compile mode",
        "graph_mode": "graphs",
        "fusions": "fusions on by default",
        "tuning": "tuning",
        "purpose": "for",
    }
    return table(list(titles.values()), [[row[key] for key in titles] for row in describe(LEVEL_OF)])


def flag_tables() -> str:
    """Every setting, by group."""
    from engine.config import FIELDS

    titles = ("flag", "type", "default", "what", "variable", "key in a file")
    blocks = []
    for group in dict.fromkeys(field.group for field in FIELDS):
        rows = [_flag_row(field) for field in FIELDS if field.group == group]
        blocks.append(f"### {group}\n\n{table(titles, rows)}")
    return "\n\n".join(blocks)


def _flag_row(field: Field) -> list[str]:
    from engine.table import written

    names = list(field.flags) or [field.flag]
    if field.kind.switch:
        names = [f"{name}=true" if "." in name else name.replace("--", "--[no-]", 1) for name in names]
    where = f" (`engine {field.only}` alone)" if field.only else ""
    default = code(written(field.default)) if field.default is not None else field.unset
    others = [code(field.environment), "" if field.only else code(field.key)]
    return [code(*names), field.kind.metavar or "switch", default, field.help + where, *others]


def own_flag_table() -> str:
    """Flags of single subcommands, and what is no setting."""
    from importlib import import_module

    from engine.cli import COMMANDS

    rows = [
        [f"`engine {name}`", code(flag), what]
        for name in COMMANDS
        for flag, what in getattr(import_module(f"engine.cli.{name.replace('-', '_')}"), "SWITCHES", ())
    ]
    rows.append(["those with settings", code("--config FILE"), "settings from a YAML file"])
    return table(("subcommand", "flag", "what"), rows)


def bench_tables() -> str:
    """Options of every way to measure."""
    from importlib import import_module

    from engine.cli.bench import WAYS
    from engine.cli.options import rows_of

    blocks = []
    for way in WAYS:
        rows = [[code(flags), what] for flags, what in rows_of(import_module(f"engine.bench.{way}").OPTIONS)]
        blocks.append(f"### engine bench {way}\n\n{table(('option', 'what'), rows)}")
    return "\n\n".join(blocks)


def variable_table() -> str:
    """Variables that are no setting of the engine: its own others, and those that platforms read."""
    from engine import compat
    from engine.config.fields import OTHER_VARIABLES

    rows = [[code(compat.OWN_PREFIX + name), "engine", what] for name, what in OTHER_VARIABLES.items()]
    for name, plugin in _plugins().items():
        rows += [[code(variable), f"platform {name}", f"fact `{fact}`"] for variable, fact in plugin.aliases().items()]
    return table(("variable", "read by", "what it is"), rows)


def spelling_table() -> str:
    """What users may go on writing, and what it is called here."""
    from engine import compat

    rows = [["setting", code(old), code(new)] for old, new in compat.KEYS.items()]
    rows += [
        ["section", code(f"--{old.replace('_', '-')}"), code(f"-{short}")]
        for old, section in compat.SECTIONS.items()
        for short, full in compat.SHORT_SECTIONS.items()
        if full == section
    ]
    rows += [["op in custom_ops", code(old), code(*new)] for old, new in compat.OPERATIONS.items()]
    rows += [["compile mode", code(old), code(new)] for old, new in compat.MODES.items()]
    rows += [["compile mode", code(str(number)), code(name)] for number, name in enumerate(compat.MODE_NUMBERS)]
    rows += [["graph mode", code(str(number)), code(name)] for number, name in enumerate(compat.GRAPH_MODE_NUMBERS)]
    rows += [["compile size", code(old), code(new)] for old, new in compat.COMPILE_SIZE_WORDS.items()]
    rows += [["variable", code(old), code(new)] for old, new in compat.VARIABLES.items()]
    rows.append(["variable", code(f"{compat.FOREIGN_PREFIX}NAME"), code(f"{compat.OWN_PREFIX}NAME")])
    return table(("kind", "as written", "here"), rows)


def removed_table() -> str:
    from engine import compat

    said = [(name, f"{word}; {what}") for word, names in compat.NOT_TAKEN.items() for name, what in names.items()]
    said += [(name, f"accepted without effect; {why}") for name, (_, why) in compat.NO_EFFECT.items()]
    rows = [[code(name.replace("_", "-") if "." not in name else name), what] for name, what in said]
    rows += [[code(name), what] for name, what in compat.VARIABLES_NOT_TAKEN.items()]
    return table(("not taken", "instead"), rows)


def resolved_tables() -> str:
    """What levels come to on described devices; equal devices and equal levels share rows."""
    from tests.model_configs import LLAMA, STATIC

    return "\n\n".join(
        (
            f"A Llama with the shapes of 8 billion parameters, in bfloat16:\n\n{_resolved(LLAMA)}",
            f"The same in float8 with static scales:\n\n{_resolved(STATIC)}",
            f"That on two devices (`-tp 2`):\n\n{_resolved(STATIC, 2)}",
        )
    )


def target_table() -> str:
    rows = [
        [
            code(f"{name}:{target}"),
            profile.product,
            profile.family,
            f"{profile.memory_bytes / 2**30:.0f} GiB",
            ", ".join(f"{library} {version}" for library, version in sorted(profile.libraries.items())),
        ]
        for name, plugin in _plugins().items()
        for target, profile in plugin.targets().items()
    ]
    return table(("target", "described as", "family", "memory", "libraries"), rows)


def _resolved(model: ModelConfig, ranks: int = 1) -> str:
    from engine.levels import LEVELS
    from engine.plan import plan_for
    from engine.plan_values import Given

    groups: dict[tuple[object, ...], list[str]] = {}
    for name, plugin in _plugins().items():
        for target, profile in plugin.targets().items():
            plans = [
                plan_for(
                    plugin,
                    profile,
                    model,
                    {
                        key: Given(value, "command line")
                        for key, value in (
                            ("optimization_level", level.number),
                            ("parallel.tensor_parallel_size", ranks),
                        )
                    },
                )
                for level in LEVELS
            ]
            groups.setdefault((name, *(_cells(plan) for plan in plans)), []).append(f"{name}:{target}")
    rows = []
    for (_, *cells), targets in groups.items():
        merged: dict[object, list[str]] = {}
        for level, cell in zip(LEVELS, cells, strict=True):
            merged.setdefault(cell, []).append(f"-O{level.number}")
        for number, (cell, levels) in enumerate(merged.items()):
            assert isinstance(cell, tuple)
            rows.append(["" if number else code(*targets), ", ".join(levels), *cell])
    titles = ("targets", "levels", "compile mode", "graphs", "ops by kernels of the platform", "fusions that act")
    return table(titles, rows)


def _cells(plan: Plan) -> tuple[str, ...]:
    ops = {row.op for row in plan.kernels}
    native = {row.op for row in plan.kernels if row.target}
    active = [row.rule for row in plan.fusions if row.matched]
    modes = (str(plan["compilation.mode"]), str(plan["compilation.graph_mode"]))
    return (*modes, f"{len(native)} of {len(ops)}", ", ".join(active) or "none")


def _plugins() -> dict[str, PlatformPlugin]:
    from platforms.cpu.plugin import CpuPlugin
    from platforms.cuda.plugin import CudaPlugin
    from platforms.rocm.plugin import RocmPlugin

    plugins: tuple[PlatformPlugin, ...] = (CpuPlugin(), CudaPlugin(), RocmPlugin())
    return {plugin.name: plugin for plugin in plugins}


def support_tables() -> str:
    """One table per platform of this repository."""
    from engine.conformance.report import as_markdown, support
    from engine.conformance.subject import find

    names = ("cuda", "rocm", "cpu")
    return "\n".join(f"## {name}\n\n{as_markdown(support(find(name)))}" for name in names).rstrip()


def only_a_device_table() -> str:
    from engine.graphs.legality import ONLY_A_DEVICE

    return table(["work", "why it passes here"], ONLY_A_DEVICE)


def field_table() -> str:
    """Every field of a request that is known, and what becomes of it on each route."""
    from engine.server.field_notes import NOTES
    from engine.server.fields import NO_EFFECT, NOT_SUPPORTED, REASONS
    from engine.server.protocol import ChatRequest, CompletionRequest
    from engine.server.responses.protocol import ResponsesRequest

    models = (CompletionRequest, ChatRequest, ResponsesRequest)

    def cell(name: str, model: type) -> str:
        if name in model.model_fields:
            return "yes"
        return "no effect" if name in NO_EFFECT else "refused" if name in NOT_SUPPORTED else "—"

    def note(name: str) -> str:
        harmless = [json.dumps(value) for value in NOT_SUPPORTED.get(name, ())]
        unless = (
            f"; {' and '.join(map(code, harmless))} {'ask' if harmless[1:] else 'asks'} nothing" if harmless else ""
        )
        said = [NOTES[name]] if name in NOTES else []
        if name in REASONS and not all(name in model.model_fields for model in models):
            said.append(f"refused: {REASONS[name]}{unless}")
        return "; ".join(said)

    names = dict.fromkeys(
        [*(name for model in models for name in model.model_fields), *sorted({*NO_EFFECT, *NOT_SUPPORTED})]
    )
    rows = [[code(name), *(cell(name, model) for model in models), note(name)] for name in names]
    return table(("field", "completions", "chat", "responses", "what"), rows)


def metric_table() -> str:
    """Every family of ``/metrics``."""
    from engine.server.metric_names import CORE_COUNTERS, CORE_GAUGES, COUNTERS, HISTOGRAMS

    kinds = {"gauge": CORE_GAUGES, "counter": (*CORE_COUNTERS, *COUNTERS), "histogram": HISTOGRAMS}
    rows = [
        [code(row.name + ("_total" if kind == "counter" else "")), kind, code(*row.labels), row.help]
        for kind, families in kinds.items()
        for row in families
    ]
    return table(("name", "type", "labels", "what"), rows)


TABLES: dict[str, Callable[[], str]] = {
    "levels": level_table,
    "flags": flag_tables,
    "own-flags": own_flag_table,
    "bench": bench_tables,
    "variables": variable_table,
    "spellings": spelling_table,
    "removed": removed_table,
    "targets": target_table,
    "resolved": resolved_tables,
    "support": support_tables,
    "only-a-device": only_a_device_table,
    "fields": field_table,
    "metrics": metric_table,
}
PAGES = ("api", "bench", "flags", "levels", "observability", "plugin-guide", "support")
DOCUMENTS = ("README.md", *(f"docs/{name}.md" for name in PAGES))


def updated(text: str) -> str:
    """``text`` with every table between its markers made anew."""
    for key, make in TABLES.items():
        if f"<!-- {key} -->" in text:
            marked = re.compile(rf"(?<=<!-- {key} -->\n).*?(?=<!-- /{key} -->)", re.S)
            text = marked.sub(make().replace("\\", r"\\") + "\n", text)
    return text


def main(check: bool) -> int:
    stale = []
    for name in DOCUMENTS:
        old = (ROOT / name).read_text()
        new = updated(old)
        if new != old:
            stale.append(name)
            if not check:
                (ROOT / name).write_text(new)
    if stale:
        print(f"{'stale, run python docs/tables.py' if check else 'written'}: {', '.join(stale)}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv))
