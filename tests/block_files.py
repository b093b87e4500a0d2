"""Tiny models in GGUF blocks, and the dense weights that they stand for, as the gguf library says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.checkpoints import Weights, hf_config, random_weights, write_gguf

WIDE = {"hidden_size": 256, "intermediate_size": 512, "tie_word_embeddings": True}
"""Sizes that blocks of 256 columns fit."""


def mixed(name: str) -> str:
    """As files of ``Q4_K_M`` are: some of the values, every other ``down`` and the table in Q6_K."""
    if "embed" in name or ("layers.0." in name and ("v_proj" in name or "down_proj" in name)):
        return "Q6_K"
    return "Q4_K"


def write_blocks(folder: Path, type_of: Callable[[str], str], **changes: Any) -> tuple[dict[str, Any], Weights]:
    """A folder with a GGUF file. ``type_of``: a matrix's type. Returns the config, and dense weights."""
    import torch
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize, quantize

    from engine.ops.blocks import sample_blocks

    config = hf_config(**{**WIDE, **changes})
    weights, stored = random_weights(config, 5), {}
    rng = torch.Generator().manual_seed(3)
    for name, array in weights.items():
        if array.ndim < 2:
            continue
        kind = GGMLQuantizationType[type_of(name)]
        if kind.name.endswith("_K"):
            raw = sample_blocks(*array.shape, kind.name.lower(), rng).numpy()
        else:
            raw = quantize(array, kind)
        if kind.name != "F32":
            stored[name] = kind.name, raw
            weights[name] = np.asarray(dequantize(raw, kind), np.float32).reshape(array.shape)
    folder.mkdir(exist_ok=True)
    words = ["a", "b", "ab", *(f"w{n}" for n in range(3, config["vocab_size"]))]
    tokenizer = {"model": "gpt2", "pre": "gpt-2", "tokens": words, "merges": ["a b"]}
    metadata = {f"tokenizer.ggml.{key}": value for key, value in tokenizer.items()}
    write_gguf(folder / "m.gguf", config, weights, metadata=metadata, stored=stored)
    return config, weights
