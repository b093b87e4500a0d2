"""Sum over ranks, residual sum and norm in one launch, out of FlashInfer.

The library has no form without a residual: then zeros are added, never what happens to lie in an empty buffer.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from kernels_cuda.library import call
from kernels_cuda.limits import ALL_REDUCE_BYTES, ONE_SHOT_BYTES

_NORM, _NORM_QUANTIZE = 1, 2
"""``AllReduceFusionPattern``: sum, residual sum and norm; the same, and a static quantisation."""

_WORKSPACES: dict[str, Any] = {}
"""Group → what the library shares between its ranks. One for all layers, since they run one after another."""


def all_reduce_add_rms_norm(
    x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, *, group: str, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the fused op, for contiguous rows that the group's workspace takes."""
    normed = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = _reduce(x, y, weight, group, pattern=_NORM, rms_eps=eps, norm_out=normed)
    return normed, total


def all_reduce_rms_norm(
    x: torch.Tensor, weight: torch.Tensor, *, group: str, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the fused op: the normed sum over the ranks, and that sum."""
    return all_reduce_add_rms_norm(
        x, torch.zeros(x.shape, dtype=x.dtype, device=x.device), weight, group=group, eps=eps
    )


def all_reduce_add_rms_norm_quantize_static(
    x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, *, group: str, eps: float, storage: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the fused op, for ``float8_e4m3fn``. ``scale``: float32 [1] on the device, so that a graph reads it."""
    stored = torch.empty(x.shape, dtype=getattr(torch, storage), device=x.device)
    total = _reduce(x, y, weight, group, pattern=_NORM_QUANTIZE, rms_eps=eps, quant_out=stored, scale_factor=scale)
    return stored, total


def close(group: str = "") -> None:
    """Free the workspace of a group, or of every group. Each rank calls it, with no work under way."""
    for name in [group] if group else list(_WORKSPACES):
        found = _WORKSPACES.pop(name, None)
        if found is not None:
            found.destroy()


def _reduce(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, group: str, **more: Any) -> torch.Tensor:
    given = {
        "input": x.contiguous(),
        "workspace": _workspace(x, group),
        "launch_with_pdl": True,
        "trigger_completion_at_end": True,
        "residual_in": y.contiguous(),
        "residual_out": torch.empty(x.shape, dtype=x.dtype, device=x.device),
        "output": torch.empty(x.shape, dtype=x.dtype, device=x.device),
        "rms_gamma": weight,
        "fp32_acc": True,
        **dict.fromkeys(("norm_out", "quant_out", "scale_factor")),
        **more,
    }
    given["use_oneshot"] = _one_shot(x, given["workspace"])
    call("flashinfer.comm:allreduce_fusion", **given)
    found: torch.Tensor = given["residual_out"]
    return found


def _one_shot(x: torch.Tensor, workspace: Any) -> bool | None:
    """``None`` leaves it to the library, which knows for its multicast workspace only."""
    if workspace.backend != "trtllm":
        return None
    size = x.numel() * x.element_size()
    # Summing in two steps gives every rank at least one row.
    return x.shape[0] <= workspace.world_size or size <= ONE_SHOT_BYTES.get((_arch(x), workspace.world_size), 0)


def _workspace(x: torch.Tensor, group: str) -> Any:
    """Made at the first call, which each rank makes, and again for a step larger than it was made for."""
    tokens, hidden = x.shape
    found = _WORKSPACES.get(group)
    if found is not None and found.is_buffer_size_sufficient(found.world_size, tokens, hidden, x.dtype):
        return found
    if x.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(f"group {group}: {tokens} x {hidden} needs a larger workspace, and none can be made here")
    close(group)
    ranks = _group(group)
    world = dist.get_world_size(ranks)
    most = ALL_REDUCE_BYTES.get((_arch(x), world), 0)
    made = call(
        "flashinfer.comm:create_allreduce_fusion_workspace",
        backend="auto",
        world_size=world,
        rank=dist.get_rank(ranks),
        max_token_num=max(tokens, most // (hidden * x.element_size())),
        hidden_dim=hidden,
        dtype=x.dtype,
        gpus_per_node=world,
        comm_backend=call("flashinfer.comm.mnnvl:TorchDistBackend", group=ranks),
        group=ranks,
    )
    _WORKSPACES[group] = made
    return made


def _group(name: str) -> Any:
    """The process group that torch knows by this name. Raises ``RuntimeError`` where it knows none."""
    resolve: Any = dist.distributed_c10d._resolve_process_group
    return resolve(name)


def _arch(x: torch.Tensor) -> str:
    return "sm_{}{}".format(*torch.cuda.get_device_capability(x.device)) if x.is_cuda else ""
