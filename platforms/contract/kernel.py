"""One row of a kernel table, and what a row may carry beside the kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from platforms.contract.verdict import Predicate, always

ANY_DEVICE, ANY_CALL = always("no requirement"), always("any call")


@dataclass(frozen=True, slots=True)
class Kernel:
    """An implementation of an op, as data: reading the table imports nothing.

    ``op``: the engine's name. ``name``: unique within the op, as ``--kernel op=name`` pins it. ``target``:
    ``"module:attribute"``, imported when bound, called as the reference is. ``needs``: asked once per profile,
    ``accepts`` per distinct call, with dtypes, shapes and attributes as facts. ``priority``: the highest wins, equal
    ones are errors; below 0 the reference comes before it, unless pinned, measured faster, or alone
    ``batch_invariant``. ``graph_safe``: may be captured. ``graph_batches``: what a captured call serves where the op
    looks at requests: ``any`` batch, ``uniform`` query lengths, a ``single`` new token each. ``batch_invariant``: a
    row's result never depends on its neighbours. ``rounds``: a narrower type that it rounds operands to, whose bound it
    keeps; only ``-O3`` and pins choose such rows. The rest: lazy targets, or ``""``: ``pack(weight tensors,
    attributes)`` → tensors in the kernel's own layout, at load; ``workspace(facts)`` → bytes to work in, shared by
    equal targets; ``cache_layout(cache spec)`` → shape, strides, bytes of a KV block; ``prepare(inputs, attributes,
    captured)``, on ``compute()`` before steps and captures, in no graph, once for calls alike in attributes and program
    inputs (as host arrays in the step's sizes; caches and weights as they lie, other values without rows; by the op's
    names), keeps what ``captured`` calls read in place; ``build(profile, target, empty tensors, attributes)`` →
    hashable units of work without a device: ``name``, ``make()`` → ``figures`` and ``problems``; ``tune(tensors,
    attributes, known, measure)``, at start → JSON that such calls then use: ``known`` if given, whatever the tensors
    hold, else the best by ``measure(function)`` in seconds."""

    op: str
    name: str
    target: str
    needs: Predicate = ANY_DEVICE
    accepts: Predicate = ANY_CALL
    priority: int = 0
    graph_safe: bool = True
    graph_batches: Literal["any", "uniform", "single"] = "any"
    batch_invariant: bool = False
    pack: str = ""
    workspace: str = ""
    prepare: str = ""
    cache_layout: str = ""
    build: str = ""
    tune: str = ""
    rounds: str = ""

    def __post_init__(self) -> None:
        for field in ("target", "pack", "workspace", "prepare", "cache_layout", "build", "tune"):
            if ((value := getattr(self, field)) or field == "target") and value.count(":") != 1:
                raise ValueError(f"kernel {self.op}/{self.name}: {field} must be 'module:attribute', found {value!r}")
        if self.name in ("reference", "auto"):
            raise ValueError(f"kernel {self.op}/{self.name}: the name is reserved")
