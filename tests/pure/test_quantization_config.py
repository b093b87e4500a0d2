"""``quantization_config`` as checkpoints write it."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import UserError
from engine.models.config import ModelConfig, Quantization
from tests.checkpoints import hf_config

F8 = "float8_e4m3fn"


def _read(quantization: Any) -> Quantization | None:
    return ModelConfig.from_hf(hf_config("llama", quantization_config=quantization), "tiny").quantization


def _packed(weights: dict[str, Any], activations: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    """As compressed-tensors writes it, nulls included."""
    common = {"num_bits": 8, "symmetric": True, "group_size": None, "observer": "minmax", "actorder": None}
    given = {**common, "dynamic": False, **activations} if activations is not None else None
    group = {
        "targets": ["Linear"],
        "weights": {**common, "dynamic": False, **weights},
        "input_activations": given,
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "quantization_status": "compressed",
        **more,
    }


CHANNEL = {"type": "float", "strategy": "channel"}
TOKEN = {"type": "float", "strategy": "token", "dynamic": True}
BLOCK = {"type": "float", "strategy": "block", "block_structure": [128, 128]}
GROUP = {"type": "float", "strategy": "group", "group_size": 128, "dynamic": True}
KV = {"type": "float", "num_bits": 8, "strategy": "tensor", "dynamic": False, "symmetric": True}
HEAD = ("lm_head",)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, None),
        ({}, None),
        (
            {"quant_method": "fp8", "activation_scheme": "static"},
            Quantization("fp8", F8, "tensor", "static"),
        ),
        (
            {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": None, "fmt": "e4m3"},
            Quantization("fp8", F8, "tensor", "token"),
        ),
        (
            {
                "quant_method": "fp8",
                "activation_scheme": "dynamic",
                "weight_block_size": [128, 64],
                "modules_to_not_convert": ["lm_head"],
            },
            Quantization("fp8", F8, "block", "group", (128, 64), HEAD, scale="weight_scale_inv"),
        ),
        (
            {
                "quant_method": "fp8",
                "activation_scheme": "dynamic",
                "weight_block_size": [128, 128],
                "scale_fmt": "ue8m0",
            },
            Quantization("fp8", F8, "block", "group", (128, 128), (), True, "weight_scale_inv"),
        ),
        (_packed(CHANNEL, TOKEN), Quantization("compressed-tensors", F8, "channel", "token", None, HEAD)),
        (_packed(CHANNEL, None), Quantization("compressed-tensors", F8, "channel", "none", None, HEAD)),
        (_packed(BLOCK, GROUP), Quantization("compressed-tensors", F8, "block", "group", (128, 128), HEAD)),
        (
            _packed({**BLOCK, "block_structure": "128x128"}, TOKEN),
            Quantization("compressed-tensors", F8, "block", "token", (128, 128), HEAD),
        ),
        (
            _packed({"type": "float"}, {"type": "float", "strategy": "tensor"}, kv_cache_scheme=KV),
            Quantization("compressed-tensors", F8, "tensor", "static", None, HEAD, kv_cache=F8),
        ),
        (
            _packed({"group_size": -1}, {"strategy": "token", "dynamic": True}, format="int-quantized"),
            Quantization("compressed-tensors", "int8", "channel", "token", None, HEAD),
        ),
        (
            _packed({"strategy": "tensor"}, {"strategy": "tensor"}, format="int-quantized", ignore=["re:.*gate$"]),
            Quantization("compressed-tensors", "int8", "tensor", "static", None, ("re:.*gate$",)),
        ),
    ],
)
def test_methods(given: Any, expected: Quantization | None) -> None:
    assert _read(given) == expected


@pytest.mark.parametrize(
    ("given", "words"),
    [
        *(
            ({"quant_method": name}, [repr(name), "fp8", "compressed-tensors"])
            for name in ("awq_marlin", "modelopt", "bitsandbytes", "fbgemm_fp8", "mxfp4")
        ),
        ({"bits": 4}, ["no method", "quant_method"]),
        ("fp8", ["quantization_config", "an object"]),
        ({"quant_method": "fp8"}, ["quantization_config.activation_scheme"]),
        ({"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e5m2"}, ["fmt", "e4m3"]),
        (
            {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": [128, 128]},
            ["activation_scheme", "blocks"],
        ),
        (
            {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128]},
            ["weight_block_size", "[128, 128]"],
        ),
        ({"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [0, True]}, ["block_size"]),
        ({"quant_method": "fp8", "activation_scheme": "dynamic", "ignored_layers": "lm_head"}, ["ignored_layers"]),
        ({"quant_method": "fp8", "activation_scheme": "dynamic", "scale_fmt": "ue8m0"}, ["scale_fmt"]),
        (_packed(CHANNEL, TOKEN, format="marlin-24"), ["format", "marlin-24", "pack-quantized"]),
        (_packed(CHANNEL, TOKEN, format="nvfp4-pack-quantized"), ["nvfp4-pack-quantized"]),
        (_packed(CHANNEL, TOKEN, config_groups={}), ["config_groups", "one group"]),
        (_packed(CHANNEL, TOKEN, sparsity_config={"format": "sparse-24-bitmask"}), ["sparsity_config"]),
        (_packed(CHANNEL, TOKEN, transform_config={"config_groups": {"a": {}}}), ["transform_config"]),
        (_packed(CHANNEL, TOKEN, ignore=["re:("]), ["ignore", "re:("]),
        (_packed({**CHANNEL, "num_bits": 4}, TOKEN), ["group_0.weights.num_bits", "4"]),
        (_packed({"type": "int", "strategy": "group", "group_size": 128}, None), ["weights.strategy", "group"]),
        (_packed({**CHANNEL, "symmetric": False}, TOKEN), ["weights.symmetric"]),
        (_packed(CHANNEL, {**TOKEN, "symmetric": False}), ["input_activations.symmetric"]),
        (_packed(CHANNEL, {**TOKEN, "type": "int"}), ["input_activations.type"]),
        (_packed(CHANNEL, {**TOKEN, "dynamic": "local"}), ["input_activations.strategy", "local"]),
        (_packed(CHANNEL, {**TOKEN, "strategy": "tensor"}), ["input_activations.strategy", "True"]),
        (_packed(CHANNEL, GROUP), ["group_size", "have none"]),
        (_packed(BLOCK, {**GROUP, "group_size": 64}), ["group_size", "128"]),
        (_packed({"type": "float", "strategy": "block"}, GROUP), ["block_structure"]),
        (_packed(CHANNEL, TOKEN, kv_cache_scheme={**KV, "num_bits": 4}), ["kv_cache_scheme.num_bits"]),
        (_packed(CHANNEL, TOKEN, kv_cache_scheme={**KV, "dynamic": True}), ["kv_cache_scheme"]),
    ],
)
def test_what_is_not_known_is_refused_by_field(given: Any, words: list[str]) -> None:
    with pytest.raises(UserError, match=r"config\.json of tiny") as caught:
        _read(given)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("ignored", "module", "dense"),
    [
        ("lm_head", "lm_head", True),
        ("model.layers.1.mlp", "model.layers.1.mlp.down_proj", True),
        ("model.layers.1", "model.layers.10.mlp.down_proj", False),
        ("mlp.gate", "model.layers.0.mlp.gate", True),
        ("mlp.gate", "model.layers.0.mlp.gate_proj", False),
        ("re:.*self_attn.*", "model.layers.0.self_attn.q_proj", True),
        ("re:self_attn.*", "model.layers.0.self_attn.q_proj", False),
        (r"re:.*\.0\..*proj$", "model.layers.0.mlp.up_proj", True),
    ],
)
def test_ignored_modules(ignored: str, module: str, dense: bool) -> None:
    scheme = Quantization("fp8", F8, "tensor", "static", ignored=("embed_tokens", ignored))
    assert scheme.ignores(module) is dense


def test_names_of_earlier_writers_are_read() -> None:
    given = {"quant_method": "FP8", "activation_scheme": "dynamic"}
    found = ModelConfig.from_hf(hf_config("llama", compression_config=given), "tiny").quantization
    assert found == _read({**given, "quant_method": "fp8"}) and found is not None
