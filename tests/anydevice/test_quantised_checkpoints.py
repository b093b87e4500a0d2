"""Checkpoints of 8-bit weights: loaded as stored, and unpacked where the device does not multiply them."""

from __future__ import annotations

import json
import logging

import pytest
import torch
from safetensors.torch import save_file

from engine import LLM, SamplingParams
from engine.errors import UserError
from engine.load import load_weights
from engine.models import Layout, build_program
from engine.weights.checkpoint import open_checkpoint
from platforms.cpu.plugin import CpuPlugin
from tests.anydevice.test_quantised_programs import SCHEMES, parts_of, reference, stored_weight
from tests.checkpoints import hf_config, random_weights
from tests.word_tokenizer import write_word_tokenizer

PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPT = list(range(3, 20))
HERE = [name for name in SCHEMES if "other flavour" not in name]


def made_of(scheme, seed=11):
    """Config, tensors as stored, and the dense weights they stand for, in float64."""
    key = "modules_to_not_convert" if scheme.config["quant_method"] == "fp8" else "ignore"
    config = hf_config(quantization_config={**scheme.config, key: ["lm_head"]})
    plain = {name: torch.from_numpy(array).double() for name, array in random_weights(config, seed).items()}
    tensors, dense = {name: tensor.float() for name, tensor in plain.items()}, dict(plain)
    for at, (name, tensor) in enumerate(plain.items()):
        if "_proj.weight" in name:
            module = name.removesuffix(".weight")
            tensors[name], tensors[f"{module}.{scheme.scale}"], dense[name] = stored_weight(tensor, scheme)
            if scheme.weights == "tensor":
                tensors[f"{module}.{scheme.scale}"] = tensors[f"{module}.{scheme.scale}"].reshape([(), (1,)][at % 2])
            if scheme.static:
                tensors[f"{module}.input_scale"] = torch.tensor(0.01 + 0.002 * (at % 3))
    return config, tensors, dense


def write(folder, config, tensors):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, folder / "model.safetensors")
    write_word_tokenizer(folder, config["vocab_size"])
    return folder


def greedy(model, count):
    ids = list(PROMPT)
    with torch.no_grad():
        for _ in range(count):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(PROMPT) :]


def loaded(folder, storage, cache="float32"):
    checkpoint = open_checkpoint(folder)
    program = build_program(checkpoint.config, Layout("float32", 4, cache, storage=storage))
    runtime = CpuPlugin().open(0)
    try:
        return program, checkpoint, dict(load_weights(program, checkpoint, runtime))
    finally:
        runtime.close()


def answer(folder, **settings):
    settings |= {"dtype": "float32", "kv_cache_dtype": "float32", "max_model_len": 64}
    with LLM(str(folder), platform="cpu", **settings) as llm:
        return list(llm.generate([PROMPT], PARAMS, use_tqdm=False)[0].outputs[0].token_ids)


@pytest.mark.parametrize("name", HERE)
def test_weights_and_scales_load_as_they_are_stored(name, tmp_path):
    config, tensors, _ = made_of(SCHEMES[name])
    program, checkpoint, found = loaded(write(tmp_path / "m", config, tensors), SCHEMES[name].storage)
    for weight in program.weights.values():
        got, wanted = found[weight.name], parts_of(weight, tensors)
        assert (str(got.dtype), tuple(got.shape)) == (f"torch.{weight.dtype}", weight.shape)
        assert torch.equal(got.double(), wanted.double().view(weight.shape)), weight.name
    assert max(checkpoint.reads.values()) == 1


@pytest.mark.parametrize("name", [name for name in HERE if "int8" not in name])
def test_where_the_device_does_not_multiply_them_they_are_unpacked(name, tmp_path):
    config, tensors, dense = made_of(SCHEMES[name])
    folder = write(tmp_path / "m", config, tensors)
    assert answer(folder) == greedy(reference(config, dense), PARAMS.max_tokens)


@pytest.mark.parametrize("name", [name for name in HERE if "int8" in name])
def test_where_the_device_multiplies_them_its_kernels_answer_as_the_references(name, tmp_path):
    config, tensors, _ = made_of(SCHEMES[name])
    folder = write(tmp_path / "m", config, tensors)
    assert answer(folder) == answer(folder, kernels="reference")


@pytest.mark.parametrize("name", ["fp8 static", "fp8 blocks", "float channel"])
def test_the_other_flavour_stands_for_the_same_values(name, tmp_path):
    """The same bits mean half as much there, so that scales double; minus zero becomes zero, not a NaN."""
    config, tensors, _ = made_of(SCHEMES[name])
    first = next(key for key in tensors if "q_proj.weight" in key and "scale" not in key)
    tensors[first].view(torch.uint8)[0, 0] = 0x80
    folder = write(tmp_path / "m", config, tensors)
    _, _, one = loaded(folder, "float8_e4m3fn")
    program, _, other = loaded(folder, "float8_e4m3fnuz")
    for weight in program.weights.values():
        if weight.format.startswith("float8"):
            assert other[weight.name].dtype == torch.float8_e4m3fnuz and not other[weight.name].float().isnan().any()
            assert torch.equal(2 * other[weight.name].float(), one[weight.name].float())
        elif weight.format.startswith("scale"):
            assert torch.equal(other[weight.name], 2 * one[weight.name])


