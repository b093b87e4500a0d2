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
from engine.weights.stored import checked, unpacked
from engine.weights.tensor_info import TensorInfo, read_dense, read_packed

if TYPE_CHECKING:
    import torch

__all__ = ["Checkpoint", "TensorInfo", "open_checkpoint"]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """``tensors``: exactly those the config asks for, checked, under the Hub's names, in the order of the forward pass;
    query and key rows are in rotate-half order; then the scales of those that are stored quantised. ``reads``: how
    often each was read."""

    path: Path
    config: ModelConfig
    tensors: dict[str, TensorInfo]
    reads: Counter[str] = field(default_factory=Counter)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors as stored."""
        return sum(info.nbytes for info in self.tensors.values())

    def read(self, name: str) -> torch.Tensor:
        """[*shape] on the host: the stored dtype, mapped from the file (writing to it never reaches the file), or
        float32 where it is stored in blocks. Drop it before reading the next. Raises ``UserError``."""
        self.reads[name] += 1
        return read_dense(self.tensors[name])

    def read_scale(self, name: str) -> torch.Tensor:
        """[*shape] float32 on the host. Raises ``UserError`` where a value is not finite or not above zero."""
        return checked(self.read(name), self.tensors[name])

    def read_values(self, name: str) -> torch.Tensor:
        """[*shape] on the host: what the tensor stands for, float32 where it is stored quantised. Raises
        ``UserError``."""
        scheme, module = self.config.quantization, name.removesuffix(".weight")
        if scheme is None or self.tensors[name].format != scheme.storage:
            return self.read(name)
        return unpacked(self.read(name), self.read_scale(f"{module}.{scheme.scale}"), scheme.block)

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
    return Checkpoint(path, config, check_tensors(path, config, found))


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
