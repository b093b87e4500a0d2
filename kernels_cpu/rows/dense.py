"""Products of float activations, with dense weights and with blocks; look-ups."""

from __future__ import annotations

from platforms.contract import Kernel

ROWS: tuple[Kernel, ...] = ()
