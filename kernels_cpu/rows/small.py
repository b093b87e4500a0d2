"""Norms, gates, quantisation and what else goes once over its rows."""

from __future__ import annotations

from kernels_cpu.predicates import SINGLE, native
from platforms.contract import Kernel

ROWS: tuple[Kernel, ...] = (native("rms_norm", "native", "norm:rms_norm", accepts=SINGLE),)
