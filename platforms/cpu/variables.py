"""Environment variables of the host: their names, and what they ask for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from platforms.contract import DeviceError, Facts
from platforms.cpu.ranges import Ranges, parse
from platforms.machine import printable, whole

BIND, RESERVED, SPACE = "CPU_OMP_THREADS_BIND", "CPU_NUM_OF_RESERVED_CPU", "CPU_KVCACHE_SPACE"
"""Read with our prefix, else with the one that users bring along."""
PREFIXES = ("ENGINE_", "VLLM_")
NODES, DISABLED = "CPU_VISIBLE_MEMORY_NODES", "ENGINE_CPU_DISABLE_ISA"
COMPILER_FLAGS = "ENGINE_CPU_CXXFLAGS"

ALIASES: Mapping[str, str] = {
    **{prefix + name: name.lower() for name in (BIND, RESERVED) for prefix in reversed(PREFIXES)},
    **{prefix + SPACE: (prefix + SPACE).lower() for prefix in PREFIXES},
    NODES: "cpu_visible_memory_nodes",
    DISABLED: "cpu_disable_isa",
    COMPILER_FLAGS: "cpu_cxxflags",
}
"""Of two names for a fact the last one that is set counts: ours. The space is told by the name that asks for it."""

_LIST = re.compile(r"\s*\d{1,9}(\s*-\s*\d{1,9})?\s*(,\s*\d{1,9}(\s*-\s*\d{1,9})?\s*)*", re.ASCII)
_GIB = re.compile(r"\d{1,6}(\.\d{1,6})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Variables:
    """What was asked for. ``bind``: ``auto``, ``nobind``, or CPUs per rank in the order written. ``reserved``: CPUs, or
    ``None`` where the default holds. ``nodes``: memory nodes, or ``None`` for all. ``said``: ``NAME=text`` of each of
    the three that is set. ``problems``: what a user should change, though the run can go on."""

    bind: Literal["auto", "nobind"] | tuple[Ranges, ...] = "auto"
    reserved: int | None = None
    nodes: Ranges | None = None
    said: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def read_variables(environ: Mapping[str, str]) -> Variables:
    """An empty variable is an unset one. Raises ``DeviceError`` naming the variable, what it says and what to write."""
    said: dict[str, str] = {}
    problems: list[str] = []

    def text_of(name: str, spellings: tuple[str, ...]) -> str:
        found = {one: text for one in spellings if (text := environ.get(one, "").strip())}
        if len(set(found.values())) > 1:
            own, other = found
            problems.append(f"{own} wins over {other}, which says something else: unset one")
        for one, text in list(found.items())[:1]:
            said[name] = f"{one}={printable(text)}"
            return text
        return ""

    bind = text_of(BIND, tuple(prefix + BIND for prefix in PREFIXES))
    reserved = text_of(RESERVED, tuple(prefix + RESERVED for prefix in PREFIXES))
    nodes = text_of(NODES, (NODES,))
    return Variables(
        _bind(bind, said.get(BIND, "")),
        _reserved(reserved, said.get(RESERVED, "")) if reserved else None,
        _nodes(nodes, said[NODES]) if nodes else None,
        said,
        tuple(problems),
    )


def _bind(text: str, said: str) -> Literal["auto", "nobind"] | tuple[Ranges, ...]:
    if text.lower() in ("", "auto"):
        return "auto"
    if text.lower() == "nobind":
        return "nobind"
    lists = text.split("|")
    for number, one in enumerate(lists):
        if not _LIST.fullmatch(one) or not _ascending(one):
            found = f"'{printable(one.strip())}' for rank {number}" if one.strip() else f"nothing for rank {number}"
            raise DeviceError(
                f"{said}: found {found}, which is no list of CPUs; give auto, nobind, or a list such as 0-3,8 for "
                "each rank, with | between the ranks"
            )
    return tuple(parse(_dense(one)) for one in lists)


def _reserved(text: str, said: str) -> int:
    count = whole(text)
    if count is None or count > 1 << 20:
        raise DeviceError(f"{said}: found no count of CPUs; give 0, 1, 2, ..., or unset it")
    return count


def _nodes(text: str, said: str) -> Ranges:
    if not _LIST.fullmatch(text) or not _ascending(text):
        raise DeviceError(f"{said}: found no list of memory nodes; give one such as 0,1 or 0-1, or unset it")
    return parse(_dense(text))


def _dense(text: str) -> str:
    return "".join(text.split())


def _ascending(text: str) -> bool:
    """Whether every part of a well-formed list names something."""
    return len(parse(_dense(text))) == text.count(",") + 1


def kv_space(environ: Mapping[str, str]) -> int | None:
    """Bytes for the KV cache, or ``None`` where the variable is unset or 0. Raises ``DeviceError``."""
    for name in (prefix + SPACE for prefix in PREFIXES):
        if text := environ.get(name, "").strip():
            if not _GIB.fullmatch(text):
                raise DeviceError(
                    f"{name}={printable(text)}: found no number of GiB; give one such as 4 or 0.5, or unset it and "
                    "use --kv-cache-memory"
                )
            return gibibytes(text)
    return None


def asked_space(facts: Facts) -> tuple[int, str] | None:
    """Bytes for the KV cache, and the variable with its text, as a plan's facts have them; ``None`` where none asks."""
    for name in (prefix + SPACE for prefix in PREFIXES):
        if text := str(facts.get(name.lower(), "")).strip():
            nbytes = gibibytes(text)
            return (nbytes, f"{name}={text} (GiB)") if nbytes else None
    return None


def gibibytes(text: str) -> int | None:
    """``"4"`` → bytes; ``None`` for 0, nothing, and what is no number of GiB."""
    return int(float(text) * 2**30) or None if _GIB.fullmatch(text.strip()) else None
