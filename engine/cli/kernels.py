"""``engine kernels``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module

from engine.errors import UserError

USAGE = "report|build [MODEL] [flags]"
DETAILS = """
engine kernels report [MODEL] [--platform NAME[:TARGET]] [--json]
engine kernels build [MODEL] --platform NAME[:TARGET] [--out DIR] [--json]

  Both take the settings that `engine explain` takes, and need no device;
  --help=all lists them. 0 when all is well, 1 when something is not.

  report compiles the kernels of every row that says yes to a call of the
  model's plan, those of the sampler included, for every device that is
  described or here (or for those that --platform names: a platform's name
  alone means its device that is here, if there is one), and prints what each
  takes. Shapes are those of a few steps: a new token for 1 and for 8
  requests, and prompts of 32, 64 and 1024 tokens in all.

  build compiles into a folder DIR [kernels-NAME-ARCH], and only the rows that
  one plan has chosen, but for its steps of every size by powers of two and
  for those of its graphs. A worker on that device which is started with
  --kernel-bundle DIR and the same flags takes them from there. A platform's
  name alone means the device that is here. Where all rows share one library,
  that is the one kernel to compile, and any plan's flags will do.

Figures of the report

  registers      of a thread
  spills         what of a thread found no register and lies in memory: bytes,
                 or vector registers and bytes; a problem unless it is 0
  scalar spills  scalar registers kept in vector registers: cheap, no problem
  shared memory  bytes of a block of threads
  matrix         matrix instructions that occur
  product rows   of the largest matrix product of values of 16 bits or fewer;
                 0: there is none
  load, store    bits of a thread's widest access to global memory
  seconds        of one core, to compile it

  In types of tensors ~ stands for one within 2 GiB, - for one left out.
"""
AS = "explain"
SWITCHES = (("--json", "the answer for machines"), ("--out DIR", "of build: the folder [kernels-NAME-ARCH]"))
WAYS = {"report": "engine.cli.kernel_report", "build": "engine.cli.kernel_build"}
"""What may follow ``kernels`` → the module whose ``run(words)`` does it."""


def run(words: Sequence[str]) -> int:
    """Make kernels ahead of time, for devices that may be absent."""
    if not words or words[0] not in WAYS:
        found = words[0] if words else "nothing"
        raise UserError(f"engine kernels takes {' or '.join(WAYS)}, found {found}; see engine kernels --help")
    way: Callable[[Sequence[str]], int] = import_module(WAYS[words[0]]).run
    return way(words[1:])
