"""Checkpoints: a model's config and its tensors, whatever files hold them. Opening reads headers only."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import UserError
from engine.models.config import ModelConfig
from engine.weights.expected import check_tensors
from engine.weights.gguf_checkpoint import read_gguf_checkpoint
from engine.weights.safetensors_checkpoint import read_safetensors_checkpoint
from engine.weights.tensor_info import TensorInfo, read_dense, read_packed

if TYPE_CHECKING:
    import torch

__all__ = ["Checkpoint", "TensorInfo", "open_checkpoint"]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """``tensors``: exactly those the config asks for, checked, under the Hub's names, in the order of the forward pass;
    query and key rows are in rotate-half order. Empty where the linear layers are quantised, see ``check_loadable``.
    ``reads``: how often each was read."""

    path: Path
    config: ModelConfig
    tensors: dict[str, TensorInfo]
    reads: Counter[str] = field(default_factory=Counter)

    def check_loadable(self) -> None:
        """Raises ``UserError`` for a checkpoint that can be planned for and not be loaded."""
        scheme = self.config.quantization
        if scheme is not None:
            raise UserError(
                f"{self.path}: the linear layers are stored as {scheme.method} weights ({scheme.storage} per "
                f"{scheme.weights}); this version plans for {scheme.method} weights and does not load them yet. "
                "`engine explain` shows the plan; to serve, use a dense or a GGUF checkpoint of the model."
            )

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors as stored."""
        return sum(info.nbytes for info in self.tensors.values())

    def read(self, name: str) -> torch.Tensor:
        """[*shape] on the host: the stored dtype, mapped from the file (writing to it never reaches the file), or
        float32 where it is stored in blocks. Drop it before reading the next. Raises ``UserError``."""
        self.reads[name] += 1
        return read_dense(self.tensors[name])

    def read_packed(self, name: str) -> torch.Tensor:
        """uint8 [rows, bytes per row] on the host: the stored blocks, for kernels that take them."""
        self.reads[name] += 1
        return read_packed(self.tensors[name])


def open_checkpoint(path: str | Path, name: str | None = None) -> Checkpoint:
    """A GGUF file, or a directory with ``config.json`` and safetensors or with one GGUF file. ``name``: the model's;
    the file's or directory's own if absent. Raises ``UserError`` naming file and tensor or field; all checks are done
    here, before any weight is read."""
    path = Path(path)
    file = find_gguf(path)
    if file is not None:
        config, found = read_gguf_checkpoint(file, name or file.stem)
    else:
        config, found = read_safetensors_checkpoint(path, name or path.resolve().name)
    return Checkpoint(path, config, {} if config.quantization else check_tensors(path, config, found))


def find_gguf(path: Path, *, weights: bool = True) -> Path | None:
    """The GGUF file that ``path`` is or holds; ``None`` where it is a directory of safetensors. ``weights``: ``False``
    where a ``config.json`` without any is enough. Raises ``UserError``."""
    if path.is_file():
        return path
    if not path.is_dir():
        raise UserError(f"{path}: asked to open a model, found nothing there; check the path")
    if (path / "config.json").is_file() and (any(path.glob("*.safetensors*")) or not weights):
        return None
    ggufs = sorted(path.glob("*.gguf"))
    if len(ggufs) == 1:
        return ggufs[0]
    if ggufs:
        listed = ", ".join(file.name for file in ggufs)
        raise UserError(f"{path}: holds {len(ggufs)} GGUF files, name one of them: {listed}")
    held = ", ".join(sorted(file.name for file in path.glob("*"))[:8]) or "nothing"
    raise UserError(f"{path}: expected config.json with *.safetensors, or one *.gguf; it holds {held}")
