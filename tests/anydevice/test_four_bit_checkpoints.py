"""Checkpoints of four-bit weights: multiplied as they are stored, and unpacked where no kernel does that."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import UserError
from engine.load import load_weights
from engine.models import Layout, build_program
from engine.ops.packed import unpack
from engine.weights.checkpoint import open_checkpoint
from platforms.cpu.plugin import CpuPlugin
from tests.anydevice.test_quantised_checkpoints import PARAMS, answer, greedy, loaded, write
from tests.anydevice.test_quantised_programs import reference
from tests.checkpoints import hf_config, random_weights
from tests.expert_checkpoints import expert_config, write_expert_model
from tests.four_bit_files import SCHEMES, pack
from tests.rank_toys import run
from tests.word_tokenizer import write_word_tokenizer

Q = "model.layers.0.self_attn.q_proj"


def made_of(scheme, architecture="llama", **changes):
    """Config, tensors of the file, packed matrices by module, and the weights they stand for, in float64."""
    config = hf_config(architecture, quantization_config=scheme.config, **changes)
    plain = {name: torch.from_numpy(array).double() for name, array in random_weights(config, 11).items()}
    tensors, dense, matrices = {name: tensor.float() for name, tensor in plain.items()}, dict(plain), {}
    for name, tensor in plain.items():
        if name.endswith("_proj.weight"):
            module = name.removesuffix(".weight")
            matrices[module] = made = pack(tensor.numpy(), scheme)
            del tensors[name]
            tensors |= {f"{module}.{end}": as_tensor(array) for end, array in made.tensors.items()}
            dense[name] = torch.from_numpy(made.dense)
    return config, tensors, matrices, dense


def as_tensor(array):
    return torch.from_numpy(np.ascontiguousarray(array))


def storage_of(scheme):
    return "mxfp4" if scheme.layout == "pairs" else "int4"


@pytest.mark.parametrize("name", SCHEMES)
def test_tokens_where_they_are_unpacked_are_those_of_transformers(name, tmp_path, caplog):
    config, tensors, _, dense = made_of(SCHEMES[name])
    with caplog.at_level(logging.WARNING, "engine"):
        found = answer(write(tmp_path / "m", config, tensors))
    assert found == greedy(reference(config, dense), PARAMS.max_tokens)
    assert not [line for line in caplog.messages if "ignored" in line]


@pytest.mark.parametrize("name", SCHEMES)
def test_packed_weights_are_what_the_file_says(name, tmp_path):
    scheme = SCHEMES[name]
    config, tensors, matrices, _ = made_of(scheme)
    program, checkpoint, found = loaded(write(tmp_path / "m", config, tensors), storage_of(scheme))
    assert [call.op for call in program.calls].count("packed_linear") == 8
    assert [call.op for call in program.calls].count("linear") == 1
    for weight in program.weights.values():
        assert (str(found[weight.name].dtype), found[weight.name].shape) == (f"torch.{weight.dtype}", weight.shape)
    for weight in (one for one in program.weights.values() if one.format.startswith("packed ")):
        made = [matrices[tensor.rpartition(".")[0]] for tensor in weight.tensors]
        values, scales, zeros = (np.concatenate([getattr(one, side) for one in made]) for side in
                                 ("values", "scales", "zeros"))  # fmt: skip
        assert np.array_equal(unpack(found[weight.name], values.shape[1]).numpy(), values)
        assert np.array_equal(found[f"{weight.name}.scale"].numpy(), scales)
        if scheme.zeros:
            assert np.array_equal(found[f"{weight.name}.zero"].numpy(), zeros)
        else:
            assert f"{weight.name}.zero" not in program.weights
    assert set(checkpoint.reads.values()) == {1} and set(checkpoint.reads) == set(checkpoint.tensors)


@pytest.mark.parametrize("name", SCHEMES)
def test_a_packed_program_equals_the_dense_one(name, tmp_path):
    scheme = SCHEMES[name]
    config, tensors, _, _ = made_of(scheme, "qwen2")
    folder = write(tmp_path / "m", config, tensors)
    (program, _, weights), (plain, _, dense) = (loaded(folder, storage) for storage in (storage_of(scheme), ""))
    assert "packed_linear" not in {call.op for call in plain.calls} and "0.qkv.bias" in program.weights
    torch.testing.assert_close(run(program, weights), run(plain, dense), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("storage", ["int4", ""])
@pytest.mark.parametrize("name", ["awq", "gptq", "packed asymmetric"])
def test_every_byte_is_counted_once(name, storage, tmp_path):
    config, tensors, *_ = made_of(SCHEMES[name])
    checkpoint = open_checkpoint(write(tmp_path / "m", config, tensors))
    counts = []
    runtime = CpuPlugin().open(0)
    program = build_program(checkpoint.config, Layout("float32", 4, "float32", storage=storage))
    dict(load_weights(program, checkpoint, runtime, counts.append))
    runtime.close()
    assert sum(counts) == checkpoint.nbytes == sum(tensor.nbytes for tensor in tensors.values())
    assert set(checkpoint.reads.values()) == {1}


@pytest.mark.parametrize(("group", "packed"), [(16, 0), (96, 0), (128, 2), (64, 8)])
def test_groups_that_the_op_does_not_have_are_unpacked(group, packed, tmp_path):
    """Of 16 columns, or of more than a row has, or with a rest."""
    given = SCHEMES["gptq"]
    scheme = replace(given, group=group, config={**given.config, "group_size": group})
    config, tensors, _, dense = made_of(scheme)
    folder = write(tmp_path / "m", config, tensors)
    program, _, weights = loaded(folder, "int4")
    assert [call.op for call in program.calls].count("packed_linear") == packed
    assert answer(folder) == greedy(reference(config, dense), PARAMS.max_tokens)
    torch.testing.assert_close(run(program, weights), run(*loaded(folder, "")[::2]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["awq", "gptq", "packed asymmetric", "mxfp4"])
def test_modules_that_stay_dense_take_their_neighbours_along(name, tmp_path):
    scheme = SCHEMES[name]
    config, tensors, _, dense = made_of(scheme)
    key = {"awq": "modules_to_not_convert", "gptq": "dynamic"}.get(scheme.layout, "ignore")
    left = {"-:model.layers.0.self_attn.k_proj": {}} if key == "dynamic" else ["lm_head", "layers.0.self_attn.k_proj"]
    config["quantization_config"] = {**scheme.config, key: left}
    module = "model.layers.0.self_attn.k_proj"
    tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(f"{module}.")}
    tensors[f"{module}.weight"] = dense[f"{module}.weight"].float()
    folder = write(tmp_path / "m", config, tensors)
    program, _, weights = loaded(folder, storage_of(scheme))
    assert program.weights["0.qkv"].format == "dense" and program.weights["1.qkv"].format != "dense"
    assert answer(folder) == greedy(reference(config, dense), PARAMS.max_tokens)
    torch.testing.assert_close(run(program, weights), run(*loaded(folder, "")[::2]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["awq", "gptq", "packed symmetric"])
def test_a_head_of_four_bits_is_unpacked(name, tmp_path):
    config, tensors, _, dense = made_of(SCHEMES[name])
    config["quantization_config"] = {**SCHEMES[name].config, "ignore": []}
    made = pack(dense["lm_head.weight"].numpy(), SCHEMES[name])
    del tensors["lm_head.weight"]
    tensors |= {f"lm_head.{end}": as_tensor(array) for end, array in made.tensors.items()}
    dense["lm_head.weight"] = torch.from_numpy(made.dense)
    folder = write(tmp_path / "m", config, tensors)
    assert answer(folder) == greedy(reference(config, dense), PARAMS.max_tokens)


@pytest.mark.parametrize("name", ["awq", "gptq", "packed asymmetric"])
@pytest.mark.parametrize("storage", ["int4", ""])
def test_rows_that_are_rotated_in_pairs_and_experts(name, storage, tmp_path):
    """DeepSeek's checkpoints keep some rows in another order than they are multiplied in, whatever the layout."""
    scheme = replace(SCHEMES[name], group=0)
    config = expert_config("deepseek_v2", num_hidden_layers=2, q_lora_rank=32, v_head_dim=16, moe_intermediate_size=64)
    folder = tmp_path / "plain"
    write_expert_model(folder, config, seed=3)
    write_word_tokenizer(folder, 160)
    plain, tensors = load_file(folder / "model.safetensors"), {}
    for key, tensor in plain.items():
        if not key.endswith("_proj.weight") and "kv_a_proj" not in key:
            tensors[key] = tensor
            continue
        made = pack(tensor.double().numpy(), scheme)
        module = key.removesuffix(".weight")
        tensors |= {f"{module}.{end}": as_tensor(array) for end, array in made.tensors.items()}
        plain[key] = torch.from_numpy(made.dense).float()
    save_file(plain, folder / "model.safetensors")
    whole = {"config_groups": {"a": {"targets": ["Linear"], "weights": {
        "num_bits": 4, "type": "int", "symmetric": False, "strategy": "channel"}}}}  # fmt: skip
    changed = whole if scheme.layout == "rows" else {"group_size": -1}
    config["quantization_config"] = {**scheme.config, **changed}
    packed = write(tmp_path / "packed", config, tensors)
    if storage == "":
        assert answer(packed) == answer(folder)
        return
    (program, _, found), (other, _, dense) = loaded(packed, storage), loaded(folder, "")
    turned = [key for key in ("0.q_b", "0.latents", "0.o", "0.down") if program.weights[key].format == "packed int4"]
    assert len(turned) == 4
    for key in turned:
        values = unpack(found[key], other.weights[key].shape[1])
        ours = (values.double() - found[f"{key}.zero"].double()) * found[f"{key}.scale"].double()
        torch.testing.assert_close(ours.float(), dense[key])


