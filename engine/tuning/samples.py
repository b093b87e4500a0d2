"""The distinct calls of a plan, with tensors like those that serving gives them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from engine.batch import Work
from engine.load import make_caches
from engine.ops.blocks import columns_of, sample_blocks
from engine.plan.kernels import describe, input_specs
from engine.program import Call, Dim, Program

if TYPE_CHECKING:
    from engine.plan_values import KernelChoice, Plan
    from platforms.contract import Runtime

TOKENS = (1, 16, 64, 512)
"""Tokens of the steps that calls are tried in: of as many requests as there are tokens while so many may run together,
of requests as long as may be beyond that."""
CONTEXT = 255
"""Tokens in the cache of a request that takes one more."""
_SEED = 0
_ROWS = 256
_SPREAD = 0.05
"""Of values of weights and activations: sums over wide rows stay within every type."""


@dataclass(frozen=True, slots=True)
class Sample:
    """All calls of a plan that look alike, in steps of some sizes."""

    choice: KernelChoice
    call: Call
    program: Program
    tokens: tuple[int, ...]


def samples(plan: Plan) -> list[Sample]:
    """One for each choice about calls that are in a program, in the plan's order. ``tokens``: those of ``TOKENS`` whose
    steps have such calls, or the fewest that do."""
    most = plan["scheduler.max_num_batched_tokens"]
    found: dict[tuple[str, str], tuple[Call, Program, list[tuple[int, int]]]] = {}
    for one in plan.ranges:
        for call in one.program.calls:
            key = call.op, describe(call, input_specs(one.program, call))
            spans = found.setdefault(key, (call, one.program, []))[2]
            if (one.start, one.end) not in spans:
                spans.append((one.start, one.end))
    made = []
    for choice in plan.kernels:
        if (choice.op, choice.call) in found:
            call, program, spans = found[choice.op, choice.call]
            sizes = [n for n in TOKENS if n <= most and any(low <= n <= high for low, high in spans)]
            made.append(Sample(choice, call, program, tuple(sizes) or (spans[0][0],)))
    return made


def tensors_of(sample: Sample, tokens: int, plan: Plan, runtime: Runtime, filled: bool = True) -> list[Any]:
    """Inputs of the call on the device, in a step of ``tokens``: program inputs as serving makes them, caches without
    content, random activations and weights (blocks of a GGUF file with factors as files have), whole numbers wider than
    a byte 0. Without ``filled``, activations and weights hold anything."""
    import torch

    from engine.step_inputs import step_inputs

    program = sample.program
    pages = [program.caches[names[0]].page for names in program.groups()]
    work = _step(*step_of(plan, tokens), pages)
    arrays, step = step_inputs(work, pages, range(len(work)))
    sizes = {"tokens": tokens, "requests": step.requests, "requests+1": step.requests + 1, "rows": len(work)}
    blocks = 1 + max((block for item in work for table in item.blocks for block in table), default=0)
    generator = torch.Generator(device=runtime.device).manual_seed(_SEED)
    found = []
    for name in sample.call.inputs:
        cache = name.partition("@")[0]
        if name in arrays:
            found.append(torch.from_numpy(arrays[name]).to(runtime.device))
        elif cache in program.caches:
            alone = replace(program, caches={cache: program.caches[cache]})
            found.append(make_caches(alone, blocks, runtime)[cache])
        else:
            weight = program.weights.get(name)
            spec = weight or program.values[name]
            shape = _sized(spec.shape, sizes)
            if filled and weight is not None and weight.format.startswith("blocks "):
                found.append(_blocks(weight.format.removeprefix("blocks "), *shape).to(runtime.device))
            else:
                found.append(_made(spec.dtype, shape, generator if filled else None, runtime))
    return found


def step_of(plan: Plan, tokens: int) -> tuple[list[int], int]:
    """Lengths of the requests of a step, and how many tokens of each are in the cache before it."""
    longest = plan["scheduler.max_model_len"]
    if tokens <= plan["scheduler.max_num_seqs"]:
        return [1] * tokens, min(CONTEXT, longest - 1)
    return list(_parts(tokens, longest)), 0


def _step(lengths: list[int], context: int, pages: list[int]) -> list[Work]:
    free = [0] * len(pages)
    work = []
    for number, length in enumerate(lengths):
        tables = []
        for group, page in enumerate(pages):
            count = -(-(context + length) // page)
            tables.append(list(range(free[group], free[group] + count)))
            free[group] += count
        work.append(Work(str(number), [0] * length, context, tuple(tables), True))
    return work


def _parts(tokens: int, most: int) -> Iterator[int]:
    for start in range(0, tokens, most):
        yield min(most, tokens - start)


def _sized(shape: tuple[Dim, ...], sizes: dict[str, int]) -> tuple[int, ...]:
    return tuple(sizes[dim] if isinstance(dim, str) else dim for dim in shape)


def _blocks(format: str, rows: int, nbytes: int) -> Any:
    """The same few rows again and again: making as many as a head has takes longer than what is timed."""
    import torch

    few = sample_blocks(min(rows, _ROWS), columns_of(format, nbytes), format, torch.Generator().manual_seed(_SEED))
    return few.repeat(-(-rows // _ROWS), 1)[:rows].contiguous()


def _made(dtype: str, shape: tuple[int, ...], generator: Any, runtime: Runtime) -> Any:
    import torch

    kind = getattr(torch, dtype)
    if generator is None:
        return torch.empty(shape, dtype=kind, device=runtime.device)
    if kind.is_floating_point:
        whole = torch.empty(shape, dtype=torch.float32, device=runtime.device)
        return whole.uniform_(-_SPREAD, _SPREAD, generator=generator).to(kind)
    if kind.itemsize == 1 and kind is not torch.bool:
        return torch.randint(0, 127, shape, dtype=kind, device=runtime.device, generator=generator)
    return torch.zeros(shape, dtype=kind, device=runtime.device)
