"""Sum over ranks, residual sum and norm in one launch, out of AITER.

The library has no form without a residual: then zeros are added, never what happens to lie in an empty buffer.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from kernels_rocm.library import function, invoke
from kernels_rocm.limits import ALL_REDUCE_BYTES, ONE_STAGE_TOKENS, one_stage_bytes

_COMMUNICATORS: dict[str, Any] = {}
"""Group → the library's communicator, which holds buffers that its ranks share."""


def all_reduce_add_rms_norm(
    x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, *, group: str, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the fused op, for up to ``ALL_REDUCE_BYTES``."""
    function("reduce_norm")
    normed, total = _communicator(x, group).fused_ar_rms(
        inp=x.contiguous(),
        res_inp=y.contiguous(),
        w=weight,
        eps=eps,
        registered=False,
        use_1stage=_one_stage(x, group),
    )
    return normed, total


def all_reduce_rms_norm(
    x: torch.Tensor, weight: torch.Tensor, *, group: str, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the fused op: the normed sum over the ranks, and that sum."""
    zeros = torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    return all_reduce_add_rms_norm(x, zeros, weight, group=group, eps=eps)


def all_reduce_add_rms_norm_quantize_dynamic(
    x: torch.Tensor,
    y: torch.Tensor,
    weight: torch.Tensor,
    *,
    group: str,
    eps: float,
    storage: str,
    columns: int,
    power_of_two: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As the fused op, for the device's own 8-bit float and scales per group. Raises ``ValueError`` for a scale per row
    and for powers of two."""
    if not columns or power_of_two:
        asked = "scales that are powers of two" if power_of_two else "a scale per row"
        raise ValueError(f"{asked}: this kernel has no such option")
    function("reduce_norm_groups")
    stored, total, scales = _communicator(x, group).fused_ar_rms_per_group_quant(
        inp=x.contiguous(),
        res_inp=y.contiguous(),
        w=weight,
        eps=eps,
        group_size=columns,
        registered=False,
        use_1stage=_one_stage(x, group),
    )
    return stored, scales, total


def close(group: str = "") -> None:
    """Free the communicator of a group, or of every group. Each rank calls it, with no work under way."""
    for name in [group] if group else list(_COMMUNICATORS):
        found = _COMMUNICATORS.pop(name, None)
        if found is not None:
            found.close()


def _one_stage(x: torch.Tensor, group: str) -> bool:
    """Small sums in one stage, except in a graph: its first replay may be wrong there (ROCm/aiter issue 4888)."""
    if x.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    ranks = dist.get_world_size(_group(group))
    return x.shape[0] <= ONE_STAGE_TOKENS and x.numel() * x.element_size() < one_stage_bytes(ranks)


def _communicator(x: torch.Tensor, group: str) -> Any:
    """Made at the first call, which each rank makes outside a capture. Raises ``RuntimeError`` where the library
    declines, or a step is larger than its buffers."""
    found = _COMMUNICATORS.get(group)
    if found is None:
        if x.is_cuda and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(f"group {group}: the communicator cannot be made while a graph is captured")
        found = invoke("communicator", group=_host_group(group), device=x.device, max_size=2 * ALL_REDUCE_BYTES)
        if found.disabled:
            raise RuntimeError(f"group {group}: the library declines these ranks; its own log says why")
        _COMMUNICATORS[group] = found
    size = x.numel() * x.element_size()
    if size > ALL_REDUCE_BYTES:
        raise RuntimeError(f"group {group}: {size} bytes in one sum, the buffers take {ALL_REDUCE_BYTES}")
    return found


def _host_group(name: str) -> Any:
    """The same ranks, talking over the host: the library refuses the devices' own backend."""
    ranks = dist.get_process_group_ranks(_group(name))
    return dist.new_group(ranks, backend="gloo", use_local_synchronization=True)


def _group(name: str) -> Any:
    """The process group that torch knows by this name. Raises ``RuntimeError`` where it knows none."""
    resolve: Any = dist.distributed_c10d._resolve_process_group
    return resolve(name)
