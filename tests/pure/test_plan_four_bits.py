"""Plans of models whose weights have four bits: multiplied as they are stored where a row does that."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest

from engine.errors import UserError
from engine.models.config import ModelConfig
from engine.plan import Observations, plan_for
from platforms.contract import Kernel, feature
from tests.checkpoints import hf_config
from tests.described_plans import PLUGINS, TARGETS, chosen, described, plan
from tests.pure.toy_plans import ABLE, PROFILE

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
_WEIGHTS = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}
MX = {
    "quant_method": "compressed-tensors",
    "format": "mxfp4-pack-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": _WEIGHTS}},
}


def model(given: dict[str, object], **changes: object) -> ModelConfig:
    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8}
    return ModelConfig.from_hf(hf_config("qwen2", quantization_config=given, **{**sizes, **changes}), "four")


@pytest.mark.parametrize(("name", "target"), TARGETS)
@pytest.mark.parametrize("given", [AWQ, MX])
def test_every_described_device(name: str, target: str, given: dict[str, object]) -> None:
    """Where a row multiplies them, weights take a quarter of the memory that unpacked ones do."""
    profile, stored = described(name, target), "mxfp4" if given is MX else "int4"
    found = plan(profile, model(given, torch_dtype="float16"))
    dense = plan(profile, replace(model(given, torch_dtype="float16"), quantization=None))
    decision = found.decisions["model.quantization"]
    if name == "cpu":
        assert decision.value is None and "no row that multiplies them" in decision.reason
        assert found["model.weight_bytes"] == dense["model.weight_bytes"]
        assert {row.op for row in found.kernels} == {row.op for row in dense.kernels}
        return
    assert decision.value == stored and "triton" in decision.reason
    assert chosen(found, "packed_linear") == {"triton"}
    assert found["model.weight_bytes"] < dense["model.weight_bytes"] / 3


@pytest.mark.parametrize("words", [["-O0"], ["-O3"], ["--batch-invariant"], ["--kernels", "reference"]])
def test_whatever_is_asked_for_weights_stay_as_they_are(words: list[str]) -> None:
    found = plan(described("cuda", "sm_90"), model(AWQ), *words)
    assert found["model.quantization"] == "int4"
    assert chosen(found, "packed_linear") == ({"reference"} if "reference" in words else {"triton"})


@pytest.mark.parametrize("size", [16, 96, 8192])
def test_groups_that_no_row_has_are_unpacked(size: int) -> None:
    found = plan(described("cuda", "sm_90"), model({**AWQ, "group_size": size}))
    assert not chosen(found, "packed_linear") and chosen(found, "linear")


def test_without_the_library_of_the_row_they_are_unpacked() -> None:
    found = plan(described("cuda", "sm_90", without="triton"), model(AWQ))
    decision = found.decisions["model.quantization"]
    assert decision.value is None and "triton" in decision.reason and not chosen(found, "packed_linear")


def test_a_row_that_fails_at_first_touch_leaves_them_unpacked() -> None:
    observed = Observations(refused={("packed_linear", "triton"): "wrong by 3"})
    found = plan_for(PLUGINS["cuda"], described("cuda", "sm_90"), model(AWQ), {}, observed)
    decision = found.decisions["model.quantization"]
    assert decision.value is None and "first touch: wrong by 3" in decision.reason
    assert not chosen(found, "packed_linear")


@pytest.mark.parametrize("able", [True, False])
def test_a_strangers_row_decides_for_its_own_device(able: bool) -> None:
    from engine.plan import make_plan, model_facts

    row = Kernel("packed_linear", "theirs", "toys:packed", needs=feature("isa.packed"))
    tables = dataclasses.replace(ABLE, kernels=(*ABLE.kernels, row))
    profile = replace(PROFILE, features=PROFILE.features | ({"isa.packed"} if able else set()))
    found = make_plan(profile, model_facts(model(AWQ)), {}, tables, Observations())
    assert chosen(found, "packed_linear") == ({"theirs"} if able else set())
    assert ("isa.packed" in found.decisions["model.quantization"].reason) is not able


@pytest.mark.parametrize("storage", ["cuda", "cpu"])
def test_H_QNT_09_groups_of_four_bits_that_ranks_would_cut_are_refused(storage: str) -> None:
    profile = described(storage, "sm_90" if storage == "cuda" else "amx")
    sizes = {"intermediate_size": 384, "hidden_size": 768, "num_attention_heads": 6, "num_key_value_heads": 6}
    small = model(AWQ, vocab_size=192, **sizes)
    with pytest.raises(UserError, match=r"intermediate_size 384 in groups of 128 .* 2 ranks.* 1 or 3"):
        plan(profile, small, "--tensor-parallel-size=2")
    assert plan(profile, small, "--tensor-parallel-size=3")
    whole = model({**AWQ, "group_size": -1}, vocab_size=192, **sizes)
    assert plan(profile, whole, "--tensor-parallel-size=2")
