"""``quantization_config`` of checkpoints whose weights have four bits. The facts are those of AutoAWQ, AutoGPTQ and
GPTQModel, and compressed-tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from engine.models.experts_hf import only
from engine.models.fields import Fields
from engine.models.quantization import Quantization
from engine.models.quantization_fields import check_patterns, names, strategy

FOUR_BITS = "awq (4 bits, version gemm), gptq (4 bits)"
PACKED_FORMATS = ("pack-quantized", "mxfp4-pack-quantized")

Reach = tuple[Literal["channel", "group"], tuple[int, int] | None]


def read_awq(fields: Fields) -> Quantization:
    """Zeros are in the checkpoint whatever ``zero_point`` says. Raises ``UserError`` naming the field."""
    only(fields, "bits", 4)
    if fields.text("version", "gemm").lower() != "gemm":
        fields.refuse("version", "'gemm', the one layout of AWQ that is known")
    if fields.get("backend") == "llm-awq":
        fields.refuse("backend", "one that writes AutoAWQ's layout")
    fields.flag("zero_point", True)
    reach, block = _reach(fields)
    # AutoAWQ leaves out every module whose name holds an entry, wherever that stands.
    ignored = tuple(f"re:.*{re.escape(name)}" for name in names(fields, "modules_to_not_convert"))
    return Quantization(
        "awq",
        "int4",
        reach,
        "none",
        block,
        ignored,
        scale="scales",
        layout="awq",
        weight="qweight",
        zero="qzeros",
    )


def read_gptq(fields: Fields) -> Quantization:
    """Zeros are in the checkpoint whatever ``sym`` says. Raises ``UserError`` naming the field."""
    only(fields, "bits", 4)
    form = fields.choice("checkpoint_format", ("gptq", "gptq_v2"), "gptq")
    only(fields, "is_marlin_format", False)
    only(fields, "pack_dtype", "int32")
    only(fields, "modules_in_block_to_quantize", [])
    fields.flag("sym", True)
    ordered = fields.flag("desc_act", False)
    reach, block = _reach(fields)
    return Quantization(
        "gptq",
        "int4",
        reach,
        "none",
        block,
        names(fields, "modules_to_not_convert") + _left_out(fields),
        scale="scales",
        layout="gptq",
        weight="qweight",
        zero="qzeros",
        one_less=form == "gptq",
        ordered=ordered and reach == "group",
    )


def read_packed(group: Fields, weights: Fields, form: str, ignored: tuple[str, ...], kv_cache: str) -> Quantization:
    """``group``, ``weights``: the one group of layers in compressed-tensors' form, and its weights. ``form``: one of
    ``PACKED_FORMATS``. Raises ``UserError`` naming the field."""
    if group.get("input_activations") is not None:
        group.refuse("input_activations", f"none, since {form!r} is read for its weights alone")
    only(weights, "num_bits", 4)
    mx = form != "pack-quantized"
    weights.choice("type", ("float",) if mx else ("int",), "int")
    if mx:
        only(weights, "symmetric", True)
        only(weights, "scale_dtype", "torch.uint8")
        if (strategy(weights), weights.get("group_size")) != ("group", 32):
            weights.refuse("group_size", "32 and 'strategy' 'group', as MXFP4 has it")
        return Quantization(
            "compressed-tensors",
            "mxfp4",
            "group",
            "none",
            (1, 32),
            ignored,
            True,
            kv_cache=kv_cache,
            layout="pairs",
            weight="weight_packed",
        )
    if weights.get("actorder") not in (None, False, "weight", "static"):
        weights.refuse("actorder", "none, 'weight' or 'static': groups have to be runs of columns")
    if (found := strategy(weights)) not in ("channel", "group"):
        weights.refuse("strategy", f"channel or group; {found!r} is not known")
    reach, block = ("channel", None) if found == "channel" else _reach(weights)
    return Quantization(
        "compressed-tensors",
        "int4",
        reach,
        "none",
        block,
        ignored,
        kv_cache=kv_cache,
        layout="rows",
        weight="weight_packed",
        zero="" if weights.flag("symmetric", True) else "weight_zero_point",
    )


def _reach(fields: Fields) -> Reach:
    size = fields.integer("group_size", least=-1)
    if size == 0:
        fields.refuse("group_size", "the columns of a group, or -1 for whole rows")
    return ("channel", None) if size < 0 else ("group", (1, size))


def _left_out(fields: Fields) -> tuple[str, ...]:
    """Patterns of GPTQModel's ``dynamic`` for modules that stay dense. Others, for modules that differ, are refused."""
    found = fields.get("dynamic") or {}
    if not isinstance(found, Mapping) or not all(isinstance(key, str) and key.startswith("-:") for key in found):
        fields.refuse("dynamic", "nothing but '-:' patterns, so that all quantised layers are stored alike")
    check_patterns(fields, "dynamic", found)
    return tuple(f"re:{key[2:]}" for key in found)
