"""What predicates may ask about a model and about what was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engine.errors import UserError
from engine.models.config import ModelConfig
from engine.plan.ledger import Ledger
from engine.plan_values import Decision
from platforms.contract import DeviceProfile, Verdict

STAGES = "pipeline_parallel_size"
PARALLEL = ("tensor_parallel_size", STAGES, "data_parallel_size")
DECIDED = {
    "dtype": "model.dtype",
    "mode": "compilation.mode",
    "backend": "compilation.backend",
    "graph_mode": "compilation.graph_mode",
    "kv_cache_dtype": "cache.kv_cache_dtype",
    "block_size": "cache.block_size",
    "max_model_len": "scheduler.max_model_len",
    "max_num_batched_tokens": "scheduler.max_num_batched_tokens",
    "batch_invariant": "batch_invariant",
    **{name: f"parallel.{name}" for name in PARALLEL},
}
"""Facts that are decisions of a plan → their keys."""

FLAVOURS = {
    "float8_e4m3fn": ("float8_e4m3fn", "float8_e4m3fnuz"),
    "int8": ("int8",),
}
"""Stored dtype → dtypes a device may multiply it in, the checkpoint's own first."""
FEATURES = {"float8_e4m3fn": "dtype.fp8_e4m3fn", "float8_e4m3fnuz": "dtype.fp8_e4m3fnuz", "int8": "dtype.int8"}


def float8_of(profile: DeviceProfile) -> str:
    """The 8-bit float that the device keeps keys and values in, torch's name; ``""`` where it has none. Whoever writes
    or reads an 8-bit cache takes the type from the cache, which has it from here."""
    for feature in ("{}", "{}.emulated"):
        for flavour in FLAVOURS["float8_e4m3fn"]:
            if feature.format(FEATURES[flavour]) in profile.features:
                return flavour
    return ""


def model_facts(model: ModelConfig) -> dict[str, Any]:
    """``quantization``: kind of storage and of activations, as in ``float8 static`` or ``int8 token``; ``none``, also
    for blocks of GGUF until a plan knows that they are multiplied as they are (``gguf group``, ``gguf none``)."""
    scheme = model.quantization
    return {
        "model": model,
        "architecture": model.architecture,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "num_heads": model.num_heads,
        "num_kv_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "qk_norm": model.qk_norm,
        "quantized": scheme is not None,
        "quantization": f"{scheme.kind} {scheme.activations}" if scheme else "none",
        "weight_format": model.weight_format,
        "mla": model.mla is not None,
        "moe": model.moe is not None,
    }


def decide_stages(ledger: Ledger, model: ModelConfig) -> None:
    """Say what a count of stages does. Raises ``UserError`` for more stages than there are layers."""
    key = f"parallel.{STAGES}"
    row = ledger.decisions[key]
    if row.value > model.num_layers:
        raise UserError(
            f"{ledger.asked(key)} cannot be served: each stage needs a layer, and {model.name} has "
            f"{model.num_layers} in all. Lower it."
        )
    if row.value > 1:
        ledger.decisions[key] = replace(row, reason="recorded only: layers are not cut into stages")


def decide_storage(profile: DeviceProfile, model: ModelConfig, dtype: str, willing: Mapping[str, Verdict]) -> Decision:
    """The dtype in which the device multiplies quantised weights, ``None`` where they are unpacked; those in blocks are
    ``weight_blocks``'s to decide. ``willing``: what each row that multiplies weights of four bits says of the
    device."""
    key, scheme = "model.quantization", model.quantization
    if scheme is None:
        return Decision(key, None, "derived", "the linear layers are stored dense")
    words = f"{scheme.method}, {scheme.storage} weights per {scheme.weights}, activations {scheme.activations}"
    if scheme.packed:
        found = [name for name, verdict in willing.items() if verdict]
        if found:
            return Decision(key, scheme.storage, "derived", f"{words}; multiplied as they are by {', '.join(found)}")
        said = "; ".join(f"{name}: {verdict.reason}" for name, verdict in willing.items())
        said = said or "the platform has no row that multiplies them"
        return Decision(key, None, "derived", f"{words}: unpacked to {dtype}, {said}")
    if scheme.activations == "none":
        return Decision(key, None, "derived", f"{words}: unpacked to {dtype}")
    for flavour in FLAVOURS.get(scheme.storage, ()):
        if FEATURES[flavour] in profile.features:
            return Decision(key, flavour, "derived", f"{words}; the device multiplies {flavour}")
    wanted = " or ".join(FEATURES[flavour] for flavour in FLAVOURS.get(scheme.storage, ())) or scheme.storage
    return Decision(key, None, "derived", f"{words}: unpacked to {dtype}, the device has no {wanted}")
