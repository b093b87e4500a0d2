"""Rope frequencies against transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.models.config import ModelConfig
from tests.checkpoints import hf_config

SCALINGS: list[dict[str, Any]] = [
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 8192},
    {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 0.7,
     "mscale_all_dim": 1.0, "beta_fast": 24, "beta_slow": 2},
    {"rope_type": "yarn", "factor": 2.0, "attention_factor": 1.25, "truncate": False},
    {"rope_type": "yarn", "factor": 0.5, "original_max_position_embeddings": 64},
]  # fmt: skip


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda scaling: scaling["rope_type"])
@pytest.mark.parametrize("theta", [10000.0, 1_000_000.0])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_frequencies_equal_transformers(scaling: dict[str, Any], theta: float, head_dim: int) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    values = hf_config(head_dim=head_dim, rope_theta=None, rope_parameters={**scaling, "rope_theta": theta})
    ours = ModelConfig.from_hf(values, "tiny").rope
    theirs = LlamaConfig(
        head_dim=head_dim,
        max_position_embeddings=values["max_position_embeddings"],
        rope_parameters={**scaling, "rope_theta": theta},
    )
    frequencies, attention_factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](theirs, torch.device("cpu"))
    mine = torch.tensor(ours.inverse_frequencies(), dtype=torch.float32)
    torch.testing.assert_close(mine, frequencies, rtol=2e-6, atol=0)
    assert ours.attention_factor == pytest.approx(attention_factor, rel=1e-12)


def test_plain_frequencies_equal_transformers() -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    theirs = LlamaRotaryEmbedding(LlamaConfig(hidden_size=64, num_attention_heads=4)).inv_freq
    ours = ModelConfig.from_hf(hf_config(), "tiny").rope
    torch.testing.assert_close(torch.tensor(ours.inverse_frequencies()), theirs, rtol=1e-6, atol=0)


def test_partial_rotation() -> None:
    rope = ModelConfig.from_hf(hf_config(partial_rotary_factor=0.5), "tiny").rope
    assert rope.dim == 8
    assert rope.inverse_frequencies() == pytest.approx([10000.0 ** (-2 * pair / 8) for pair in range(4)])
