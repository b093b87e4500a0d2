"""One vector out of the hidden values of a prompt, however many steps it is computed in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from engine.batch import Request, Work
from platforms.contract import Fetch


@dataclass(frozen=True, slots=True)
class Vectors:
    """Of ``names``, under way to the host: float32 [names, hidden_size]."""

    names: list[str]
    rows: Fetch | None

    def wait(self) -> tuple[dict[str, bytes], dict[str, str]]:
        """(request → its vector, request → why there is none)."""
        found = self.rows.wait().numpy() if self.rows is not None else ()
        vectors, errors = {}, {}
        for name, row in zip(self.names, found, strict=True):
            if np.isfinite(row).all():
                vectors[name] = row.astype("<f4").tobytes()
            else:
                errors[name] = "the hidden values hold NaN or infinity"
        return vectors, errors


class Pooler:
    """Keeps what earlier steps gave to prompts that are not done. ``fetch``: of the runtime."""

    def __init__(self, fetch: Callable[[Any], Fetch]) -> None:
        self._fetch = fetch
        self._parts: dict[str, torch.Tensor] = {}

    def begin(self, names: Iterable[str]) -> None:
        """Requests that are computed from their first token on, for the first time or anew, or that have ended."""
        for name in names:
            self._parts.pop(name, None)

    def take(self, work: Sequence[Work], requests: Mapping[str, Request], hidden: Any) -> Vectors:
        """Of the requests whose prompt is done with this step. ``hidden``: of the step, [tokens, hidden_size] and maybe
        rows behind, good until the next one."""
        done: dict[str, torch.Tensor] = {}
        at = 0
        for each in work:
            request, count = requests[each.request_id], len(each.tokens)
            if request.pool is not None:
                found = self._pooled(request, each, hidden[at : at + count])
                if each.start + count == len(request.prompt):
                    del self._parts[request.id]
                    done[request.id] = found
                else:
                    self._parts[request.id] = found
            at += count
        return Vectors(list(done), self._fetch(torch.stack(list(done.values()))) if done else None)

    def _pooled(self, request: Request, work: Work, rows: torch.Tensor) -> torch.Tensor:
        before = self._parts.get(request.id)
        if request.pool == "mean":
            # Far finer than what is told, which then does not show how the prompt was cut into steps.
            total = rows.double().sum(0)
            total = total if before is None else before + total
            last = work.start + len(work.tokens) == len(request.prompt)
            found = (total / len(request.prompt)).float() if last else total
        elif request.pool == "cls" and before is not None:
            found = before
        else:
            found = rows[0 if request.pool == "cls" else -1].float()
        # What a step computed is the next one's to overwrite.
        self._parts[request.id] = found.clone()
        return self._parts[request.id]
