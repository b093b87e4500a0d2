"""Most memory that a process held, having filled a KV cache of a given size."""

from __future__ import annotations

from typing import Any

from benchmarks.compare.cases import prompts
from benchmarks.compare.roster import Entrant

CONTEXT, REQUESTS, NEW = 4096, 8, 16


def peak(entrant: Entrant, given: dict[str, Any]) -> dict[str, Any]:
    """``bytes``: the peak; ``import_bytes``: what importing torch alone added, where the worker tells. The cache is
    filled by ``REQUESTS`` prompts that end, with their ``NEW`` tokens, at ``CONTEXT`` in all. Raises ``Failed``."""
    with entrant.start() as process:
        opened = process.ask("open", **given)
        length = CONTEXT // REQUESTS - NEW
        process.ask("generate", prompts=prompts(REQUESTS, length), tokens=NEW)
        return {
            "bytes": process.peak(),
            "import_bytes": opened.get("import_bytes", 0),
            "context": opened["context"],
        }
