"""Most memory that a process held, having filled a KV cache of a given size."""

from __future__ import annotations

from typing import Any

from benchmarks.compare.cases import prompts
from benchmarks.compare.roster import Entrant

CONTEXT, QUICK_CONTEXT, REQUESTS, NEW, SPARE = 4096, 1024, 8, 16, 32
"""``SPARE``: tokens that each request leaves free, so that no scheduler has to put one off."""


def peak(entrant: Entrant, given: dict[str, Any], context: int) -> dict[str, Any]:
    """``bytes``: the peak; ``import_bytes``: what importing torch alone added, where the worker tells. A cache of
    ``context`` tokens is filled, but for ``SPARE``, by ``REQUESTS`` prompts and their ``NEW`` tokens. Raises
    ``Failed``."""
    with entrant.start() as process:
        opened = process.ask("open", **given)
        length = context // REQUESTS - NEW - SPARE
        process.ask("generate", prompts=prompts(REQUESTS, length), tokens=NEW)
        return {
            "bytes": process.peak(),
            "import_bytes": opened.get("import_bytes", 0),
            "context": opened["context"],
        }
