"""What may be asked of the vector of a prompt."""

from __future__ import annotations

from typing import Any

import msgspec

from engine.errors import RequestError


class PoolingParams(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """``dimensions``: keep so many, the first ones. ``normalize``: to length 1, after that; ``None``: as the model
    says. ``truncate_prompt_tokens``: keep so many tokens of a prompt, the last ones; -1: as many as the context has."""

    dimensions: int | None = None
    normalize: bool | None = None
    truncate_prompt_tokens: int | None = None

    def check(self, hidden_size: int) -> None:
        """Raises ``RequestError`` for more dimensions than there are."""
        if self.dimensions is not None and not 1 <= self.dimensions <= hidden_size:
            raise RequestError(
                f"dimensions is {self.dimensions}; the vectors of this model have from 1 to {hidden_size}", "dimensions"
            )

    def shortened(self, ids: list[int], limit: int, side: str = "left") -> list[int]:
        """What is kept of a prompt. ``limit``: tokens of the context; ``side``: from which tokens go. Raises
        ``RequestError``."""
        count, name = self.truncate_prompt_tokens, "truncate_prompt_tokens"
        if count is None:
            return ids
        if count != -1 and not 1 <= count <= limit:
            raise RequestError(f"{name} is {count}; it must be -1, or from 1 to the context of {limit} tokens", name)
        most = limit if count == -1 else count
        return ids[-most:] if side == "left" else ids[:most]


def finished(vector: bytes, dimensions: int | None, normalize: bool) -> Any:
    """float32 [dimensions] of numpy, from what the core sent."""
    import numpy as np

    found = np.frombuffer(vector, "<f4")[:dimensions]
    if normalize:
        length = np.linalg.norm(found.astype(np.float64))
        found = (found / length if length > 0 else found).astype(np.float32)
    return found
