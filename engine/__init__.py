"""An LLM inference engine whose essence is its hardware abstraction layer."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.llm import LLM
    from engine.pooling_params import PoolingParams
    from engine.request_output import CompletionOutput, EmbeddingRequestOutput, RequestOutput
    from engine.sampling_params import SamplingParams
    from engine.structured_outputs import StructuredOutputsParams

__version__ = "0.1.0"

_HOMES = {
    "LLM": "engine.llm",
    "SamplingParams": "engine.sampling_params",
    "PoolingParams": "engine.pooling_params",
    "RequestOutput": "engine.request_output",
    "EmbeddingRequestOutput": "engine.request_output",
    "CompletionOutput": "engine.request_output",
    "StructuredOutputsParams": "engine.structured_outputs",
}
__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