def broken(change, tmp_path, name="gptq", storage="int4"):
    config, tensors, *_ = made_of(SCHEMES[name])
    change(tensors, config)
    with pytest.raises(UserError) as caught:
        loaded(write(tmp_path / "m", config, tensors), storage)
    return str(caught.value)


def put(end, value):
    return lambda tensors, _: tensors.update({f"{Q}.{end}": value})


def drop(end):
    return lambda tensors, _: tensors.pop(f"{Q}.{end}")


@pytest.mark.parametrize("storage", ["int4", ""])
def test_H_QNT_03_columns_in_order_of_activation_are_refused(storage, tmp_path):
    shuffled = torch.randperm(64, generator=torch.Generator().manual_seed(0)).to(torch.int32) // 32
    said = broken(put("g_idx", shuffled), tmp_path, storage=storage)
    assert Q in said and "desc_act" in said and "order of activation" in said


def test_ordered_columns_need_their_groups(tmp_path):
    def change(tensors, config):
        config["quantization_config"] = {**config["quantization_config"], "desc_act": True}
        del tensors[f"{Q}.g_idx"]

    said = broken(change, tmp_path)
    assert f"missing: {Q}.g_idx" in said


@pytest.mark.parametrize(
    ("name", "end"),
    [
        *((name, end) for name in ("awq", "gptq") for end in ("qweight", "qzeros", "scales")),
        *(("packed asymmetric", end) for end in ("weight_packed", "weight_scale", "weight_zero_point")),
        *(("mxfp4", end) for end in ("weight_packed", "weight_scale")),
    ],
)
def test_what_is_missing_or_of_another_shape_or_kind_is_named(name, end, tmp_path):
    said = broken(drop(end), tmp_path, name)
    assert f"missing: {Q}.{end}" in said
    said = broken(lambda tensors, _: put(end, tensors[f"{Q}.{end}"][:-1])(tensors, _), tmp_path, name)
    assert f"{Q}.{end}" in said and "of shape [" in said
    said = broken(lambda tensors, _: put(end, tensors[f"{Q}.{end}"].to(torch.int8))(tensors, _), tmp_path, name)
    assert f"{Q}.{end}" in said and "int8" in said


