"""Memory that the library works in: made at first use, kept for the process, shared by all that run one after another
on a device."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

FLOATS = 394 << 20
"""Bytes for partial results: what users know from vLLM, enough for the splits of any batch it serves."""
INTEGERS = 8 << 20
"""Bytes for a schedule; the library makes as much for each wrapper."""
COUNTERS = 4 << 20
"""Bytes of counters that kernels leave at zero: four for each request and head, rounded up."""


@cache
def zeroed(device: torch.device, size: int, name: str) -> torch.Tensor:
    """``size`` bytes, zero when first used, for everything that says the same ``name``."""
    return torch.zeros(size, dtype=torch.uint8, device=device)


def planned(facts: Mapping[str, Any]) -> int:
    """Bytes of rows whose steps are all planned: parts, and a schedule each for eager and for captured ones."""
    return FLOATS + 2 * INTEGERS


def precompiled(facts: Mapping[str, Any]) -> int:
    """Bytes of rows that plan nothing."""
    return FLOATS + COUNTERS


def either(facts: Mapping[str, Any]) -> int:
    """Bytes of rows that plan the steps that they do not decode."""
    return planned(facts) + precompiled(facts)


def arch_of(device: torch.device) -> str:
    """``sm_90`` and the like; ``""`` where there is no device."""
    return "sm_{}{}".format(*torch.cuda.get_device_capability(device)) if device.type == "cuda" else ""