@pytest.mark.parametrize("shape", [(), (1,), (3,)])
def test_H_QNT_01_one_scale_for_a_merged_projection(shape, tmp_path):
    config, tensors, dense = made_of(SCHEMES["fp8 dynamic"])
    scale = torch.tensor([0.01, 0.02, 0.03] if shape == (3,) else [0.02]).view(shape)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}.self_attn."
        parts = [tensors.pop(f"{at}{side}_proj.weight") for side in "qkv"]
        for number, (side, part) in enumerate(zip("qkv", parts, strict=True)):
            del tensors[f"{at}{side}_proj.weight_scale"]
            dense[f"{at}{side}_proj.weight"] = part.double() * float(scale.flatten()[number % scale.numel()])
        tensors[f"{at}qkv_proj.weight"] = torch.cat(parts)
        tensors[f"{at}qkv_proj.weight_scale"] = scale
    folder = write(tmp_path / "m", config, tensors)
    assert answer(folder) == greedy(reference(config, dense), PARAMS.max_tokens)
    _, _, found = loaded(folder, "float8_e4m3fn")
    whole = found["0.qkv"].double() * found["0.qkv.scale"].double()[:, None]
    wanted = torch.cat([dense[f"model.layers.0.self_attn.{side}_proj.weight"] for side in "qkv"])
    torch.testing.assert_close(whole, wanted)


def test_gates_stored_as_one_are_taken_apart(tmp_path):
    config = hf_config()
    plain = {name: torch.from_numpy(array) for name, array in random_weights(config, 3).items()}
    expected = answer(write(tmp_path / "apart", config, plain))
    for layer in range(2):
        at = f"model.layers.{layer}.mlp."
        parts = [plain.pop(f"{at}{side}_proj.weight") for side in ("gate", "up")]
        plain[f"{at}gate_up_proj.weight"] = torch.cat(parts)
    assert answer(write(tmp_path / "one", config, plain)) == expected


@pytest.mark.parametrize("given", [(), ("k",), ("v",), ("k", "v")])
def test_H_QNT_02_scales_of_keys_and_values_that_are_missing(given, tmp_path, caplog):
    config, tensors, _ = made_of(SCHEMES["fp8 dynamic"])
    for layer in range(2):
        for side in given:
            tensors[f"model.layers.{layer}.self_attn.attn.{side}_scale"] = torch.tensor(0.5 + layer)
    folder = write(tmp_path / "m", config, tensors)
    with caplog.at_level(logging.WARNING, "engine"):
        _, _, found = loaded(folder, "", cache="float8_e4m3fn")
    for layer in range(2):
        for side in "kv":
            assert found[f"{layer}.{side}_scale"].tolist() == [0.5 + layer if side in given else 1.0]
    lines = [record.getMessage() for record in caplog.records if "_scale" in record.getMessage()]
    assert len(lines) == (0 if len(given) == 2 else 1)
    assert all("in 2 layers" in line and "1.0" in line for line in lines)
    _, _, other = loaded(folder, "", cache="float8_e4m3fnuz")
    assert all(torch.equal(other[name], 2 * found[name]) for name in found if name.endswith(("k_scale", "v_scale")))


