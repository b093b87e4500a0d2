"""A host with a kernel of a stranger for weights of four bits."""

from __future__ import annotations

from typing import Any

from platforms.contract import Kernel
from platforms.cpu.plugin import CpuPlugin

FLOATS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


class PackingHost(CpuPlugin):
    def kernels(self) -> tuple[Kernel, ...]:
        return (*super().kernels(), Kernel("packed_linear", "by_group", f"{__name__}:by_group"))


def by_group(x: Any, weight: Any, scales: Any, zeros: Any = None, bias: Any = None, *, group: int, format: str) -> Any:
    """A product for each group of columns, which lie in runs of 64: column j and 32 + j in one byte."""
    import torch

    columns = torch.arange(x.shape[-1], device=x.device)
    places = columns // 64 * 32 + columns % 32
    values = weight[:, places].int() >> torch.where(columns % 64 < 32, 0, 4).int() & 15
    if format == "mxfp4":
        numbers = torch.tensor([*FLOATS, *(-one for one in FLOATS)], device=x.device)[values]
        sizes = 2.0 ** (scales.float() - 127)
    else:
        numbers, sizes = values.float(), scales.float()
    total = torch.zeros(x.shape[0], weight.shape[0], device=x.device)
    for at in range(x.shape[-1] // group):
        side = slice(at * group, (at + 1) * group)
        part = numbers[:, side]
        if format == "int4":
            part = part - (8.0 if zeros is None else zeros[:, at : at + 1].float())
        total += x[:, side].float() @ (part * sizes[:, at : at + 1]).T
    return (total if bias is None else total + bias.float()).to(x.dtype)
