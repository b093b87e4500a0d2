"""Modules that some checkpoints store as one, and other names of scales, under the names that programs use."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from engine.errors import UserError
from engine.models.config import ModelConfig
from engine.weights.tensor_info import TensorInfo

_KV_SCALES = {
    "self_attn.attn.k_scale": "self_attn.k_scale",
    "self_attn.attn.v_scale": "self_attn.v_scale",
    "self_attn.k_proj.k_scale": "self_attn.k_scale",
    "self_attn.v_proj.v_scale": "self_attn.v_scale",
    "self_attn.k_proj.output_scale": "self_attn.k_scale",
    "self_attn.v_proj.output_scale": "self_attn.v_scale",
}
"""How checkpoints call the scales of keys and values, behind the layer's name."""
_LAYER = re.compile(r"(model\.layers\.\d+\.)(.+)")


def canonical(config: ModelConfig, found: Mapping[str, TensorInfo]) -> tuple[ModelConfig, dict[str, TensorInfo]]:
    """``found`` with fused modules apart, each part a view of the file, and scales under one name; and the config, in
    which the parts of a fused module that it lists as dense are listed too. Raises ``UserError`` naming a fused tensor
    that cannot be cut where its parts meet."""
    made: dict[str, TensorInfo] = {}
    dense: dict[str, None] = {}
    scheme = config.quantization
    for name, info in found.items():
        at = _LAYER.fullmatch(name)
        fused = _parts(config).get(at[2].rpartition(".")[0]) if at else None
        if at is None or (fused is None and at[2] not in _KV_SCALES and at[2] != "self_attn.kv_scale"):
            made[name] = info
        elif fused is not None:
            suffix = at[2].rpartition(".")[2]
            if scheme is not None and scheme.ignores(name.removesuffix(f".{suffix}")):
                dense.update((f"{at[1]}{part}", None) for part in fused)
            if scheme is not None and scheme.packed and suffix not in ("weight", "bias"):
                raise UserError(
                    f"{info.file}: tensor {name!r} holds {' and '.join(fused)} in one, in {scheme.kind}; use a "
                    "checkpoint that stores them apart"
                )
            for part, one in zip(fused, _cut(config, info, tuple(fused.values())), strict=True):
                own = f"{at[1]}{part}.{suffix}"
                made.setdefault(own, replace(one, name=own))
        else:
            sides = ("k", "v") if at[2] == "self_attn.kv_scale" else (_KV_SCALES[at[2]][-7],)
            for side in sides:
                own = f"{at[1]}self_attn.{side}_scale"
                made.setdefault(own, replace(info, name=own))
    if scheme is not None and dense:
        config = replace(config, quantization=replace(scheme, ignored=(*scheme.ignored, *dense)))
    return config, made


def _parts(config: ModelConfig) -> dict[str, dict[str, int]]:
    """Fused module → its parts in order, with their rows."""
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    parts = {"mlp.gate_up_proj": {"mlp.gate_proj": config.intermediate_size, "mlp.up_proj": config.intermediate_size}}
    if config.mla is None:
        parts["self_attn.qkv_proj"] = dict(zip((f"self_attn.{side}_proj" for side in "qkv"), (q, kv, kv), strict=True))
    return parts


def _cut(config: ModelConfig, info: TensorInfo, rows: tuple[int, ...]) -> list[TensorInfo]:
    """Each part's share of a tensor of the fused module: its rows, its block rows, its own value, or the one value that
    all share."""
    height = info.shape[0] if info.shape else 1
    scheme = config.quantization
    if info.shape in ((), (1,)):
        return [info] * len(rows)
    if height == sum(rows):
        heights = list(rows)
    elif height == len(rows):
        heights = [1] * len(rows)
    elif scheme is not None and scheme.block and height == -(-sum(rows) // scheme.block[0]):
        if any(part % scheme.block[0] for part in rows[:-1]):
            raise UserError(
                f"{info.file}: tensor {info.name!r} has blocks of {scheme.block[0]} rows that lie across the parts it "
                f"is made of ({', '.join(map(str, rows))} rows); use a checkpoint that stores them apart"
            )
        heights = [-(-part // scheme.block[0]) for part in rows]
    else:
        raise UserError(
            f"{info.file}: tensor {info.name!r} of shape {list(info.shape)} belongs to {len(rows)} modules of "
            f"{', '.join(map(str, rows))} rows, and has neither one value, nor one for each, nor one for each row"
        )
    size, cut, first = info.nbytes // height, [], 0
    for part in heights:
        offset = info.offset + first * size
        cut.append(replace(info, shape=(part, *info.shape[1:]), nbytes=part * size, offset=offset))
        first += part
    return cut