def test_what_is_dense_against_the_config_and_packed_against_it(tmp_path):
    def dense(tensors, _):
        for end in ("qweight", "qzeros", "scales", "g_idx"):
            del tensors[f"{Q}.{end}"]
        tensors[f"{Q}.weight"] = torch.ones(64, 64)

    said = broken(dense, tmp_path)
    assert f"{Q}.weight" in said and "float32" in said and "int4" in said

    def ignored(_, config):
        config["quantization_config"] = {**config["quantization_config"], "modules_to_not_convert": [Q]}

    said = broken(ignored, tmp_path)
    assert Q in said and "int4" in said and "not quantised" in said


@pytest.mark.parametrize("name", ["awq", "gptq", "packed asymmetric", "mxfp4"])
def test_a_dense_module_that_holds_several_is_listed_under_its_own_name(name, tmp_path):
    scheme = SCHEMES[name]
    config, tensors, _, dense = made_of(scheme)
    key = {"awq": "modules_to_not_convert", "gptq": "dynamic"}.get(scheme.layout, "ignore")
    left = {r"-:.*\.qkv_proj": {}} if key == "dynamic" else ["lm_head", "qkv_proj"]
    config["quantization_config"] = {**scheme.config, key: left}
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}.self_attn."
        modules = [f"{at}{side}_proj" for side in "qkv"]
        tensors = {name: one for name, one in tensors.items() if not name.startswith(tuple(f"{m}." for m in modules))}
        tensors[f"{at}qkv_proj.weight"] = torch.cat([dense[f"{module}.weight"].float() for module in modules])
    folder = write(tmp_path / "m", config, tensors)
    program, _, weights = loaded(folder, storage_of(scheme))
    assert program.weights["0.qkv"].format == "dense" and program.weights["0.o"].format != "dense"
    assert torch.equal(weights["1.qkv"], tensors["model.layers.1.self_attn.qkv_proj.weight"])
    assert answer(folder) == greedy(reference(config, dense), PARAMS.max_tokens)


