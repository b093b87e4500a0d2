"""A small model and a platform that is nobody's, for tests that need a plan and no device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.config import collect
from engine.models.config import ModelConfig
from engine.plan import Plan, Tables, make_plan, model_facts
from engine.plan.make import Observations
from platforms.contract import (
    API_VERSION,
    DeviceProfile,
    FusionOffer,
    Kernel,
    PlatformPlugin,
    Probe,
    Runtime,
    Setting,
    Verdict,
    always,
    feature,
)

PROFILE = DeviceProfile(
    "toy", "toy-v1", "toys", "Toy 3000", 16 << 30, "described", frozenset({"dtype.float32", "dtype.bfloat16"})
)
KERNELS = (
    Kernel("rms_norm", "quick", "toys:quick", priority=2),
    Kernel("rms_norm", "old", "toys:old", priority=1),
    Kernel("rms_norm", "magic", "toys:magic", needs=feature("isa.magic"), priority=3),
    Kernel("rotary_kv_write", "both", "toys:both"),
    Kernel("attention", "paged", "toys:paged"),
)
ABLE = Tables(
    KERNELS,
    (FusionOffer("fuse_rope_kvcache", always("rows fit one tile")),),
    lambda profile, facts, level: (Setting("compilation.backend", "toy", "it has one of its own"),),
    compiler=Verdict(True, "a toy compiler"),
    graphs=Verdict(True, "toy graphs"),
)
"""Everything can be had: then a plan holds what the level asks for."""


class ToyPlugin(PlatformPlugin):
    name, api, kind = "toy", API_VERSION, "host"

    def probe(self) -> Probe:
        return Probe((PROFILE,), ("a toy box is open",))

    def targets(self) -> Mapping[str, DeviceProfile]:
        return {"v1": PROFILE}

    def kernels(self) -> tuple[Kernel, ...]:
        return KERNELS

    def fusions(self) -> tuple[FusionOffer, ...]:
        return (FusionOffer("fuse_rope_kvcache", always("rows fit one tile")),)

    def settings(self, *_: Any) -> tuple[Setting, ...]:
        return (Setting("cache.block_size", 32, "wide rows like wide pages"),)

    def aliases(self) -> Mapping[str, str]:
        return {"TOY_SPEED": "toy_speed"}

    def open(self, index: int) -> Runtime:
        raise AssertionError("a plan opens no device")


CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "float32",
}
"""Of a model small enough to read."""


def toy_model() -> ModelConfig:
    return ModelConfig.from_hf(CONFIG, name="toy")


def toy_plan(*words: str, tables: Tables = ABLE) -> Plan:
    return make_plan(PROFILE, model_facts(toy_model()), collect(words, {}).given, tables, Observations())
