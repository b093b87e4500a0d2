"""``engine kernels``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module

from engine.errors import UserError

USAGE = "report|build [MODEL] [flags]"
DETAILS = """
engine kernels report [MODEL] [--platform NAME[:TARGET]] [--json]
engine kernels build [MODEL] --platform NAME:TARGET [--out DIR] [--json]

  Compile every kernel that a plan of the model could use, for every device that is described or here (or for those
  that --platform names), and print what each takes: registers, spills, shared memory, the instructions it is made
  of, seconds. No device is needed. 0 when all is well, 1 when something is not. It takes the settings that
  `engine explain` takes.

  build compiles the kernels of one plan into a folder, ahead of time: a worker on that device which is started with
  --kernel-bundle DIR and the same flags takes them from there.
"""
WAYS = {"report": "engine.cli.kernel_report", "build": "engine.cli.kernel_build"}
"""What may follow ``kernels`` → the module whose ``run(words)`` does it."""


def run(words: Sequence[str]) -> int:
    """Make kernels ahead of time, for devices that may be absent."""
    if not words or words[0] not in WAYS:
        found = words[0] if words else "nothing"
        raise UserError(f"engine kernels takes {' or '.join(WAYS)}, found {found}; see engine kernels --help")
    way: Callable[[Sequence[str]], int] = import_module(WAYS[words[0]]).run
    return way(words[1:])
