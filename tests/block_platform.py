"""The active platform with kernels of a stranger for weights in GGUF blocks."""

from __future__ import annotations

from typing import Any

from platforms.contract import Kernel, fact
from tests.strange_platform import SELECTION, Stranger

PACKED: list[str] = []
"""Which calls were packed, in order."""


def pack(weights: Any, attributes: Any) -> Any:
    """Turned on their side."""
    from engine.ops.blocks import dequantised

    PACKED.append(attributes["format"])
    return (dequantised(weights[0], attributes["format"]).T.contiguous(), *weights[1:])


def scaled(x: Any, scales: Any, weight: Any, bias: Any = None, *, format: str, result: str) -> Any:
    import torch

    whole = (x.unflatten(-1, (-1, 32)) * scales[..., None]).flatten(-2)
    total = whole @ weight
    return (total if bias is None else total + bias.float()).to(getattr(torch, result))


def floating(x: Any, weight: Any, bias: Any = None, *, format: str) -> Any:
    total = x.float() @ weight
    return (total if bias is None else total + bias.float()).to(x.dtype)


def rows(ids: Any, weight: Any, *, format: str, result: str) -> Any:
    import torch

    from engine.ops.blocks import dequantised

    return dequantised(weight[ids], format).to(getattr(torch, result))


TABLE = Kernel("block_embedding", "theirs", f"{__name__}:rows")
HEAD = Kernel("block_linear", "theirs", f"{__name__}:floating", pack=f"{__name__}:pack", batch_invariant=True)
SCALED = Kernel("scaled_block_linear", "theirs", f"{__name__}:scaled", pack=f"{__name__}:pack", batch_invariant=True)
ONLY_Q4 = Kernel(
    "scaled_block_linear",
    "theirs",
    f"{__name__}:scaled",
    accepts=fact("format", lambda name: name == "q4_k", "q4_k"),
    pack=f"{__name__}:pack",
)


class Blocking(Stranger):
    """Activations are quantised for every product, to 16 bits for the head's."""

    name, api, kind = SELECTION.plugin.name, SELECTION.plugin.api, SELECTION.plugin.kind

    def __init__(self, *rows: Kernel) -> None:
        super().__init__(rows or (TABLE, HEAD, SCALED))


class Floating(Blocking):
    """No activation is quantised."""

    def __init__(self) -> None:
        super().__init__(TABLE, HEAD)
