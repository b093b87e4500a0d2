"""``python -m tests.native.exercise [SEEDS KERNEL]``: every compiled row that this host runs, over its op's cases and
odd numbers of tokens, on tensors of which each is an allocation of its own: a sanitizer sees the first byte beside it.
Prints how many calls each row ran; 1 where a result misses the reference or none ran.

Packed weights are ordinary memory here, without the slabs they share otherwise. With two words: one kernel of the
library ``SEEDS`` alone, which does something wrong."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

TOKENS = (1, 2, 3, 4, 5, 6, 7, 9, 13, 17, 33, 130)
BESIDE = 3
"""Elements beside each row where rows lie apart: no row is at a multiple of anything."""
WIDE = {"tokens": 64, "hidden": 640, "out": 70}
"""At least so large is one call with each set of attributes: what products do where there is much of all."""
MOST_SWEPT = 1 << 23
"""Multiplications of a call that is tried with many tokens."""
known: dict[str, Any] = {}
"""Inputs of a call, and the reference's results."""


def main() -> int:
    os.environ.pop("LD_PRELOAD", None)
    import torch

    from kernels_cpu import memory

    memory.pages = lambda nbytes: torch.zeros(nbytes, dtype=torch.uint8)

    from engine.bind import load_target
    from engine.fusion.catalog import RULES
    from engine.fusion.fused import all_ops
    from kernels_cpu.library import library, open_library
    from kernels_cpu.manifest import KERNELS
    from kernels_cpu.record import is_native
    from platforms.cpu import compilers
    from platforms.cpu.plugin import CpuPlugin
    from platforms.fusions import ADD_NORM

    torch.set_num_threads(1)
    profile = CpuPlugin().open(0).profile
    if compilers.KERNELS not in profile.features:
        print(profile.evidence[f"features.{compilers.KERNELS}"])
        return 1
    # Calls are small, and on a busy machine two members wait for each other at every one.
    open_library(library().path, 1, None)
    if len(sys.argv) > 1:
        seeded(*sys.argv[1:])
        return 0
    ops, failed = all_ops((*RULES, ADD_NORM)), False
    for row in KERNELS:
        function = load_target(row.target)
        if not is_native(function):
            continue
        done, problems = 0, []
        for case, swept in cases(ops[row.op]):
            found, problem = run(ops[row.op], row, function, profile, case, apart=swept or done % 2 == 1)
            done += found
            problems += [problem] if problem else []
        print(f"{row.op}/{row.name}: {done} calls", *problems[:3], sep="\n    ", flush=True)
        wanted = row.needs(profile, {})
        failed |= bool(problems) or (bool(wanted) and not done)
    return int(failed)


def seeded(path: str, kernel: str) -> None:
    import ctypes

    import torch

    from kernels_cpu.library import library

    own = library()
    own.addresses[kernel] = ctypes.cast(getattr(ctypes.CDLL(path), kernel), ctypes.c_void_p).value or 0
    from kernels_cpu.record import call

    call(kernel, (torch.zeros(40),), (40,))


def cases(op: Any) -> Iterator[tuple[Any, bool]]:
    """Those of the op, and the first with each set of attributes with other numbers of tokens."""
    seen = set()
    for case in op.cases:
        yield case, False
        key = tuple(sorted((name, str(value)) for name, value in case.attributes.items()))
        if key in seen or "tokens" not in case.sizes or "requests" in case.sizes:
            continue
        seen.add(key)
        work = case.sizes.get("hidden", 1) * case.sizes.get("out", 1)
        for tokens in TOKENS:
            if tokens * work <= MOST_SWEPT and tokens <= case.sizes.get("blocks", tokens) * case.sizes.get("page", 1):
                yield replace(case, sizes={**case.sizes, "tokens": tokens}), True
        if case.sizes.keys() >= WIDE.keys():
            wide = {name: -(-least // case.sizes[name]) * case.sizes[name] for name, least in WIDE.items()}
            yield replace(case, sizes={**case.sizes, **wide}), True


def run(op: Any, row: Any, function: Any, profile: Any, case: Any, apart: bool) -> tuple[int, str]:
    """How often it ran, and what was wrong."""
    import torch

    from engine.bind import load_target
    from engine.ops.compare import as_tuple, difference, name_of, specs_of, truth, with_packed
    from engine.plan.kernels import call_facts

    if (key := f"{op.name} {case}") not in known:
        inputs = op.inputs(case, "float32", torch.Generator().manual_seed(7))
        known[key] = inputs, truth(op, inputs, case.attributes)
    inputs, wanted = known[key]
    facts = {**case.sizes, **case.attributes, **call_facts(specs_of(inputs))}
    if not (row.needs(profile, facts) and row.accepts(profile, facts)):
        return 0, ""
    given = with_packed(op, load_target(row.pack), inputs, case.attributes) if row.pack else list(inputs)
    may = [
        x.ndim == 2 and x.dtype in (torch.float32, torch.int8) and at not in (*op.weights, *op.mutates)
        for at, x in enumerate(given)
    ]
    done = 0
    for lies in (False, True) if apart and any(may) else (False,):
        own = [exact(x, lies and moved) for x, moved in zip(given, may, strict=True)]
        try:
            results = as_tuple(function(*own, **case.attributes))
        except ValueError:
            if not lies:
                raise
            continue
        done += 1
        written = [own[at] for at in op.mutates]
        results = [*results[: len(wanted) - len(written)], *written]
        for found, expected in zip(results, wanted, strict=True):
            if problem := difference(found, expected, op.bound(row.rounds or "float32", name_of(found.dtype)), case):
                return done, problem
    return done, ""


def exact(tensor: Any, apart: bool) -> Any:
    """A copy that ends where its memory ends; ``apart``: between its rows, and before the first one, lie bad values."""
    import torch

    if not apart:
        return tensor.clone()
    rows, width = tensor.shape
    bad = torch.nan if tensor.is_floating_point() else -128
    memory = torch.full((1 + (rows - 1) * (width + BESIDE) + width,), bad, dtype=tensor.dtype)
    return memory.as_strided((rows, width), (width + BESIDE, 1), 1).copy_(tensor)


if __name__ == "__main__":
    sys.exit(main())
