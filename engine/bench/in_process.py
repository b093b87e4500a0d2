"""The engine in this process, and what a result says of it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from engine.bench.server_facts import peak_of

if TYPE_CHECKING:
    from engine.llm import LLM
    from engine.plan_values import Given
    from platforms.contract import Runtime


@contextmanager
def opened(given: Mapping[str, Given]) -> Iterator[LLM]:
    from engine.llm import LLM

    with LLM.of(given) as llm:
        yield llm


def about(llm: LLM) -> dict[str, Any]:
    """What every result says of the engine, after what was measured. ``peak_memory_bytes``: of this process on the
    host."""
    core = llm._open_core()
    return {
        "model_id": core.info.model_name,
        "platform": core.info.platform,
        "level": core.info.level,
        "plan_hash": core.info.plan_hash,
        "peak_memory_bytes": peak_of(os.getpid()),
        "peak_device_memory_bytes": device_peak(core._worker.runtime),
    }


def device_peak(runtime: Runtime) -> int | None:
    """Bytes of a device with memory of its own; ``None`` where that is the host's, of which the process knows. What
    the allocator held at most, or, where it does not tell, all that is in use now."""
    import torch

    found = runtime.memory()
    if found.shared_with_host:
        return None
    here = torch.accelerator.current_accelerator()
    if here is not None and here.type == torch.device(runtime.device).type:
        return torch.accelerator.max_memory_reserved(runtime.device)
    return found.total - found.available
