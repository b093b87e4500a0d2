"""The tensors of quantised linear layers: which there must be, and what they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import UserError
from engine.models.config import ModelConfig
from engine.models.quantization import Quantization
from engine.weights.tensor_info import DENSE_FORMATS, TensorInfo

if TYPE_CHECKING:
    import torch

KV_SCALES = (".self_attn.k_scale", ".self_attn.v_scale")
_NEVER = ("model.embed_tokens.weight",)
MAYBE = ("lm_head.weight", ".mlp.gate.weight", ".block_sparse_moe.gate.weight")
"""Ends of names that writers leave dense without saying so."""
NO_NUMBER = 255
"""Of an exponent that is a byte, e8m0: OCP Microscaling Formats (MX) Specification 1.0, section 5.4.1."""


def stored_scales(
    path: Path, config: ModelConfig, shapes: Mapping[str, tuple[int, ...]], found: Mapping[str, TensorInfo]
) -> dict[str, TensorInfo]:
    """The scales that belong to the weights in ``shapes``: of weights, of activations where they are static, and those
    of keys and values that are there. Raises ``UserError`` naming a weight stored in another dtype than the config
    says, or a scale that is missing, of another shape or of a dtype that is none of a scale."""
    scheme, made = config.quantization, {name: info for name, info in found.items() if name.endswith(KV_SCALES)}
    for info in made.values():
        if info.shape not in ((), (1,)) or info.format not in DENSE_FORMATS:
            refuse(info, f"one value in {' or '.join(DENSE_FORMATS)}")
    if scheme is None or scheme.packed:
        return made
    for name, shape in shapes.items():
        module = name.removesuffix(".weight")
        if not may_be_stored(scheme, name, shape):
            continue
        info = found[name]
        if info.format != scheme.storage:
            if name.endswith(MAYBE) and info.format in DENSE_FORMATS:
                continue
            raise UserError(
                f"{info.file}: tensor {name!r} is stored as {info.format}, the config says {scheme.storage}; list "
                f"{module!r} among the modules that are not quantised if it is dense, or fetch the checkpoint again"
            )
        wanted = {f"{module}.{scheme.scale}": _shapes(scheme, shape)}
        if scheme.activations == "static":
            wanted[f"{module}.input_scale"] = ((), (1,))
        for scale, known in wanted.items():
            if scale not in found:
                raise UserError(f"{path}: tensor {scale!r} is missing, and {name!r} has no meaning without it")
            if found[scale].shape not in known:
                refuse(found[scale], f"{' or '.join(str(list(one)) for one in known)}, one {scheme.weights} each")
            if found[scale].format not in DENSE_FORMATS:
                refuse(found[scale], f"{' or '.join(DENSE_FORMATS)}")
            made[scale] = found[scale]
    return made


def may_be_stored(scheme: Quantization | None, name: str, shape: tuple[int, ...]) -> bool:
    """Whether ``scheme`` is about tensor ``name``: the matrix of a linear layer that is not listed as dense."""
    if scheme is None or len(shape) != 2 or name in _NEVER or not name.endswith(".weight"):
        return False
    return not scheme.ignores(name.removesuffix(".weight"))


def _shapes(scheme: Quantization, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    if scheme.weights == "tensor":
        return (), (1,), (1, 1)
    if scheme.weights == "channel":
        return (shape[0],), (shape[0], 1)
    assert scheme.block is not None
    return ((-(-shape[0] // scheme.block[0]), -(-shape[1] // scheme.block[1])),)


def refuse(info: TensorInfo, wanted: str) -> None:
    raise UserError(
        f"{info.file}: tensor {info.name!r} is {info.format}{list(info.shape)}, its config asks for {wanted}; fetch "
        "the checkpoint again"
    )


def unpacked(weight: torch.Tensor, scale: torch.Tensor, block: tuple[int, int] | None) -> torch.Tensor:
    """What stored values stand for, float32. weight: [rows, columns]; scale: one value, one per row, or one per
    ``block`` (rows, columns)."""
    import torch

    wide = scale.float()
    if block is None:
        return weight.to(torch.float32) * (wide if wide.numel() == 1 else wide.reshape(-1, 1))
    rows, columns = weight.shape
    whole = wide.repeat_interleave(block[0], 0)[:rows].repeat_interleave(block[1], 1)[:, :columns]
    return weight.to(torch.float32) * whole


def checked(scale: torch.Tensor, info: TensorInfo) -> torch.Tensor:
    """The scale in float32. Raises ``UserError`` where a value is not finite or not above zero."""
    import torch

    wide = scale.float()
    _check(wide, torch.isfinite(wide) & (wide > 0), info, "finite and above zero")
    return wide


def checked_group(scale: torch.Tensor, info: TensorInfo) -> torch.Tensor:
    """Scales of groups in float32, exponents as they are. Some writers round a small one to nothing, or turn its sign.
    Raises ``UserError`` where a value is not finite, or an exponent stands for no number."""
    import torch

    if info.format == "uint8":
        _check(scale, scale != NO_NUMBER, info, f"below {NO_NUMBER}")
        return scale
    wide = scale.float()
    _check(wide, torch.isfinite(wide), info, "finite")
    return wide


def _check(scale: torch.Tensor, good: torch.Tensor, info: TensorInfo, wanted: str) -> None:
    if not bool(good.all()):
        raise UserError(
            f"{info.file}: tensor {info.name!r} holds {float(scale[~good].flatten()[0]):g}; a scale is {wanted}. The "
            "file is damaged or is not what its config says"
        )
