"""The field ``quantization_config`` of ``config.json``, or ``compression_config`` as earlier writers called it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Literal

from engine.models.experts_hf import only
from engine.models.fields import Fields
from engine.models.quantization import Quantization
from engine.models.quantization_fields import names, nested, strategy
from engine.models.quantization_four_bits_hf import FOUR_BITS, PACKED_FORMATS, read_awq, read_gptq, read_packed

_KEY, _OLDER = "quantization_config", "compression_config"
_KNOWN = (
    "fp8 (weights per tensor or in blocks, activations static or dynamic), "
    "compressed-tensors (8-bit float or int weights per tensor, channel or block; 4-bit weights, packed), " + FOUR_BITS
)
_STORAGES = {"float": "float8_e4m3fn", "int": "int8"}
_FORMATS = ("float-quantized", "int-quantized", "naive-quantized", *PACKED_FORMATS)


def read_quantization(fields: Fields) -> Quantization | None:
    """``None`` where the field is absent or empty. Raises ``UserError`` naming the field, and for an unknown method
    the methods that are known."""
    key = _KEY if fields.get(_KEY) else _OLDER
    if not fields.get(key):
        return None
    inner = nested(fields, key)
    method = inner.get("quant_method")
    if isinstance(method, str) and method.lower() in _METHODS:
        return _METHODS[method.lower()](inner)
    said = repr(method) if isinstance(method, str) else "no method"
    fields.fail(
        f"field {key!r} names {said} as 'quant_method'; known are {_KNOWN}. Use a checkpoint of one of these, or a "
        "dense one"
    )


def _fp8(fields: Fields) -> Quantization:
    only(fields, "fmt", "e4m3")
    scheme = fields.choice("activation_scheme", ("static", "dynamic"))
    block = _block(fields, "weight_block_size")
    if block and scheme == "static":
        fields.refuse("activation_scheme", "'dynamic', since the weights have blocks")
    activations: Literal["static", "token", "group"] = "static" if scheme == "static" else "group" if block else "token"
    power = fields.choice("scale_fmt", ("ue8m0", "float"), "float") == "ue8m0"
    if power and not block:
        fields.refuse("scale_fmt", "'float' or nothing, since the weights have no blocks")
    return Quantization(
        "fp8",
        "float8_e4m3fn",
        "block" if block else "tensor",
        activations,
        block,
        names(fields, "modules_to_not_convert") + names(fields, "ignored_layers"),
        power,
        "weight_scale_inv" if block else "weight_scale",
        "" if fields.get("kv_cache_scheme") is None else "float8_e4m3fn",
    )


def _compressed_tensors(fields: Fields) -> Quantization:
    if (form := fields.text("format", "naive-quantized")) not in _FORMATS:
        fields.refuse("format", f"{' or '.join(_FORMATS)}; {form!r} is not known")
    for key in ("transform_config", "sparsity_config"):
        found = fields.get(key)
        if found and not (isinstance(found, Mapping) and found.get("format") == "dense"):
            fields.refuse(key, "none")
    groups = nested(fields, "config_groups")
    if len(groups.values) != 1:
        fields.refuse("config_groups", "one group, so that all linear layers are stored alike")
    group = nested(groups, next(iter(groups.values)).removeprefix(groups.prefix))
    only(group, "targets", ["Linear"])
    only(group, "format", form)
    only(group, "output_activations", {})
    weights = nested(group, "weights")
    if weights.flag("dynamic", False):
        weights.refuse("dynamic", "false")
    if form in PACKED_FORMATS:
        return read_packed(group, weights, form, names(fields, "ignore"), _kv_cache(fields))
    kind = _eight_bits(weights)
    reach = strategy(weights)
    if reach not in ("tensor", "channel", "block"):
        weights.refuse("strategy", "tensor or channel or block")
    block = _block(weights, "block_structure") if reach == "block" else None
    if reach == "block" and block is None:
        weights.refuse("block_structure", "the rows and columns of a block")
    return Quantization(
        "compressed-tensors",
        _STORAGES[kind],
        reach,  # type: ignore[arg-type]
        _activations(group, kind, block),
        block,
        names(fields, "ignore"),
        kv_cache=_kv_cache(fields),
    )


def _activations(
    group: Fields, kind: str, block: tuple[int, int] | None
) -> Literal["none", "static", "token", "group"]:
    if group.get("input_activations") is None:
        return "none"
    fields = nested(group, "input_activations")
    _eight_bits(fields, kind)
    reach, dynamic = strategy(fields), fields.get("dynamic") or False
    if (reach, dynamic) == ("tensor", False):
        return "static"
    if (reach, dynamic) == ("token", True):
        return "token"
    if (reach, dynamic) == ("group", True):
        width = fields.integer("group_size")
        if block is None or width != block[1]:
            fields.refuse(
                "group_size", f"the columns of a block of weights, {block[1] if block else 'which have none'}"
            )
        return "group"
    fields.refuse("strategy", f"static tensor, dynamic token or dynamic group; 'dynamic' is {dynamic!r}")


def _eight_bits(fields: Fields, kind: str = "") -> str:
    """``float`` or ``int``. Raises ``UserError`` unless it is ``kind``, where that is given."""
    found = fields.choice("type", (kind,) if kind else tuple(_STORAGES), "int")
    only(fields, "num_bits", 8)
    only(fields, "symmetric", True)
    return found


def _kv_cache(fields: Fields) -> str:
    if fields.get("kv_cache_scheme") is None:
        return ""
    scheme = nested(fields, "kv_cache_scheme")
    _eight_bits(scheme, "float")
    if (strategy(scheme), scheme.get("dynamic") or False) != ("tensor", False):
        fields.refuse("kv_cache_scheme", "one static scale per tensor")
    return "float8_e4m3fn"


def _block(fields: Fields, key: str) -> tuple[int, int] | None:
    found = fields.get(key)
    if found is None:
        return None
    sizes = found.split("x") if isinstance(found, str) else found
    if (
        isinstance(sizes, list | tuple)
        and len(sizes) == 2
        and all(re.fullmatch(r"[1-9]\d{0,6}", str(n)) for n in sizes)
    ):
        return int(sizes[0]), int(sizes[1])
    fields.refuse(key, "the rows and columns of a block, as in [128, 128]")


_METHODS: Mapping[str, Callable[[Fields], Quantization]] = {
    "fp8": _fp8,
    "compressed-tensors": _compressed_tensors,
    "awq": read_awq,
    "gptq": read_gptq,
}
