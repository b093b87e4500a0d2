"""A KV cache of 8 bits: which flavour, on which devices, and what the program then holds."""

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config import collect
from engine.conformance.models import CONFIGS
from engine.errors import UserError
from engine.memory import block_bytes
from engine.models.config import ModelConfig
from engine.plan import plan_for
from engine.plan.facts import float8_of
from platforms.cpu.plugin import CpuPlugin
from platforms.cuda.plugin import CudaPlugin
from platforms.rocm.plugin import RocmPlugin

PLUGINS = {"cuda": CudaPlugin(), "rocm": RocmPlugin(), "cpu": CpuPlugin()}
FLAVOURS = {
    "cuda:sm_90": "float8_e4m3fn",
    "cuda:sm_120": "float8_e4m3fn",
    "rocm:gfx942": "float8_e4m3fnuz",
    "rocm:gfx950": "float8_e4m3fn",
    "cpu:x86-64-v3": "float8_e4m3fn",
    "cuda:sm_80": "",
    "rocm:gfx90a": "",
}
KEY = "cache.kv_cache_dtype"


def described(target):
    platform, arch = target.split(":")
    return PLUGINS[platform], PLUGINS[platform].targets()[arch]


def plan(target, word, model="qwen3", *more):
    plugin, profile = described(target)
    words = ["--kv-cache-dtype", word, *more] if word else [*more]
    return plan_for(plugin, profile, ModelConfig.from_hf(CONFIGS[model], model), collect(words, {}).given)


@pytest.mark.parametrize(("target", "flavour"), FLAVOURS.items())
def test_H_QNT_10_one_function_gives_the_type_of_an_8_bit_cache(target, flavour):
    assert float8_of(described(target)[1]) == flavour
    if flavour:
        found = plan(target, "fp8")
        assert {spec.dtype for spec in found.ranges[0].program.caches.values()} == {found[KEY]} == {flavour}
    else:
        with pytest.raises(UserError, match=r"--kv-cache-dtype=fp8 .* cannot be served: .* has no 8-bit floats"):
            plan(target, "fp8")


@pytest.mark.parametrize("word", ["fp8", "FP8", "fp8_e4m3", "float8_e4m3fn", "float8_e4m3fnuz"])
def test_every_word_means_the_devices_own_flavour(word):
    assert plan("rocm:gfx942", word)[KEY] == "float8_e4m3fnuz"
    assert plan("cuda:sm_90", word)[KEY] == "float8_e4m3fn"


def test_H_QNT_10_code_of_attention_names_no_flavour():
    root = Path(__file__).parents[2]
    files = [
        *(root / f"engine/{name}.py" for name in ("ops/attention", "ops/paged", "models/attention")),
        *(root / "kernels_triton").glob("attention*.py"),
        *(root / f"kernels_triton/{name}.py" for name in ("heads", "rotary")),
    ]
    assert len(files) == 9
    for file in files:
        names = {node.id for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Name)}
        assert not re.search(r"float8_|fp8e|e4m3|e5m2", file.read_text()), file
        assert not any("e4m3" in name for name in names), file


def test_a_cache_of_latents_is_not_kept_in_8_bits():
    with pytest.raises(UserError, match="caches latents"):
        plan("cuda:sm_90", "fp8", "latent")


def test_H_FUS_06_writes_with_scales_are_fused_and_lose_none():
    for model, op in (("llama", "rotary_kv_write"), ("qwen3", "qk_norm_rotary_kv_write")):
        found = plan("cuda:sm_90", "fp8", model, "-O2")
        program = found.ranges[0].program
        calls = [call for call in program.calls if call.op == op]
        layers = ModelConfig.from_hf(CONFIGS[model], model).num_layers
        assert len(calls) == layers
        for at, call in enumerate(calls):
            assert call.inputs[-2:] == (f"{at}.k_scale", f"{at}.v_scale")
        for call in (call for call in program.calls if call.op.startswith("attention")):
            assert [program.weights[name].format for name in call.inputs[-2:]] == ["scale kv"] * 2
    weight = program.weights["0.k_scale"]
    assert (weight.dtype, weight.shape, weight.tensors) == (
        "float32",
        (1,),
        ("model.layers.0.self_attn.k_scale",),
    )


def test_a_cache_as_the_activations_has_no_scales():
    program = plan("cuda:sm_90", "", "qwen3").ranges[0].program
    assert not any(weight.format == "scale kv" for weight in program.weights.values())


@pytest.mark.parametrize("model", ["llama", "qwen3"])
def test_rows_of_the_host_refuse_what_they_do_not_do(model):
    """Compiled ones read and write keys of 8 bits; those of torch do not, and say so."""
    write = {"llama": "rotary_kv_write", "qwen3": "qk_norm_rotary_kv_write"}[model]
    plugin, profile = described("cpu:x86-64-v3")
    config, words = ModelConfig.from_hf(CONFIGS[model], model), collect(["--kv-cache-dtype", "fp8"], {}).given
    found = {row.op: row for row in plan_for(plugin, profile, config, words).kernels}
    assert found["attention"].chosen == found[write].chosen == "native"
    bare = replace(profile, features=profile.features - {"kernel.cxx"})
    rows = [row for row in plan_for(plugin, bare, config, words).kernels if "attention" in row.op or "kv" in row.op]
    assert {row.chosen for row in rows} == {"reference"} and len(rows) >= 2
    (attention,) = [row for row in rows if row.op == "attention"]
    assert "torch_grouped: floating inputs are float32 and float8_e4m3fn" in attention.reason


@pytest.mark.parametrize("word", ["int8", "INT8", "int8_per_token_head"])
@pytest.mark.parametrize("model", ["llama", "qwen3"])
def test_whole_numbers_have_their_scales_behind_each_head_and_none_in_the_checkpoint(word, model):
    config = ModelConfig.from_hf(CONFIGS[model], model)
    found = plan("cpu:x86-64-v3", word, model)
    program = found.ranges[0].program
    assert {(spec.dtype, spec.dims) for spec in program.caches.values()} == {("int8", (config.head_dim + 4,) * 2)}
    assert found[KEY] == "int8"
    assert not any(weight.format == "scale kv" for weight in program.weights.values())
    bytes_of_a_token = config.num_layers * 2 * config.num_kv_heads * (config.head_dim + 4)
    assert block_bytes(program) == found["cache.block_size"] * bytes_of_a_token


@pytest.mark.parametrize("target", FLAVOURS)
def test_no_row_of_a_vendor_takes_whole_numbers_for_floats(target):
    for row in plan(target, "int8", "llama", "-O2").kernels:
        if "attention" in row.op or "kv_write" in row.op:
            host = "native" if target.startswith("cpu") else "reference"
            assert row.chosen == host, (target, row.op, row.chosen)


def test_latents_are_not_kept_in_whole_numbers():
    with pytest.raises(UserError, match=r"kv-cache-dtype=int8 .* caches latents"):
        plan("cpu:x86-64-v3", "int8", "latent")
