"""What a model is, where its weights may be absent: planning needs no more."""

from __future__ import annotations

from pathlib import Path

from engine.models.config import ModelConfig
from engine.weights.description import read_description


def read_config(path: Path, name: str) -> ModelConfig:
    """``path``: a ``config.json`` under any name, a directory with one, or whatever ``open_checkpoint`` takes. Weights
    are looked at (their headers) only where nothing else says what the model is, or of which type it is. Raises
    ``UserError``."""
    described = path if path.suffix.lower() == ".json" else path / "config.json"
    weights = list(path.glob("*.safetensors*")) if path.is_dir() else []
    if described.is_file() and (weights or described == path or not any(path.glob("*.gguf"))):
        raw = read_description(described)
        if not weights or any(raw.get(key) is not None for key in ("dtype", "torch_dtype")):
            return ModelConfig.from_hf(raw, name)
    from engine.weights.checkpoint import open_checkpoint

    return open_checkpoint(path, name).config
