"""What a server says of itself, and what this machine knows of it. Whatever cannot be known is ``None``."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from engine.endpoint import Endpoint, EndpointError
from engine.errors import UserError

PROC = Path("/proc")
LISTENING = "0A"


async def cards(endpoint: Endpoint) -> list[dict[str, Any]] | None:
    """The models it serves; ``None`` where it lists none. Raises ``EndpointError`` where nothing answers."""
    answer = await endpoint.ask("GET", "/v1/models")
    if answer.status in (401, 403):
        raise UserError(f"{endpoint.url} wants an API key; set OPENAI_API_KEY, or give --header Authorization=...")
    if answer.status != 200:
        return None
    body = answer.json()
    rows = body.get("data") if isinstance(body, dict) else None
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else None


async def plan_of(endpoint: Endpoint) -> dict[str, Any]:
    """``level`` and ``plan_hash``, as this engine shows them among its metrics."""
    found: dict[str, Any] = {"level": None, "plan_hash": None}
    with suppress(EndpointError):
        text = (await endpoint.get("/metrics")).body.decode(errors="replace")
        if row := re.search(r"^engine:plan_info\{(.*)\} ", text, re.M):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', row[1]))
            level = labels.get("level", "").removeprefix("-O")
            found = {"level": int(level) if level.isdecimal() else None, "plan_hash": labels.get("plan_hash")}
    return found


Counters = dict[str, float]


async def draft_counters(endpoint: Endpoint) -> Counters:
    """Totals of speculative decoding, by the part of a metric's name after ``spec_decode_num_``, and
    ``accepted_tokens_per_pos`` by position; nothing where a server shows none."""
    found: Counters = {}
    with suppress(EndpointError):
        text = (await endpoint.get("/metrics")).body.decode(errors="replace")
        for name, labels, value in re.findall(r"^vllm:spec_decode_num_(\w+?)_total(?:\{(.*)\})? (\S+)", text, re.M):
            place = re.search(r'position="(\d+)"', labels)
            key = f"{name} {place[1]}" if place else name
            found[key] = found.get(key, 0.0) + float(value)
    return found


def acceptance(before: Counters, after: Counters) -> dict[str, Any]:
    """Fields of a result about drafts in between; none where there were none."""
    new = {key: value - before.get(key, 0.0) for key, value in after.items()}
    drafts, proposed, taken = (new.get(key, 0.0) for key in ("drafts", "draft_tokens", "accepted_tokens"))
    if not drafts or not proposed:
        return {}
    places = {int(key.rpartition(" ")[2]): count for key, count in new.items() if key.startswith("accepted_tokens_per")}
    return {
        "spec_decode_num_drafts": int(drafts),
        "spec_decode_draft_tokens": int(proposed),
        "spec_decode_accepted_tokens": int(taken),
        "spec_decode_acceptance_rate": 100 * taken / proposed,
        "spec_decode_acceptance_length": 1 + taken / drafts,
        "spec_decode_per_position_acceptance_rates": [places[at] / drafts for at in sorted(places)],
    }


def peak_memory(endpoint: Endpoint) -> int | None:
    """Bytes of the host that its processes held at most, each at its own worst moment, if they run on this system
    and belong to this user."""
    if not _is_here(endpoint.host) or not (PROC / "net/tcp").exists():
        return None
    listeners = _listeners(endpoint.port)
    owners = {pid for pid in _processes() if listeners & _sockets(pid)} if listeners else set()
    found = [peak for pid in _with_children(owners) if (peak := peak_of(pid)) is not None]
    return sum(found) or None


def peak_of(pid: int) -> int | None:
    """Most bytes of a process that lay in memory at once; ``None`` where the system does not say."""
    try:
        text = (PROC / str(pid) / "status").read_text()
    except OSError:
        return None
    row = re.search(r"^VmHWM:\s*(\d+) kB", text, re.M)
    return 1024 * int(row[1]) if row else None


def _is_here(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _listeners(port: int) -> set[str]:
    found = set()
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for row in (PROC / "net" / name).read_text().splitlines()[1:]:
                _, local, _, state, *rest = row.split()
                if state == LISTENING and int(local.rpartition(":")[2], 16) == port:
                    found.add(f"socket:[{rest[5]}]")
    return found


def _processes() -> Iterator[int]:
    return (int(path.name) for path in PROC.iterdir() if path.name.isdecimal())


def _sockets(pid: int) -> set[str]:
    found = set()
    with suppress(OSError):
        for file in (PROC / str(pid) / "fd").iterdir():
            with suppress(OSError):
                found.add(os.readlink(file))
    return found


def _with_children(pids: set[int]) -> set[int]:
    found: set[int] = set()
    todo = list(pids)
    while todo:
        pid = todo.pop()
        if pid not in found:
            found.add(pid)
            with suppress(OSError):
                for task in (PROC / str(pid) / "task").iterdir():
                    todo += map(int, (task / "children").read_text().split())
    return found
