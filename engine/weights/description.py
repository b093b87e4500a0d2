"""What ``config.json`` says of a model, and the files beside it in which earlier writers put a part of that."""

from __future__ import annotations

from pathlib import Path

from engine.weights.json_file import read_object

_FIELDS = ("quantization_config", "compression_config")
_BESIDE = ("quantize_config.json", "quant_config.json")
_AWQ = {"w_bit": "bits", "q_group_size": "group_size"}
"""AutoAWQ's own words, which tell its file from AutoGPTQ's, and those of the field."""


def read_description(path: Path) -> dict[str, object]:
    """The object in ``path``, a ``config.json`` under any name, with ``quantization_config`` out of the file beside it
    where it has none. Raises ``UserError``."""
    config = read_object(path)
    beside = next((path.parent / name for name in _BESIDE if (path.parent / name).is_file()), None)
    if beside is None or any(config.get(name) for name in _FIELDS):
        return config
    found = read_object(beside)
    method = "awq" if _AWQ.keys() & found.keys() else "gptq"
    known = {_AWQ.get(name, name): value for name, value in found.items()}
    return {**config, "quantization_config": {"quant_method": method, **known}}
