"""A small piece with everything a code generator may meet, and the calls around it."""

from __future__ import annotations

from typing import Any

import torch

from engine.compile.compiler import Compiler
from engine.ops import OPS, Spec
from engine.work import BoundCall, Work

BASE = {"made for": "tests"}
RESULTS = ("x", "v", "q1", "k1", "stored", "scales", "wide")
_WIDTHS = {"x": 64, "t": 6, "y": 64, "z": 48, "q": 24, "k": 12, "v": 12, "q1": 24, "k1": 12, "scales": 2, "wide": 72}
SPECS = {
    **{name: Spec("float32", ("tokens", width)) for name, width in _WIDTHS.items()},
    "stored": Spec("float8_e4m3fn", ("tokens", 64)),
    "ids": Spec("int64", ("tokens",)),
    "positions": Spec("int64", ("tokens",)),
    "side": Spec("float32", ("tokens", 64)),
}


def turned(x, packed):
    """A native row whose packed weight has another shape than the op's."""
    return x @ packed


def reference(op: str, inputs: str, outputs: str, **attributes: Any) -> BoundCall:
    return BoundCall(op, "", OPS[op].reference, tuple(inputs.split()), tuple(outputs.split()), attributes)


def native(op: str, function: Any, inputs: str, outputs: str, **attributes: Any) -> BoundCall:
    return BoundCall(op, function.__name__, function, tuple(inputs.split()), tuple(outputs.split()), attributes)


CALLS = (
    reference("embedding", "ids table", "x0"),
    reference("add", "x0 side", "x"),
    reference("rotary_table", "positions", "t", frequencies=(1.0, 0.1, 0.01), factor=1.5),
    reference("rms_norm", "x norm", "y", eps=1e-5),
    native("linear", turned, "y packed", "z"),
    reference("split", "z", "q k v", sizes=(24, 12, 12)),
    reference("rotary", "q k t", "q1 k1", head_dim=6),
    reference("quantize_dynamic", "y", "stored scales", storage="float8_e4m3fn", columns=48, power_of_two=False),
    reference("pad", "x", "wide", multiple=24),
)
SPECS["x0"] = SPECS["x"]
SMALL, LAST = CALLS[:2] + CALLS[3:4], ("y",)


def weights() -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(1)
    shapes = {"table": (100, 64), "norm": (64,), "packed": (64, 48)}
    return {name: torch.randn(shape, generator=rng) for name, shape in shapes.items()}


def inputs(tokens: int) -> dict[str, torch.Tensor]:
    """``side`` is not contiguous, as a column of something wider."""
    rng = torch.Generator().manual_seed(tokens)
    ids, positions = (torch.randint(100, (tokens,), generator=rng) for _ in range(2))
    return {"ids": ids, "positions": positions, "side": torch.randn(tokens, 2, 64, generator=rng)[:, 1]}


def run(calls, given, tokens: int, results=RESULTS) -> dict[str, torch.Tensor]:
    values = inputs(tokens)
    return Work(calls, given, values, results).run(values)


def piece(compiler: Compiler, given, calls=CALLS, results=RESULTS, start: int = 1, end: int = 8192) -> list[BoundCall]:
    return compiler.piece(calls, SPECS, given, results, start, end)


def compare(found, wanted) -> None:
    for name, tensor in wanted.items():
        assert found[name].shape == tensor.shape and found[name].dtype == tensor.dtype, name
        relative, absolute = (2**-3, 2**-9) if name == "stored" else (5e-5, 5e-5)
        close = {"rtol": relative, "atol": absolute, "msg": lambda text, name=name: f"{name}: {text}"}
        torch.testing.assert_close(found[name].float(), tensor.float(), **close)
