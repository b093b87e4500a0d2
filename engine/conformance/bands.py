"""Memory with poisoned neighbours, and what of it somebody wrote to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

BAND = 4096
"""Bytes on either side; a multiple of every alignment that kernels ask for."""
POISON = 0xFF
"""A byte that makes NaN of every floating type repeated, and -1 of every signed integer."""


class Band:
    """``tensor`` lies contiguous between two bands. ``filled``: it holds poison itself until written."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, device: Any) -> None:
        count = 1
        for size in shape:
            count *= int(size)
        self._bytes = count * dtype.itemsize
        tail = -self._bytes % 64
        self._all = torch.full((BAND + self._bytes + tail + BAND,), POISON, dtype=torch.uint8, device=device)
        flat = self._all[BAND : BAND + self._bytes].view(dtype)
        self.tensor = flat.view(tuple(int(size) for size in shape))

    def broken(self) -> str:
        """Where poison is gone, or nothing."""
        for side, part in (("before", self._all[:BAND]), ("behind", self._all[BAND + self._bytes :])):
            if int((part != POISON).sum()):
                at = int((part != POISON).nonzero()[0])
                distance = BAND - at if side == "before" else at
                return f"{int((part != POISON).sum())} bytes {side} it were written, the first {distance} away"
        return ""


def banded(tensor: Any, device: Any) -> Band:
    """A copy of a host tensor between bands on ``device``."""
    band = Band(tensor.shape, tensor.dtype, device)
    band.tensor.copy_(tensor)
    return band


def strided(tensor: Any, device: Any, beside: int = 8) -> tuple[Band, Any]:
    """A copy whose rows lie apart, as a slice of a wider tensor does: ``beside`` elements of poison on either side of
    each row of the last axis. The band of the wide tensor, and the view."""
    *rows, width = tensor.shape
    band = Band((*rows, width + 2 * beside), tensor.dtype, device)
    view = band.tensor[..., beside : beside + width]
    view.copy_(tensor)
    return band, view


class Poisoned(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Every tensor that a kernel allocates itself without filling it lies between bands, full of poison."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bands: list[Band] = []
        aten = torch.ops.aten
        self._sized = {aten.empty.memory_format, aten.new_empty.default}
        self._like = {aten.empty_like.default}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        result = func(*args, **named)
        if func in self._sized | self._like and result.is_contiguous() and result.numel() and not result.is_complex():
            band = Band(result.shape, result.dtype, result.device)
            self.bands.append(band)
            return band.tensor
        return result

    def broken(self) -> str:
        return next((found for band in self.bands if (found := band.broken())), "")
