"""Calls whose forms are held to the budget whatever models have: every size of a head in every type, latents in every
type, and experts whose rows begin anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from engine.kernels.units import POOL, Step, Units
from engine.ops import Op, Spec
from engine.plan.kernels import ask, call_facts
from kernels_triton.calls import FLOAT8
from platforms.contract import DeviceProfile, Kernel

HEADS = (64, 80, 96, 128, 192, 256)
TYPES = ("bfloat16", "float16", "float32")
STEPS = (Step(24, 24), Step(1024, 2))
"""Decodes, and prompts."""

Call = tuple[tuple[Spec, ...], dict[str, Any]]


def add_grid(found: Units, row: Kernel, op: Op, profile: DeviceProfile) -> None:
    """The units of the grid's calls of the row's op. A call that the row refuses is a problem."""
    for specs, attributes in _calls(row.op, profile):
        said = ask(row.accepts, profile, {**attributes, **call_facts(specs)})
        if said:
            found.add(row, op, profile, specs, attributes)
        else:
            found.problems[f"{row.op}/{row.name} refuses a call of the grid on {profile.arch}: {said.reason}"] = None


def _calls(op: str, profile: DeviceProfile) -> Iterator[Call]:
    if op == "attention":
        eight = [name for name, wanted in FLOAT8.items() if wanted in profile.features]
        kinds = [(kind, kind) for kind in TYPES] + [("bfloat16", kept) for kept in eight]
        yield from (attention(head, *kind, step) for head in HEADS for kind in kinds for step in STEPS)
    if op == "mla_attention":
        yield from (latents(kind, step) for kind in TYPES for step in STEPS)
    if op == "moe":
        yield from (experts(kind, step) for kind in ("bfloat16", "float32") for step in STEPS)


def _of_requests(step: Step) -> tuple[Spec, ...]:
    """Block table, starts, lengths."""
    shapes = (step.requests, 64), (step.requests + 1,), (step.requests,)
    return tuple(Spec("int32", shape) for shape in shapes)


def attention(head: int, kind: str, kept: str, step: Step) -> Call:
    """``kept``: the type of the cache, with scales if it is not ``kind``."""
    sizes = dict(heads=32, kv_heads=8, head_dim=head)
    scales = () if kept == kind else (Spec("float32", (1,)),) * 2
    tensors = Spec(kind, (step.tokens, 32 * head)), Spec(kept, (2, POOL, 16, 8, head)), *_of_requests(step), *scales
    return tensors, {**sizes, "scale": head**-0.5, "window": None, "softcap": 0.0}


def latents(kind: str, step: Step) -> Call:
    sizes = dict(heads=16, nope=128, rope=64, kv_rank=512, value=128)
    shapes = (step.tokens, 16 * 128), (step.tokens, 16 * 64), (POOL, 16, 512 + 64), (16 * (128 + 128), 512)
    return (*(Spec(kind, shape) for shape in shapes), *_of_requests(step)), {**sizes, "scale": 192**-0.5}


def experts(kind: str, step: Step) -> Call:
    """Of widths that are multiples of nothing."""
    shapes = (step.tokens, 1023), (step.tokens, 8), (8, 2 * 511, 1023), (8, 1023, 511)
    how = dict(top_k=2, scoring="softmax", renormalize=True, scaling=1.0, groups=1, top_groups=1)
    return tuple(Spec(kind, shape) for shape in shapes), how
