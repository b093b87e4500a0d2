"""The parts every layer is written with: norms, linear layers over named weights, and sums over ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.models.block_linear import block_linear, linear_in
from engine.models.config import ModelConfig, Quantization
from engine.models.draft import Draft
from engine.models.layout import Layout
from engine.models.packed import has_groups, packed_linear


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

    def norm(self, x: str, name: str, tensor: str, into: str, width: int, eps: float | None = None) -> str:
        """``eps``: the model's own unless given."""
        weight = self.draft.weight(self.at + name, self.layout.dtype, (width,), (f"{self.source}{tensor}.weight",))
        return self.draft.call(
            "rms_norm", x, weight, into=self.at + into, eps=self.model.rms_eps if eps is None else eps
        )

    def own(self, size: int) -> int:
        """This rank's share of ``size`` heads, rows or columns; ``check_ranks`` has seen that it is whole."""
        return size // self.layout.ranks

    def reduce(self, x: str, into: str) -> str:
        """The sum over the ranks of what each made of its share of the columns."""
        if self.layout.ranks == 1:
            return x
        return self.draft.call("all_reduce", x, into=self.at + into, group="tp")

    def linear(
        self,
        x: str,
        name: str,
        tensors: tuple[str, ...],
        rows: int | tuple[int, ...],
        columns: int,
        into: str,
        shard: int | None = 0,
        bias: bool = False,
    ) -> str:
        """``x`` times a weight made of checkpoint modules ``tensors`` (after ``source``) one above the other.

        ``rows`` and ``columns`` are those of all ranks together; ``rows``: of each module, or the sum of equal ones.
        ``shard``: the axis cut over the ranks, ``None`` for none; along the columns, ``x`` is this rank's share and
        ``reduce`` is left to the caller. Modules in blocks of several kinds are unpacked.
        """
        names = tuple(self.source + tensor for tensor in tensors)
        parts = rows if isinstance(rows, tuple) else (rows // len(names),) * len(names)
        parts = tuple(self.own(part) for part in parts) if shard == 0 else parts
        shape = (sum(parts), self.own(columns) if shard == 1 else columns)
        given = []
        if bias:
            tensors = tuple(f"{module}.bias" for module in names)
            axis = 0 if shard == 0 else None
            given = [self.weight(f"{name}.bias", shape[:1], tensors, shard=axis, once=shard == 1)]
        tensors = tuple(f"{module}.weight" for module in names)
        kinds = {linear_in(self, tensor, shape[1]) for tensor in tensors}
        if len(kinds) == 1 and (kind := next(iter(kinds))):
            return block_linear(self, x, name, tensors, shape, self.at + into, shard, given, kind)
        if not self._stored(names, parts, shape[1]):
            weight = self.weight(name, shape, tensors, shard=shard)
            return self.draft.call("linear", x, weight, *given, into=self.at + into)
        scheme = self.model.quantization
        assert scheme is not None
        if scheme.packed:
            return packed_linear(self, x, name, names, shape, self.at + into, shard, given)
        block, side = (scheme.block, shard) if scheme.weights == "block" else (None, 0 if shard == 0 else None)
        counts = (-(-shape[0] // block[0]), -(-shape[1] // block[1])) if block else shape[:1]
        scales = tuple(f"{module}.{scheme.scale}" for module in names)
        weights = [
            self.weight(name, shape, tensors, self.layout.storage, f"{scheme.kind} {scheme.weights}", shard=shard),
            self.weight(f"{name}.scale", counts, scales, "float32", f"scale {scheme.weights}", shard=side),
        ]
        activations = self._quantize(x, name, names, scheme)
        result = self.layout.dtype
        return self.draft.call(
            "scaled_linear", *activations, *weights, *given, into=self.at + into, result=result, block=block
        )

    def parts(
        self,
        x: str,
        name: str,
        tensors: tuple[str, ...],
        rows: tuple[int, ...],
        columns: int,
        into: str,
        parts: tuple[str, ...],
        bias: bool = False,
    ) -> tuple[str, ...]:
        """As ``linear``, what each module makes into a name of ``parts``: by one product ``into`` that is split, or,
        where modules are in blocks of several kinds, by one product each."""
        if len({linear_in(self, f"{self.source}{tensor}.weight", columns) for tensor in tensors}) > 1:
            sides = zip(tensors, rows, parts, strict=True)
            return tuple(
                self.linear(x, f"{name}.{number}", (tensor,), (height,), columns, end, bias=bias)
                for number, (tensor, height, end) in enumerate(sides)
            )
        whole = self.linear(x, name, tensors, rows, columns, into, bias=bias)
        names = tuple(self.at + end for end in parts)
        found: tuple[str, ...] = self.draft.call("split", whole, into=names, sizes=tuple(map(self.own, rows)))
        return found

    def weight(
        self,
        name: str,
        shape: tuple[int, ...],
        tensors: tuple[str, ...],
        dtype: str = "",
        format: str = "dense",
        **more: Any,
    ) -> str:
        return self.draft.weight(self.at + name, dtype or self.layout.dtype, shape, tensors, format=format, **more)

    def _stored(self, modules: tuple[str, ...], parts: tuple[int, ...], columns: int) -> bool:
        """Whether the device multiplies these weights as they are stored. Modules of different kinds, blocks that would
        lie across two modules, and groups that the op does not have, are unpacked."""
        scheme, storage = self.model.quantization, self.layout.storage
        if scheme is None or not storage or any(map(scheme.ignores, modules)):
            return False
        if scheme.activations == "none" and not scheme.packed:
            return False
        if storage.partition("_")[0] != scheme.kind:
            raise ValueError(f"weights are stored as {scheme.storage}, the layout multiplies {storage}")
        if scheme.packed:
            return has_groups(scheme, columns)
        return scheme.block is None or not any(part % scheme.block[0] for part in parts[:-1])

    def _quantize(self, x: str, name: str, modules: tuple[str, ...], scheme: Quantization) -> tuple[str, ...]:
        """Names of x as stored and of its scales. What one value is quantised to is made once."""
        draft, storage = self.draft, self.layout.storage
        if scheme.activations == "static":
            tensors = tuple(f"{module}.input_scale" for module in modules)
            scale = self.weight(f"{name}.input_scale", (1,), tensors, "float32", "scale largest")
            return draft.call("quantize_static", x, scale, into=f"{self.at}{name}.stored", storage=storage), scale
        columns = scheme.block[1] if scheme.block and scheme.activations == "group" else 0
        into = (f"{x}.stored", f"{x}.scales")
        power = scheme.power_of_two
        return draft.shared("quantize_dynamic", x, into=into, storage=storage, columns=columns, power_of_two=power)
