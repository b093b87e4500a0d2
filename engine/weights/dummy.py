"""Random weights in the shapes of a model, for measuring where the real ones are not at hand."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engine.config import value_of
from engine.errors import UserError
from engine.plan_values import Given
from engine.weights.checkpoint import Checkpoint
from engine.weights.config_only import read_config
from engine.weights.expected import expected_shapes
from engine.weights.tensor_info import TensorInfo

if TYPE_CHECKING:
    import torch

SPREAD = 0.02
"""Standard deviation, that of the usual initialisation of language models."""


@dataclass(frozen=True, slots=True)
class DummyCheckpoint(Checkpoint):
    """Every tensor a window of one stream of normal values, shifted by its name and, row by row, by some values: the
    same at every start, rows differ, and nothing is as large as the model."""

    def read(self, name: str) -> torch.Tensor:
        """[*shape] float32 on the host, a view."""
        import torch

        self.reads[name] += 1
        shape = self.tensors[name].shape
        if len(shape) == 1:
            return torch.zeros(shape) if name.endswith("bias") else torch.ones(shape)
        rows, columns = shape
        stream = torch.randn(columns + 7 * rows, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))
        return (stream * SPREAD).as_strided((rows, columns), (7, 1))

    def read_packed(self, name: str) -> torch.Tensor:
        """uint8 [rows, bytes per row] on the host."""
        import torch

        from engine.ops.blocks import sample_blocks

        self.reads[name] += 1
        (rows, columns), blocks = self.tensors[name].shape, self.config.blocks
        assert blocks is not None
        return sample_blocks(rows, columns, blocks.of(name), torch.Generator().manual_seed(zlib.crc32(name.encode())))


def is_dummy(given: Mapping[str, Given]) -> bool:
    """Whether random weights were asked for."""
    return bool(value_of(given, "model.load_format") == "dummy")


def dummy_checkpoint(path: Path) -> DummyCheckpoint:
    """``path``: what ``read_config`` takes. Raises ``UserError``, also for quantised weights."""
    config = read_config(path, path.stem if path.suffix else path.resolve().name)
    if config.quantization is not None:
        raise UserError(
            f"--load-format dummy: {path} is a model of quantised weights, random ones are made for dense models; "
            "take 'quantization_config' out of a copy of its config.json"
        )
    shapes = expected_shapes(config)
    width = {"float32": 4, "float64": 8}.get(config.dtype, 2)
    sizes = {name: width * shape[0] * (shape[1] if len(shape) > 1 else 1) for name, shape in shapes.items()}
    tensors = {name: TensorInfo(name, shape, config.dtype, sizes[name], path, 0) for name, shape in shapes.items()}
    return DummyCheckpoint(path, config, tensors)
