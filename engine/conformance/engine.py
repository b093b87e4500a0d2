"""Chapter engine: a tiny model through the whole engine on the plugin's device."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from engine.conformance.check import Wrong
from engine.conformance.models import TINY, write_tiny
from engine.table import counted

if TYPE_CHECKING:
    from engine.conformance.subject import Subject
    from engine.plan import Plan

PROMPTS = ([5, 9, 17, 3, 3, 8, 40, 77, 21], [101, 7])
"""A prompt longer than the other, so that a step holds both in different places."""
TOKENS = 8
LEVELS = {"llama": (0, 1, 2, 3)}
"""Of the other models the ends alone: levels differ in settings and fusions, which the plans' chapter looks at."""
REFERENCE = "reference"


def checks(subject: Subject) -> Iterator[tuple[str, Callable[[], str]]]:
    """Name and body of each check."""
    for model in TINY:
        for level in LEVELS.get(model, (0, 3)):
            yield f"{model}/tokens-O{level}", partial(_tokens, subject, model, level)
        yield f"{model}/batched-and-alone", partial(_batched, subject, model)
        yield f"{model}/first-touch", partial(_first_touch, subject, model)


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Lives as long as the process."""
    return tempfile.TemporaryDirectory()


def _served(subject: Subject, model: str, level: int, kernels: str, together: bool) -> tuple[list[list[int]], Plan]:
    """Greedy tokens of every prompt, and the plan. Each combination is served once."""
    key = (model, level, kernels, together)
    if key not in subject.served:
        subject.served[key] = _serve(subject, model, level, kernels, together)
    return subject.served[key]


def _serve(subject: Subject, model: str, level: int, kernels: str, together: bool) -> tuple[list[list[int]], Plan]:
    from engine.config import from_keywords
    from engine.core import EngineCore

    folder = Path(_folder().name, model)
    if not folder.exists():
        write_tiny(model, folder)
    float32 = "dtype.float32" in subject.runtime.profile.features
    given = from_keywords(
        model=str(folder),
        platform=subject.request,
        dtype="float32" if float32 else "auto",
        optimization_level=level,
        kernels=kernels,
        max_model_len=64,
        kv_cache_memory_bytes=4 << 20,
    )
    core = EngineCore(given, offline=True)
    try:
        if together:
            return _generate(core, PROMPTS), core.plan
        return [tokens for prompt in PROMPTS for tokens in _generate(core, (prompt,))], core.plan
    finally:
        core.close()


def _generate(core: object, prompts: tuple[list[int], ...]) -> list[list[int]]:
    from engine.batch import Request
    from engine.core import EngineCore
    from engine.sampling_params import SamplingParams

    assert isinstance(core, EngineCore)
    found: dict[str, list[int]] = {str(at): [] for at in range(len(prompts))}
    for at, prompt in enumerate(prompts):
        params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
        core.add(Request(str(at), list(prompt), params, time.monotonic()))
    while core.has_unfinished():
        for output in core.step():
            if output.error:
                raise Wrong(f"the engine could not go on: {output.error}")
            found[output.request_id] += output.tokens
    return list(found.values())


def _differ(found: list[list[int]], expected: list[list[int]], what: str, other: str) -> None:
    for prompt, (one, two) in enumerate(zip(found, expected, strict=True)):
        if one != two:
            at = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
            raise Wrong(f"prompt {prompt}: {what} gives {one}, {other} gives {two}; they part at token {at}")


def _tokens(subject: Subject, model: str, level: int) -> str:
    """Greedy tokens are those of the references, which run one after the other without a kernel of the plugin."""
    subject.need_device()
    expected, _ = _served(subject, model, 0, REFERENCE, True)
    found, plan = _served(subject, model, level, "auto", True)
    _differ(found, expected, f"-O{level}", "--kernels reference")
    kernels = sorted({f"{row.op}={row.chosen}" for row in plan.kernels if row.target})
    return f"{len(PROMPTS)} × {TOKENS} tokens with {', '.join(kernels) or 'references only'}"


def _batched(subject: Subject, model: str) -> str:
    subject.need_device()
    together, _ = _served(subject, model, 3, "auto", True)
    alone, _ = _served(subject, model, 3, "auto", False)
    _differ(together, alone, "beside another prompt", "alone")
    return f"{len(PROMPTS)} prompts, together and one by one"


def _first_touch(subject: Subject, model: str) -> str:
    """No chosen row had to be taken out because it disagreed with its reference: neither where all rows lead, nor
    beside a code generator."""
    subject.need_device()
    kept = set()
    for level in (0, 3):
        plan = _served(subject, model, level, "auto", True)[1]
        for row in plan.kernels:
            for name, verdict in row.considered:
                if verdict.reason.startswith("first touch"):
                    raise Wrong(f"row {row.op}/{name} was taken out: {verdict.reason}")
        kept |= {(row.op, row.chosen) for row in plan.kernels if row.target}
    return f"{counted(len(kept), 'kernel')} kept"