@pytest.mark.parametrize("dtype", [torch.float64, torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("scheme", ["fp8 dynamic", ""])
def test_a_scale_of_keys_that_is_no_float_of_a_scale_is_refused_by_name(scheme, dtype, tmp_path):
    config, tensors, dense = made_of(SCHEMES[scheme or "fp8 dynamic"])
    if not scheme:
        del config["quantization_config"]
        tensors = {name: tensor.float() for name, tensor in dense.items()}
    tensors["model.layers.1.self_attn.k_scale"] = torch.ones(1, dtype=dtype)
    folder = write(tmp_path / "m", config, tensors)
    with pytest.raises(UserError, match=r"layers\.1\.self_attn\.k_scale.*one value in float32"):
        loaded(folder, "", cache="float8_e4m3fn")


def fuse(tensors, layer, fused, parts):
    at = f"model.layers.{layer}."
    tensors[f"{at}{fused}.weight"] = torch.cat([tensors.pop(f"{at}{part}.weight") for part in parts])


FUSED = {
    "self_attn.qkv_proj": [f"self_attn.{side}_proj" for side in "qkv"],
    "mlp.gate_up_proj": ["mlp.gate_proj", "mlp.up_proj"],
}


@pytest.mark.parametrize("name", ["fp8 dynamic", "int8 channel"])
@pytest.mark.parametrize(
    "listed",
    [["self_attn.qkv_proj", "mlp.gate_up_proj"], ["re:.*(qkv|gate_up)_proj"],
     [f"model.layers.{layer}.{fused}" for layer in range(2) for fused in FUSED]],
    ids=["names", "pattern", "whole names"],
)  # fmt: skip
def test_a_dense_module_that_holds_several_is_listed_under_its_own_name(listed, name, tmp_path):
    scheme = SCHEMES[name]
    config, tensors, dense = made_of(scheme)
    key = "modules_to_not_convert" if scheme.config["quant_method"] == "fp8" else "ignore"
    config["quantization_config"] = {**config["quantization_config"], key: ["lm_head", *listed]}
    for fused, parts in FUSED.items():
        for layer in range(config["num_hidden_layers"]):
            for part in parts:
                module = f"model.layers.{layer}.{part}"
                del tensors[f"{module}.{scheme.scale}"]
                tensors[f"{module}.weight"] = dense[f"{module}.weight"].float()
            fuse(tensors, layer, fused, parts)
    folder = write(tmp_path / "m", config, tensors)
    program, _, found = loaded(folder, scheme.storage)
    assert program.weights["0.qkv"].format == "dense" and program.weights["0.o"].format != "dense"
    assert torch.equal(found["1.qkv"], tensors["model.layers.1.self_attn.qkv_proj.weight"])
    assert answer(folder) == greedy(reference(config, dense), PARAMS.max_tokens)


def test_a_listed_name_of_several_modules_says_nothing_of_modules_stored_apart(tmp_path):
    """A pattern for another part of a model, such as that for images, may match it."""
    config, tensors, _ = made_of(SCHEMES["fp8 dynamic"])
    config["quantization_config"]["modules_to_not_convert"] += ["re:.*attn.qkv.*"]
    folder = write(tmp_path / "m", config, tensors)
    assert loaded(folder, "float8_e4m3fn")[0].weights["0.qkv"].format != "dense"


def broken(change, tmp_path, scheme="fp8 static"):
    config, tensors, _ = made_of(SCHEMES[scheme])
    change(tensors)
    with pytest.raises(UserError) as caught:
        loaded(write(tmp_path / "m", config, tensors), SCHEMES[scheme].storage)
    return str(caught.value)


Q = "model.layers.0.self_attn.q_proj"


def test_what_is_missing_or_of_another_kind_is_named(tmp_path):
    said = broken(lambda tensors: tensors.pop(f"{Q}.weight_scale"), tmp_path)
    assert f"{Q}.weight_scale" in said and "missing" in said
    said = broken(lambda tensors: tensors.pop(f"{Q}.input_scale"), tmp_path)
    assert f"{Q}.input_scale" in said and "missing" in said
    said = broken(lambda tensors: tensors.update({f"{Q}.weight_scale": torch.ones(2)}), tmp_path)
    assert f"{Q}.weight_scale" in said and "[2]" in said
    said = broken(lambda tensors: tensors.update({f"{Q}.weight": torch.ones(64, 64)}), tmp_path)
    assert f"{Q}.weight" in said and "float32" in said and "float8_e4m3fn" in said
    said = broken(lambda tensors: tensors.update({f"{Q}.weight_scale_inv": torch.ones(1, 1)}), tmp_path, "fp8 blocks")
    assert f"{Q}.weight_scale_inv" in said and "[4, 2]" in said


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_that_scales_nothing_is_refused(value, tmp_path):
    said = broken(lambda tensors: tensors.update({f"{Q}.weight_scale": torch.tensor(value)}), tmp_path)
    assert f"{Q}.weight_scale" in said and "above zero" in said


def test_scales_in_bfloat16(tmp_path):
    config, tensors, _ = made_of(SCHEMES["int8 channel"])
    for name in list(tensors):
        if name.endswith("_scale"):
            tensors[name] = tensors[name].bfloat16()
    _, _, found = loaded(write(tmp_path / "m", config, tensors), "int8")
    assert torch.equal(found["0.o.scale"], tensors["model.layers.0.self_attn.o_proj.weight_scale"].float().flatten())


def test_a_head_that_writers_leave_dense_without_saying_so(tmp_path):
    config, tensors, dense = made_of(SCHEMES["fp8 dynamic"])
    config["quantization_config"]["modules_to_not_convert"] = []
    folder = write(tmp_path / "m", config, tensors)
    assert answer(folder) == greedy(reference(config, dense), PARAMS.max_tokens)


@pytest.mark.parametrize("name", ["model.norm.weight", "model.embed_tokens.weight", "lm_head.weight"])
@pytest.mark.parametrize("storage", ["float8_e4m3fn", ""])
def test_a_weight_stored_quantised_that_the_config_calls_dense_is_refused(name, storage, tmp_path):
    config, tensors, _ = made_of(SCHEMES["fp8 dynamic"])
    tensors[name] = tensors[name].to(torch.float8_e4m3fn)
    with pytest.raises(UserError, match=f"{name}.*float8_e4m3fn.*not quantised"):
        loaded(write(tmp_path / "m", config, tensors), storage)
