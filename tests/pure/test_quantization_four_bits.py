"""``quantization_config`` of four-bit checkpoints, as AutoAWQ, AutoGPTQ, GPTQModel and llm-compressor write it."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import UserError
from engine.models.config import ModelConfig, Quantization
from tests.checkpoints import hf_config

AWQ = {
    "quant_method": "awq",
    "bits": 4,
    "group_size": 128,
    "zero_point": True,
    "version": "gemm",
    "modules_to_not_convert": None,
}
GPTQ = {
    "quant_method": "gptq",
    "bits": 4,
    "group_size": 128,
    "damp_percent": 0.01,
    "desc_act": False,
    "sym": True,
    "lm_head": False,
    "dynamic": None,
    "modules_in_block_to_quantize": None,
    "true_sequential": True,
}
NAMES = {"weight": "qweight", "scale": "scales", "zero": "qzeros"}
IN_ROWS = {"layout": "rows", "weight": "weight_packed"}
MX = {"type": "float", "group_size": 32, "strategy": "group"}


def packed(form: str = "pack-quantized", activations: Any = None, **weights: Any) -> dict[str, Any]:
    common = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128}
    group = {"targets": ["Linear"], "weights": {**common, "dynamic": False, "actorder": None, **weights}}
    group |= {"input_activations": activations, "output_activations": None}
    ignore = {"ignore": ["lm_head"], "kv_cache_scheme": None, "quantization_status": "compressed"}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}, **ignore}


def read(given: Any) -> Quantization | None:
    return ModelConfig.from_hf(hf_config("llama", quantization_config=given), "tiny").quantization


def int4(method: str, group: int | None, **more: Any) -> Quantization:
    reach, block = ("group", (1, group)) if group else ("channel", None)
    return Quantization(method, "int4", reach, "none", block, **more)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (AWQ, int4("awq", 128, layout="awq", **NAMES)),
        ({**AWQ, "version": "GEMM", "zero_point": False, "group_size": -1}, int4("awq", None, layout="awq", **NAMES)),
        (
            {**AWQ, "modules_to_not_convert": ["mlp.gate"]},
            int4("awq", 128, layout="awq", ignored=(r"re:.*mlp\.gate",), **NAMES),
        ),
        (GPTQ, int4("gptq", 128, layout="gptq", one_less=True, **NAMES)),
        ({**GPTQ, "checkpoint_format": "gptq_v2", "group_size": 32}, int4("gptq", 32, layout="gptq", **NAMES)),
        ({**GPTQ, "desc_act": True}, int4("gptq", 128, layout="gptq", one_less=True, ordered=True, **NAMES)),
        ({**GPTQ, "desc_act": True, "group_size": -1}, int4("gptq", None, layout="gptq", one_less=True, **NAMES)),
        (
            {**GPTQ, "dynamic": {r"-:.*\.mlp\..*": {}}},
            int4("gptq", 128, layout="gptq", one_less=True, ignored=(r"re:.*\.mlp\..*",), **NAMES),
        ),
        (packed(), int4("compressed-tensors", 128, ignored=("lm_head",), **IN_ROWS)),
        (packed(actorder="static"), int4("compressed-tensors", 128, ignored=("lm_head",), **IN_ROWS)),
        (
            packed(symmetric=False),
            int4("compressed-tensors", 128, ignored=("lm_head",), zero="weight_zero_point", **IN_ROWS),
        ),
        (
            packed(strategy="channel", group_size=None),
            int4("compressed-tensors", None, ignored=("lm_head",), **IN_ROWS),
        ),
        (
            packed("mxfp4-pack-quantized", **MX),
            Quantization(
                "compressed-tensors",
                "mxfp4",
                "group",
                "none",
                (1, 32),
                ("lm_head",),
                True,
                layout="pairs",
                weight="weight_packed",
            ),
        ),
    ],
)
def test_methods(given: Any, expected: Quantization) -> None:
    assert read(given) == expected
    assert expected.packed and expected.kind in ("int4", "mxfp4")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({**AWQ, "bits": 8}, ["quantization_config.bits", "8", "expected 4"]),
        ({**AWQ, "version": "gemv"}, ["quantization_config.version", "gemv", "gemm"]),
        ({**AWQ, "backend": "llm-awq"}, ["quantization_config.backend", "llm-awq"]),
        ({**AWQ, "group_size": 0}, ["quantization_config.group_size", "0", "-1"]),
        ({**AWQ, "group_size": None}, ["quantization_config.group_size", "missing"]),
        ({**AWQ, "zero_point": "yes"}, ["quantization_config.zero_point"]),
        ({**GPTQ, "bits": 3}, ["quantization_config.bits", "3", "expected 4"]),
        ({**GPTQ, "checkpoint_format": "marlin"}, ["checkpoint_format", "marlin", "gptq or gptq_v2"]),
        ({**GPTQ, "pack_dtype": "int8"}, ["pack_dtype", "int8", "int32"]),
        ({**GPTQ, "is_marlin_format": True}, ["is_marlin_format"]),
        ({**GPTQ, "dynamic": {"+:.*down.*": {"bits": 8}}}, ["dynamic", "-:"]),
        ({**GPTQ, "dynamic": {"-:(": {}}}, ["dynamic", "-:("]),
        ({**GPTQ, "modules_in_block_to_quantize": [["self_attn.q_proj"]]}, ["modules_in_block_to_quantize"]),
        (packed(num_bits=8), ["group_0.weights.num_bits", "8", "expected 4"]),
        (packed(type="float"), ["group_0.weights.type", "float", "int"]),
        (packed(strategy="tensor"), ["group_0.weights.strategy", "tensor", "channel or group"]),
        (packed(actorder="group"), ["group_0.weights.actorder", "group"]),
        (packed(group_size=None), ["group_0.weights.group_size", "missing"]),
        (packed(activations={"num_bits": 8, "type": "int"}), ["group_0.input_activations", "weights alone"]),
        (packed("mxfp4-pack-quantized", **{**MX, "group_size": 16}), ["group_0.weights.group_size", "16", "32"]),
        (packed("mxfp4-pack-quantized", **MX, symmetric=False), ["group_0.weights.symmetric"]),
        (packed("mxfp4-pack-quantized", **MX, scale_dtype="torch.float8_e4m3fn"), ["weights.scale_dtype"]),
        (packed("mxfp4-pack-quantized", **{**MX, "type": "int"}), ["group_0.weights.type", "int", "float"]),
    ],
)
def test_what_is_not_known_is_refused_by_field(given: Any, words: list[str]) -> None:
    with pytest.raises(UserError, match=r"config\.json of tiny") as caught:
        read(given)
    for word in words:
        assert word in str(caught.value)


def test_AWQ_leaves_out_every_name_that_holds_an_entry() -> None:
    found = read({**AWQ, "modules_to_not_convert": ["gate", "layers.1"]})
    assert found is not None
    for module in ("model.layers.0.mlp.gate", "model.layers.0.mlp.gate_proj", "model.layers.11.mlp.up_proj"):
        assert found.ignores(module)
    assert not found.ignores("model.layers.2.mlp.up_proj")
