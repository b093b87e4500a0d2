"""Each chosen kernel runs once against the reference before it serves; the answer is remembered per device."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.bind import load_target
from engine.errors import UserError
from engine.ops import Op
from engine.plan_values import Plan, digest
from platforms.contract import Kernel, Runtime


def first_touch(
    plan: Plan, ops: Mapping[str, Op], rows: tuple[Kernel, ...], runtime: Runtime, cache: Path
) -> dict[tuple[str, str], str]:
    """(op, row) → what went wrong, for every chosen row that raised or left its op's tolerance on the op's first case.
    ``cache``: folder for the answers, keyed by profile, dtype and the kernel's source; unwritable is no error."""
    table = {(row.op, row.name): row for row in rows}
    refused = {}
    for op, name in {(row.op, row.chosen) for row in plan.kernels if row.target}:
        row = table[op, name]
        file = cache / f"{digest([plan.profile.to_json(), plan['model.dtype'], _source(row)])}.json"
        answer = _recall(file)
        if answer is None:
            answer = _touch(row, ops[op], runtime, plan["model.dtype"])
            _remember(file, answer)
        if answer:
            refused[op, name] = answer
    return refused


def _touch(row: Kernel, op: Op, runtime: Runtime, dtype: str) -> str:
    import torch

    if not op.cases:
        return ""
    case = min(op.cases, key=lambda case: sum(case.sizes.values()))
    inputs = op.inputs(case, dtype, torch.Generator().manual_seed(0))
    truth = op.reference(*(x.clone() for x in inputs), **case.attributes)
    try:
        given = [x.clone().to(runtime.device) for x in inputs]
        if row.pack:
            spots = [at for at in op.weights if at < len(given)]
            for at, tensor in zip(
                spots, load_target(row.pack)(tuple(given[s] for s in spots), case.attributes), strict=True
            ):
                given[at] = tensor
        with runtime.compute():
            found = load_target(row.target)(*given, **case.attributes)
        runtime.synchronize()
    except (RuntimeError, UserError, TypeError, ValueError, OSError) as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    relative, absolute = op.tolerance.get(dtype, op.tolerance["float32"])
    for expected, got in zip(_tuple(truth), _tuple(found), strict=True):
        got, expected = runtime.fetch(got).wait().double(), expected.double()
        if not torch.allclose(got, expected, rtol=2 * relative + 1e-6, atol=2 * absolute + 1e-6):
            return f"differs from the reference by {float((got - expected).abs().max()):.3g} on {case}"
    return ""


def _tuple(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def _source(row: Kernel) -> str:
    spec = importlib.util.find_spec(row.target.split(":")[0])
    text = Path(spec.origin).read_bytes() if spec and spec.origin else b""
    return f"{row.target} {hashlib.sha256(text).hexdigest()}"


def _recall(file: Path) -> str | None:
    try:
        answer = json.loads(file.read_text())["refused"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return answer if isinstance(answer, str) else None


def _remember(file: Path, answer: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps({"refused": answer}))
        draft.replace(file)
    except OSError:
        return
