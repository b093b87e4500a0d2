"""One row of a kernel table, and what a row may carry beside the kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from platforms.contract.verdict import Predicate, always

ANY_DEVICE, ANY_CALL = always("no requirement"), always("any call")


@dataclass(frozen=True, slots=True)
class Kernel:
    """An implementation of an op, as data: reading the table imports nothing.

    ``op``: the engine's op name. ``name``: unique within the op, what users pin (``--kernel op=name``).
    ``target``: ``"module:attribute"``, imported when bound; called exactly as the op's reference is.
    ``needs``: asked once per profile. ``accepts``: asked once per distinct call of the plan, with the call's dtypes,
    shapes and attributes among the facts. ``priority``: the highest wins; equal ones that both say yes are an error.
    ``graph_safe``: may run inside a captured graph. ``graph_batches``: what a captured call of an op that looks at
    requests serves: ``any`` batch, ``uniform`` query lengths, or a ``single`` new token each. ``batch_invariant``: a
    row's result never depends on its neighbours. The rest are lazy targets as well, ``""`` where a row has none:
    ``pack(weight tensors, attributes)`` → tensors in the kernel's own layout, made once at load; ``workspace(facts)`` →
    bytes; ``prepare`` runs outside graphs before each replay and fills fixed buffers; ``cache_layout(cache spec)`` →
    shape, strides and bytes of a KV block; ``build(profile, target, tensors without data, attributes)`` → units of work
    ahead of time, without a device: hashable, with ``name``, and ``make()`` → mapping of ``figures`` and ``problems``.
    """

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

    def __post_init__(self) -> None:
        for field in ("target", "pack", "workspace", "prepare", "cache_layout", "build"):
            value = getattr(self, field)
            if (value or field == "target") and value.count(":") != 1:
                raise ValueError(f"kernel {self.op}/{self.name}: {field} must be 'module:attribute', found {value!r}")
        if self.name in ("reference", "auto"):
            raise ValueError(f"kernel {self.op}/{self.name}: the name is reserved")
