"""Who takes part: the engine, and the peers of which an interpreter has the library."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.compare.process import Process
from engine.errors import UserError

ROOT = Path(__file__).parents[2]
WORKERS = ROOT / "benchmarks" / "workers"
ENGINE, TRUTH = "engine", "transformers"
PEERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "llama.cpp": ("llama_cpp_low.py", ("llama_cpp",)),
    "openvino": ("openvino_pipe.py", ("openvino_genai",)),
    "transformers": ("transformers_eager.py", ("transformers", "gguf")),
}
"""Name → its worker, and the modules that this imports."""


@dataclass(frozen=True, slots=True)
class Entrant:
    """``absent``: why it takes no part, or ``""``."""

    name: str
    python: str
    worker: str
    absent: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)

    def start(self, environment: Mapping[str, str] | None = None) -> Process:
        path = {"PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))} if self.own else {}
        return Process([self.python, str(WORKERS / self.worker)], {**path, **self.environment, **(environment or {})})

    @property
    def own(self) -> bool:
        """Whether its worker imports this repository."""
        return self.name in (ENGINE, TRUTH)


def engine(cache_root: str) -> Entrant:
    """This tree's, in this interpreter; what it builds is kept in ``cache_root``."""
    return Entrant(ENGINE, sys.executable, "engine_llm.py", environment={"ENGINE_CACHE_ROOT": cache_root})


def entrants(given: list[str], without: list[str], cache_root: str) -> list[Entrant]:
    """``given``: ``NAME=INTERPRETER``; every other peer is looked for in this interpreter. The engine comes first, and
    keeps what it builds in ``cache_root``. Raises ``UserError`` for a name that is none."""
    named = dict(one.partition("=")[::2] for one in given)
    for name in [*named, *without]:
        if name not in PEERS:
            raise UserError(f"{name!r} is no peer; known are {', '.join(PEERS)}, as in --peer openvino=/path/to/python")
    found = [engine(cache_root)]
    for name, (worker, modules) in PEERS.items():
        python = named.get(name, sys.executable)
        absent = "left out by --without" if name in without else _missing(python, modules, name in named)
        found.append(Entrant(name, python, worker, absent))
    return found


def _missing(python: str, modules: tuple[str, ...], named: bool) -> str:
    code = f"from importlib.util import find_spec; print(*[m for m in {modules!r} if find_spec(m) is None])"
    try:
        made = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError(f"{python} does not run as a Python interpreter: {error}") from error
    missing = made.stdout.strip()
    where = "the interpreter that was named" if named else "this interpreter"
    return f"absent: {where} has no {missing}" if missing else ""
