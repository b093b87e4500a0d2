"""Tensors of host values that a reference needs: copied to a device once, since no graph can hold such a copy."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import cache, wraps
from typing import Any

making: ContextVar[bool] = ContextVar("making", default=False)
"""Whether a constant is being made in this context."""


def constant(make: Callable[..., Any]) -> Callable[..., Any]:
    """``make(device, *values)`` → a tensor, kept for the life of the process. Among fake tensors it is made anew each
    time: a fake one must not outlive them, and a real one must not meet them."""
    kept = cache(make)

    @wraps(make)
    def get(*key: Any) -> Any:
        import torch

        modes: Any = torch._C
        if modes._get_dispatch_mode(modes._TorchDispatchModeKey.FAKE) is None:
            return kept(*key)
        token = making.set(True)
        try:
            return make(*key)
        finally:
            making.reset(token)

    # torch.compile calls what bears this mark while it traces, and keeps the result.
    get._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return get
