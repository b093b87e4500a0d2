"""Kernel rows for AMD devices: one row per implementation of an op, read without importing any of them.

The table is empty: every op runs its torch reference there, and a plan says so.
"""

from __future__ import annotations

from platforms.contract import Kernel

KERNELS: tuple[Kernel, ...] = ()
