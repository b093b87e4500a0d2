"""Products of quantised activations with blocks of four to eight bits."""

from __future__ import annotations

from platforms.contract import Kernel

ROWS: tuple[Kernel, ...] = ()
