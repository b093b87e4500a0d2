"""Distributions beside those of float32 weights: mean KL divergence and how often the likeliest token is the same."""

from __future__ import annotations

import inspect
import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.compare.process import Failed, Process

CHUNK = 257
ROWS = 64


@dataclass(slots=True)
class Score:
    """``kl``: nats, of each position; ``same``: positions whose likeliest token is that of float32."""

    kl: list[float] = field(default_factory=list)
    same: int = 0

    def add(self, truth: Any, found: Any) -> None:
        """Both float logits [positions, vocab]."""
        for start in range(0, len(truth), ROWS):
            first, second = _log_softmax(truth[start : start + ROWS]), _log_softmax(found[start : start + ROWS])
            import numpy as np

            self.kl += (np.exp(first) * (first - second)).sum(-1).tolist()
            self.same += int((first.argmax(-1) == second.argmax(-1)).sum())

    def report(self) -> dict[str, float]:
        count = len(self.kl)
        mean = math.fsum(self.kl) / count
        spread = math.sqrt(math.fsum((one - mean) ** 2 for one in self.kl) / count / count)
        return {"kl": mean, "kl_error": spread, "same": self.same / count, "tokens": count}


def _log_softmax(logits: Any) -> Any:
    import numpy as np

    shifted = logits.astype(np.float64)
    shifted -= shifted.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def chunks(model: Path, count: int) -> list[list[int]]:
    """Token ids of ``count`` pieces, prose and code in turns, out of Python's own documentation and library."""
    import argparse
    import statistics
    from pydoc_data import topics

    from engine.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(model)
    longest = sorted(topics.topics.values(), key=len, reverse=True)
    prose = tokenizer.encode("\n\n".join(longest[:6])[:60000])
    code = tokenizer.encode((inspect.getsource(statistics) + inspect.getsource(argparse))[:60000])
    found = []
    for index in range(count):
        source, at = (prose, code)[index % 2], index // 2 * CHUNK
        found.append(list(source[at : at + CHUNK]))
    assert all(len(piece) == CHUNK for piece in found), "the texts are too short for that many pieces"
    return found


def compare(truth: Process, processes: Mapping[str, Process], pieces: list[list[int]]) -> dict[str, dict[str, Any]]:
    """Engine → its score, or ``{"failed": why}``. Raises ``Failed`` if the truth gives none."""
    import numpy as np

    scores: dict[str, Score] = {name: Score() for name in processes}
    failed: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        one, other = str(Path(folder) / "truth.npy"), str(Path(folder) / "found.npy")
        for ids in pieces:
            truth.ask("logits", ids=ids, file=one)
            for name, process in processes.items():
                if name in failed:
                    continue
                try:
                    process.ask("logits", ids=ids, file=other)
                except Failed as error:
                    failed[name] = str(error)
                    continue
                scores[name].add(np.load(one, mmap_mode="r"), np.load(other, mmap_mode="r"))
    return {name: {"failed": failed[name]} if name in failed else scores[name].report() for name in processes}