def test_several_modules_in_one_are_refused(tmp_path):
    def change(tensors, _):
        tensors["model.layers.0.mlp.gate_up_proj.qweight"] = tensors.pop("model.layers.0.mlp.gate_proj.qweight")

    said = broken(change, tmp_path, "awq")
    assert "gate_up_proj.qweight" in said and "mlp.gate_proj and mlp.up_proj" in said and "apart" in said


@pytest.mark.parametrize("storage", ["int4", ""])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_scale_that_is_no_number_is_refused(value, storage, tmp_path):
    said = broken(lambda tensors, _: tensors[f"{Q}.scales"][0].fill_(value), tmp_path, storage=storage)
    assert f"{Q}.scales" in said and "finite" in said


@pytest.mark.parametrize("storage", ["mxfp4", ""])
def test_an_exponent_that_is_no_number_is_refused(storage, tmp_path):
    said = broken(lambda tensors, _: tensors[f"{Q}.weight_scale"][0].fill_(255), tmp_path, "mxfp4", storage)
    assert f"{Q}.weight_scale" in said and "255" in said


def test_a_shape_that_is_not_the_configs_is_refused(tmp_path):
    said = broken(put("weight_shape", torch.tensor([64, 63])), tmp_path, "packed symmetric")
    assert f"{Q}.weight_shape" in said and "[64, 63]" in said and "[64, 64]" in said


def test_scales_take_the_type_of_activations(tmp_path):
    config, tensors, matrices, _ = made_of(SCHEMES["awq"])
    (tmp_path / "m").mkdir()
    checkpoint = open_checkpoint(write(tmp_path / "m", config, tensors))
    program = build_program(checkpoint.config, Layout("bfloat16", 4, "bfloat16", storage="int4"))
    runtime = CpuPlugin().open(0)
    found = dict(load_weights(program, checkpoint, runtime))
    runtime.close()
    assert json.loads((tmp_path / "m" / "config.json").read_text())["torch_dtype"] == "float32"
    wanted = torch.from_numpy(matrices["model.layers.0.self_attn.o_proj"].scales).bfloat16()
    assert torch.equal(found["0.o.scale"], wanted)
