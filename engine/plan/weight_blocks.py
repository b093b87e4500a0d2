"""Whether weights in the blocks of a GGUF file are multiplied as they are: by which rows, in which formats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from engine.models.block_linear import LINEAR, SCALED, TABLE, WIDE, Way
from engine.models.config import ModelConfig
from engine.ops import Spec
from engine.ops.blocks import FORMATS, GROUP, block_of, bytes_of
from engine.plan.kernels import ask, call_facts
from engine.plan.rounding import may_round
from engine.plan_values import Decision
from platforms.contract import DeviceProfile, Facts, Kernel, Verdict


@dataclass(frozen=True, slots=True)
class Taken:
    """``ways``: with formats that some row takes of this model's; ``rows``: names of rows that multiply; ``said``: what
    the others said."""

    ways: frozenset[tuple[Way, str]] = frozenset()
    rows: tuple[str, ...] = ()
    said: Mapping[str, str] = field(default_factory=dict)

    @property
    def facts(self) -> dict[str, Any]:
        """What predicates may ask of it."""
        if not self.rows:
            return {}
        scaled = any(way == SCALED for way, _ in self.ways)
        how = {"storage": "int8", "quantization": "gguf group"} if scaled else {"quantization": "gguf none"}
        return {"quantized": True, **how}


def taken(
    model: ModelConfig,
    rows: tuple[Kernel, ...],
    profile: DeviceProfile,
    facts: Facts,
    refused: Mapping[tuple[str, str], str],
    dtype: str,
    pins: Mapping[str, str],
) -> Taken:
    """What rows say of the device, and of a product of each format that the model has. ``dtype``: of activations;
    ``pins``: op → the one row of it that counts, where it takes a product at all: the rest go other ways."""
    if model.blocks is None:
        return Taken()
    answers = [(row, list(_answers(row, model, profile, facts, refused, dtype, pins))) for row in rows]
    serving = {(row.op, row.name) for row, own in answers if any(verdict for _, _, verdict in own)}
    ways: set[tuple[Way, str]] = set()
    multiply: dict[str, None] = {}
    said: dict[str, str] = {}
    for row, own in answers:
        pin = pins.get(row.op, row.name)
        if pin != row.name and (row.op, pin) in serving:
            continue
        for way, format, verdict in own:
            if verdict:
                ways.add((way, format))
            if way in LINEAR:
                said.setdefault(row.name, verdict.reason)
                if verdict:
                    multiply[row.name] = None
    if not multiply:
        return Taken(said=said)
    return Taken(frozenset(ways), tuple(multiply), {name: why for name, why in said.items() if name not in multiply})


def decide(model: ModelConfig, dtype: str, found: Taken, reference_only: bool) -> tuple[Taken, Decision]:
    """What of ``found`` is used, and ``model.quantization``: ``gguf`` where blocks are multiplied as they are, ``None``
    where they are unpacked. ``reference_only``: nothing but references is asked for, which would unpack them again in
    each step."""
    key, words = "model.quantization", f"GGUF blocks ({model.blocks})"
    unpacked = f"{words}: unpacked to {dtype} when loaded"
    if not found.rows:
        said = "; ".join(f"{name}: {reason}" for name, reason in found.said.items())
        return Taken(), Decision(key, None, "derived", f"{unpacked}; {said}" if said else unpacked)
    if reference_only:
        why = f"{unpacked}, since --kernels reference would do that in each step"
        return Taken(), Decision(key, None, "derived", why)
    return found, Decision(key, "gguf", "derived", "; ".join(_words(model, dtype, found, words)))


def _words(model: ModelConfig, dtype: str, found: Taken, words: str) -> Iterator[str]:
    assert model.blocks is not None
    yield f"{words}: multiplied as they are by {', '.join(found.rows)}"
    linear = {format for way, format in found.ways if way in LINEAR}
    others = [format for format in model.blocks.formats if format not in linear]
    if others:
        yield f"{', '.join(others).upper()} unpacked to {dtype}"


def _needed(
    row: Kernel,
    profile: DeviceProfile,
    facts: Facts,
    refused: Mapping[tuple[str, str], str],
    pins: Mapping[str, str],
) -> Verdict:
    if (row.op, row.name) in refused:
        return Verdict(False, f"first touch: {refused[row.op, row.name]}")
    if facts.get("batch_invariant") and not row.batch_invariant:
        return Verdict(False, "not batch-invariant")
    return may_round(row, facts, pins) and ask(row.needs, profile, facts)


def _answers(
    row: Kernel,
    model: ModelConfig,
    profile: DeviceProfile,
    facts: Facts,
    refused: Mapping[tuple[str, str], str],
    dtype: str,
    pins: Mapping[str, str],
) -> Iterator[tuple[Way, str, Verdict]]:
    """What a row says of each way that is its op's, in each format of the model."""
    known = [way for way in (*LINEAR, WIDE, TABLE) if way.op == row.op]
    if not known or model.blocks is None:
        return
    verdict = _needed(row, profile, facts, refused, pins)
    for way, format in product(known, (one for one in model.blocks.formats if one in FORMATS)):
        found = ask(row.accepts, profile, {**facts, **_call(way, format, model, dtype)}) if verdict else verdict
        yield way, format, found


def _call(way: Way, format: str, model: ModelConfig, dtype: str) -> dict[str, Any]:
    """What a row would be told of a product as wide as the model, or the next whole block."""
    columns = -(-model.hidden_size // block_of(format)[0]) * block_of(format)[0]
    rows, more = model.hidden_size, {"format": format}
    given: tuple[Spec, ...] = (Spec(dtype, ("tokens", columns)),)
    if way.storage:
        given = Spec(way.storage, ("tokens", columns)), Spec("float32", ("tokens", columns // GROUP))
    elif way == TABLE:
        given = (Spec("int64", ("tokens",)),)
    if way.storage or way == TABLE:
        more["result"] = dtype
    return {**more, **call_facts((*given, Spec("uint8", (rows, bytes_of(format, columns)))))}
