"""Attention over the paged cache, and what writes it."""

from __future__ import annotations

from platforms.contract import Kernel

ROWS: tuple[Kernel, ...] = ()
