"""The parts every layer is written with: norms and linear layers over named weights."""

from __future__ import annotations

from dataclasses import dataclass

from engine.models.config import ModelConfig
from engine.models.draft import Draft
from engine.models.layout import Layout


@dataclass(frozen=True, slots=True)
class Step:
    """Names of the program inputs that attention reads, and of the rotary table."""

    slots: str
    blocks: str
    starts: str
    lengths: str
    table: str


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer being written into ``draft``. ``at``: prefix of names in the program; ``source``: of the checkpoint."""

    draft: Draft
    model: ModelConfig
    layout: Layout
    at: str
    source: str

    def norm(self, x: str, name: str, tensor: str, into: str, width: int) -> str:
        weight = self.draft.weight(self.at + name, self.layout.dtype, (width,), (f"{self.source}{tensor}.weight",))
        return self.draft.call("rms_norm", x, weight, into=self.at + into, eps=self.model.rms_eps)

    def linear(
        self,
        x: str,
        name: str,
        tensors: tuple[str, ...],
        rows: int,
        columns: int,
        into: str,
        shard: int | None = 0,
        bias: bool = False,
    ) -> str:
        """``x`` times a weight of ``rows`` × ``columns``, made of checkpoint modules ``tensors`` (after ``source``)
        one above the other. ``shard``: the axis split over the ranks, ``None`` for none."""
        draft, dtype = self.draft, self.layout.dtype
        names = tuple(self.source + tensor for tensor in tensors)
        weights = [
            draft.weight(self.at + name, dtype, (rows, columns), tuple(f"{n}.weight" for n in names), shard=shard)
        ]
        if bias:
            split = 0 if shard == 0 else None
            weights.append(
                draft.weight(f"{self.at}{name}.bias", dtype, (rows,), tuple(f"{n}.bias" for n in names), shard=split)
            )
        return draft.call("linear", x, *weights, into=self.at + into)
