"""Programs that multiply stored weights against transformers in float64, written without the code under test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from engine.models import Layout, build_program
from engine.models.config import ModelConfig
from engine.program import Program, Weight
from tests.checkpoints import hf_config, random_weights
from tests.rank_toys import IDS, run

TOP = {"float8_e4m3fn": 448.0, "float8_e4m3fnuz": 240.0, "int8": 127.0}


@dataclass(frozen=True)
class Scheme:
    """As a checkpoint has it. ``columns``: of a group of activations, 0 for the row."""

    config: dict[str, Any]
    storage: str
    weights: str
    block: tuple[int, int] | None = None
    static: bool = False
    columns: int = 0
    scale: str = "weight_scale"


def _tensors(kind: str, weights: dict[str, Any], activations: dict[str, Any]) -> dict[str, Any]:
    groups = {"a": {"targets": ["Linear"], "weights": weights, "input_activations": activations}}
    return {"quant_method": "compressed-tensors", "format": f"{kind}-quantized", "config_groups": groups}


FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
FLOAT, INT = {"type": "float", "num_bits": 8}, {"type": "int", "num_bits": 8}
SCHEMES = {
    "fp8 static": Scheme({**FP8, "activation_scheme": "static"}, "float8_e4m3fn", "tensor", static=True),
    "fp8 static, the other flavour": Scheme(
        {**FP8, "activation_scheme": "static"}, "float8_e4m3fnuz", "tensor", static=True
    ),
    "fp8 dynamic": Scheme(FP8, "float8_e4m3fn", "tensor"),
    "fp8 blocks": Scheme(
        {**FP8, "weight_block_size": [16, 32]}, "float8_e4m3fn", "block", (16, 32), False, 32, "weight_scale_inv"
    ),
    "fp8 blocks that end inside": Scheme(
        {**FP8, "weight_block_size": [32, 24]}, "float8_e4m3fn", "block", (32, 24), False, 24, "weight_scale_inv"
    ),
    "float channel": Scheme(
        _tensors("float", {**FLOAT, "strategy": "channel"}, {**FLOAT, "strategy": "token", "dynamic": True}),
        "float8_e4m3fn",
        "channel",
    ),
    "int8 channel": Scheme(
        _tensors("int", {**INT, "strategy": "channel"}, {**INT, "strategy": "token", "dynamic": True}),
        "int8",
        "channel",
    ),
    "int8 static": Scheme(
        _tensors("int", {**INT, "strategy": "tensor"}, {**INT, "strategy": "tensor"}), "int8", "tensor", static=True
    ),
}


def store(quotient: torch.Tensor, storage: str) -> torch.Tensor:
    """Nearest stored value, by search in all of them; ties go down, which no test value meets."""
    values = torch.arange(256, dtype=torch.uint8).view(getattr(torch, storage)).double()
    values = values[values.isfinite()].unique()
    at = torch.searchsorted((values[1:] + values[:-1]) / 2, quotient.contiguous())
    return values[at]


def spread(scales: torch.Tensor, block: tuple[int, int], shape: torch.Size) -> torch.Tensor:
    return scales.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)[: shape[0], : shape[1]]


def stored_weight(weight: torch.Tensor, scheme: Scheme) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Stored values and scales as a checkpoint has them, and the values they stand for, in float64."""
    rows, columns = weight.shape
    block = {"tensor": (rows, columns), "channel": (1, columns), "block": scheme.block}[scheme.weights]
    assert block is not None
    grid = [[weight[r : r + block[0], c : c + block[1]].abs().max() for c in range(0, columns, block[1])]
            for r in range(0, rows, block[0])]  # fmt: skip
    scales = (torch.tensor(grid) / TOP[scheme.storage]).float()
    whole = spread(scales.double(), block, weight.shape)
    values = store(weight / whole, scheme.storage)
    return values.to(getattr(torch, scheme.storage)), scales, values * whole


def rounded(x: torch.Tensor, scheme: Scheme, scale: float) -> torch.Tensor:
    """Activations as their stored values stand for them."""
    flat = x.flatten(0, -2)
    if scheme.static:
        return (store(flat / scale, scheme.storage) * scale).view_as(x)
    width = scheme.columns or flat.shape[1]
    parts = []
    for part in flat.split(width, 1):
        sides = (part.abs().amax(1, keepdim=True) / TOP[scheme.storage]).float().double()
        parts.append(store(part / sides, scheme.storage) * sides)
    return torch.cat(parts, 1).view_as(x)


def reference(config: dict[str, Any], weights: dict[str, torch.Tensor]) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    known = {name: value for name, value in config.items() if name not in ("quantization_config", "architectures")}
    model = LlamaForCausalLM(LlamaConfig(**known, attn_implementation="eager")).double().eval()
    model.load_state_dict(weights)
    return model


def parts_of(weight: Weight, made: dict[str, torch.Tensor]) -> torch.Tensor:
    tensors = [made[name] for name in weight.tensors]
    if weight.format == "scale largest":
        return torch.stack(tensors).max().view(1)
    if weight.format == "scale tensor":
        rows = [made[name.replace("_scale", "")].shape[0] for name in weight.tensors]
        return torch.cat([x.flatten().expand(n) for x, n in zip(tensors, rows, strict=True)])
    return torch.cat([x.flatten() for x in tensors]) if weight.format == "scale channel" else torch.cat(tensors)


