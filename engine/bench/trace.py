"""A trace of what the engine did, for a browser."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from engine.cli.options import Option
from engine.config import kinds as k
from engine.errors import UserError

if TYPE_CHECKING:
    from engine.llm import LLM

OPTIONS = (
    Option("--profile", k.SWITCH, "write a trace of one iteration, or of the whole run, in place of a result"),
    Option("--profile-dir", k.FOLDER, "where to", "profiles"),
)


@contextmanager
def traced(llm: LLM, folder: str) -> Iterator[str]:
    """Yields the file that a trace of what is done meanwhile is written to, in the format of Chrome's and Perfetto's
    viewers: steps of the engine, and below them what torch and the devices that it knows did. Raises ``UserError``
    where it cannot be written."""
    import torch
    from torch.profiler import profile, record_function

    path = os.path.join(folder, f"engine-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.trace.json")
    try:
        os.makedirs(folder, exist_ok=True)
        with open(path, "w", encoding="utf-8"):  # now rather than after minutes
            pass
    except OSError as error:
        raise UserError(f"--profile-dir {folder}: cannot be written: {error.strerror or error}") from error
    core = llm._open_core()
    step = core.step

    def spanned() -> list[object]:
        with record_function("engine step"):
            return step()  # type: ignore[return-value]

    core.step = spanned  # type: ignore[method-assign,assignment]
    try:
        with profile(record_shapes=True) as found:
            yield path
            if torch.accelerator.is_available():
                torch.accelerator.synchronize()
    finally:
        core.step = step  # type: ignore[method-assign]
    found.export_chrome_trace(path)
