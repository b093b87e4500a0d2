"""Which matrices of a GGUF file are stored in which blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from engine.weights.gguf_types import BY_NAME, DENSE


@dataclass(frozen=True, slots=True)
class Blocks:
    """``usual``: the type that most matrices have, as GGUF spells it (``Q4_1``, ``F16``); ``others``: canonical names
    of the rest with their types."""

    usual: str
    others: tuple[tuple[str, str], ...] = ()

    @staticmethod
    def among(types: Mapping[str, str]) -> Blocks | None:
        """``types``: of every matrix, by canonical name, at least one; ``None`` where all are dense."""
        if all(name in DENSE for name in types.values()):
            return None
        (usual, _), *_ = Counter(types.values()).most_common()
        return Blocks(usual, tuple(sorted(pair for pair in types.items() if pair[1] != usual)))

    def __str__(self) -> str:
        """``Q4_1, 5 bits a weight``, and how many matrices are of other types."""
        kind = BY_NAME[self.usual]
        counts = Counter(name for _, name in self.others)
        return ", ".join(
            [f"{self.usual}, {8 * kind.nbytes / kind.block:.3g} bits a weight"]
            + [f"{name} ×{count}" for name, count in counts.items()]
        )

    def of(self, tensor: str) -> str:
        """The blocks of a matrix in lower case, ``""`` where it is dense."""
        name = _by_name(self.others).get(tensor, self.usual)
        return "" if name in DENSE else name.lower()

    @property
    def formats(self) -> tuple[str, ...]:
        """Every kind of blocks that there is, in lower case."""
        names = dict.fromkeys((self.usual, *(name for _, name in self.others)))
        return tuple(name.lower() for name in names if name not in DENSE)


@cache
def _by_name(others: tuple[tuple[str, str], ...]) -> dict[str, str]:
    return dict(others)