def checkpoint(scheme: Scheme) -> tuple[Program, dict[str, Any], Any]:
    """A program with its weights, and the float64 model whose linear layers round what they are given."""
    key = "modules_to_not_convert" if scheme.config["quant_method"] == "fp8" else "ignore"
    config = hf_config(quantization_config={**scheme.config, key: ["lm_head"]})
    plain = {name: torch.from_numpy(array).double() for name, array in random_weights(config, 11).items()}
    made = {name: tensor.float() for name, tensor in plain.items()}
    unpacked = dict(plain)
    sides: dict[str, torch.Tensor] = {}
    for name, tensor in plain.items():
        module = name.removesuffix(".weight")
        if "_proj" not in name:
            continue
        stored, scales, unpacked[name] = stored_weight(tensor, scheme)
        made[name], made[f"{module}.{scheme.scale}"] = stored, scales
        sides[module] = made[f"{module}.input_scale"] = torch.tensor(0.01 + 0.002 * (len(sides) % 3))
    if scheme.static:
        for layer in range(config["num_hidden_layers"]):
            for parent, names in (("self_attn", "qkv"), ("mlp", ("gate", "up"))):
                group = [f"model.layers.{layer}.{parent}.{part}_proj" for part in names]
                sides |= dict.fromkeys(group, max(sides[module] for module in group))
    model = ModelConfig.from_hf(config, "tiny")
    program = build_program(model, Layout("float32", 4, "float32", storage=scheme.storage))
    truth = reference(config, unpacked)
    for module, side in sides.items():
        truth.get_submodule(module).register_forward_pre_hook(
            lambda _, given, scale=float(side): (rounded(given[0], scheme, scale),)
        )
    return program, {name: parts_of(weight, made) for name, weight in program.weights.items()}, truth


@pytest.mark.parametrize("name", SCHEMES)
def test_a_program_on_stored_weights_equals_the_float64_model_on_what_they_stand_for(name: str) -> None:
    scheme = SCHEMES[name]
    program, weights, truth = checkpoint(scheme)
    assert [call.op for call in program.calls].count("scaled_linear") == 8
    assert [call.op for call in program.calls].count("linear") == 1
    for name, weight in program.weights.items():
        assert (str(weights[name].dtype), tuple(weights[name].shape)) == (f"torch.{weight.dtype}", weight.shape)
    with torch.no_grad():
        expected = truth(torch.tensor([IDS])).logits[0]
    found = run(program, weights).double()
    # A float32 value next to the middle of two steps may fall to the other one, which is a step of an activation.
    assert float((found - expected).norm() / expected.norm()) < 1e-3


def test_modules_that_are_ignored_stay_dense_and_take_their_neighbours_along() -> None:
    ignored = ["model.layers.0.self_attn.k_proj", "model.layers.1.mlp.down_proj"]
    model = ModelConfig.from_hf(hf_config(quantization_config={**FP8, "modules_to_not_convert": ignored}), "tiny")
    program = build_program(model, Layout("float32", 4, "float32", storage="float8_e4m3fn"))
    formats = {name: weight.format for name, weight in program.weights.items()}
    assert formats["0.qkv"] == formats["1.down"] == "dense"
    assert formats["1.qkv"] == formats["0.down"] == formats["0.gate_up"] == "float8 tensor"
    assert program.weights["0.qkv"].dtype == "float32"


def test_blocks_that_would_lie_across_two_modules_are_unpacked() -> None:
    config = hf_config(quantization_config={**FP8, "weight_block_size": [24, 32]})
    layout = Layout("float32", 4, "float32", storage="float8_e4m3fn")
    weights = build_program(ModelConfig.from_hf(config, "tiny"), layout).weights
    assert weights["0.qkv"].format == weights["0.gate_up"].format == "dense"
    assert weights["0.o"].format == weights["0.down"].format == "float8 block"
    assert (weights["0.o.scale"].shape, weights["0.down.scale"].shape) == ((3, 2), (3, 4))


def test_one_value_is_quantised_once_for_two_products() -> None:
    from engine.models.draft import Draft
    from engine.models.layer import Layer

    model = ModelConfig.from_hf(hf_config(quantization_config=FP8), "tiny")
    draft = Draft()
    x = draft.input("x", "float32", "tokens", 64)
    layer = Layer(draft, model, Layout("float32", 4, "float32", storage="float8_e4m3fn"), "0.", "model.layers.0.")
    layer.linear(x, "a", ("a_proj",), 32, 64, "a.out")
    y = layer.linear(x, "b", ("b_proj",), 16, 64, "b.out")
    program = draft.finish(logits=y)
    assert [call.op for call in program.calls] == ["quantize_dynamic", "scaled_linear", "scaled_linear"]
    assert program.calls[1].inputs[:2] == program.calls[2].inputs[:2] == program.calls[0].outputs


def test_without_arithmetic_for_the_storage_the_program_is_that_of_a_dense_model() -> None:
    plain = ModelConfig.from_hf(hf_config(), "tiny")
    layout = Layout("float32", 4, "float32")
    for scheme in SCHEMES.values():
        model = ModelConfig.from_hf(hf_config(quantization_config=scheme.config), "tiny")
        assert build_program(model, layout) == build_program(plain, layout)


def test_a_layout_of_another_kind_of_storage_is_an_error() -> None:
    model = ModelConfig.from_hf(hf_config(quantization_config=FP8), "tiny")
    with pytest.raises(ValueError, match="float8_e4m3fn, the layout multiplies int8"):
        build_program(model, Layout("float32", 4, "float32", storage="int8"))
