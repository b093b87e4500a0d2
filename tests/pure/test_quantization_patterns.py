"""Patterns of modules in a stranger's config: those in use are taken, those that could be tried for hours are not."""

from __future__ import annotations

import time

import pytest

from engine.errors import UserError
from engine.models.fields import Fields
from engine.models.patterns import TRIES, tries
from engine.models.quantization import Quantization
from engine.models.quantization_hf import read_quantization

NAMES = (
    *("model.layers.61.mlp.experts.255.down_proj", "model.layers.10.block_sparse_moe.experts.255.w1"),
    *("model.layers.0.self_attn.q_proj", "lm_head", "a" * 64, "model." * 10),
)
IN_USE = (
    *("re:.*self_attn.*", "re:vision_tower.*", r"re:.*\.mlp\.gate$", "re:.*(q|k|v)_proj", "re:.*lm_head"),
    *(r"re:^model\.layers\.[0-9]+\..*", r"re:language_model\.model\.layers\.([1-9]|1[0-9])\..*"),
    *(r"re:^(?!.*experts).*$", r"re:.*layers\..*\.mlp\..*(gate|up|down)_proj.*", r"re:model\.layers\.\d+\.mlp\.gate"),
    *(r"re:.*\.layers\.(\d|1\d|2[0-9])\.self_attn\.(q|k|v|o)_proj$", r"re:(model\.)?layers\.\d{1,3}\.mlp", "re:a+b*c?"),
    *(r"re:(?:visual|vision_model)\..*", r"re:.*\b(mlp|attn)\b.*", r"re:(?i).*Router.*", r"re:.*[^.]+\.gate$"),
)
ENDLESS = (
    *("re:([a-z_.0-9]+)*Z", "re:(a*)*b", "re:(a|aa)+b", "re:(.*a){12}b", "re:((a?){30}){30}b", r"re:([a-z]+\.?)+!"),
    *("re:.*.*.*.*.*.*.*.*Z", "re:((?:x?){60000}){60000}", "re:(?=(a+)+b)a", "re:(?:(?:a|b)?c?)+Z"),
    *("re:(?i)(?:" + "|".join(f"{c}.|{c.upper()}" for c in "abcdefgh") + ")+!", "re:(?i:a.|A)+!"),
    *("re:(?si)" + "[!-~]" * 190, "re:(?is:[a-z])"),
    *("re:" + "(a|ab)" * 40, "re:" + "(" * 450 + "a" + ")" * 450, "re:a{99999999999999999999}", "re:" + "x" * 5000),
)


def _read(*ignored: str) -> Quantization:
    given = {"quant_method": "fp8", "activation_scheme": "dynamic", "modules_to_not_convert": ["lm_head", *ignored]}
    found = read_quantization(Fields("config.json of tiny", {"quantization_config": given}))
    assert found is not None
    return found


@pytest.mark.parametrize("pattern", IN_USE)
def test_patterns_in_use_are_taken(pattern: str) -> None:
    begin = time.perf_counter()
    scheme = _read(pattern)
    for name in NAMES:
        scheme.ignores(name)
    assert time.perf_counter() - begin < 2


@pytest.mark.parametrize("pattern", ENDLESS)
def test_a_pattern_that_could_be_tried_for_hours_is_refused_by_name(pattern: str) -> None:
    for given in (
        {"quant_method": "fp8", "activation_scheme": "dynamic", "modules_to_not_convert": ["lm_head", pattern]},
        {"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {pattern.replace("re:", "-:", 1): {}}},
    ):
        with pytest.raises(UserError, match=r"modules_to_not_convert|dynamic") as caught:
            read_quantization(Fields("config.json of tiny", {"quantization_config": given}))
        assert repr(pattern[3:100])[1:-1] in str(caught.value) and len(str(caught.value)) < 500


def test_several_patterns_of_experts_are_taken() -> None:
    parts = [rf"re:.*\.layers\.\d+\.mlp\.experts\.\d+\..*{part}$" for part in ("gate", "up", "down")]
    scheme = _read(*parts)
    assert scheme.ignores("model.layers.3.mlp.experts.11.some_up") and not scheme.ignores("model.layers.3.mlp.up")


def test_patterns_that_together_take_too_long_are_refused() -> None:
    two = [f"re:.*layers.*{number}_proj$" for number in range(2000)]
    assert tries(two[0][3:]) < TRIES
    with pytest.raises(UserError, match="too many tries"):
        _read(*two)


def test_long_lists_of_names_are_asked_at_once() -> None:
    scheme = _read(*(f"model.layers.{layer}.mlp.experts.{one}.up_proj" for layer in range(60) for one in range(256)))
    begin = time.perf_counter()
    for layer in range(61):
        for one in range(100):
            assert scheme.ignores(f"model.layers.{layer}.mlp.experts.{one}.up_proj") is (layer < 60)
    assert time.perf_counter() - begin < 5


def test_names_are_no_patterns() -> None:
    scheme = _read("mlp.gate", "layers.1.self_attn", "a.*")
    assert scheme.ignores("model.layers.1.self_attn.q_proj") and scheme.ignores("model.layers.7.mlp.gate")
    assert not scheme.ignores("model.layers.11.self_attn.q_proj") and not scheme.ignores("model.layers.0.mlp.gate_proj")
