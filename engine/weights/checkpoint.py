"""Checkpoints: a model's config and its tensors, whatever files hold them. Opening reads headers only."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import UserError
from engine.models.config import ModelConfig
from engine.models.quantization import Quantization
from engine.weights import four_bits
from engine.weights.expected import check_tensors
from engine.weights.expected_parts import in_halves
from engine.weights.gguf_checkpoint import read_gguf_checkpoint
from engine.weights.packed_parts import GROUPS_OF_COLUMNS, SHAPE, read_with
from engine.weights.safetensors_checkpoint import read_safetensors_checkpoint
from engine.weights.stored import checked, checked_group, unpacked
from engine.weights.tensor_info import TensorInfo, read_dense, read_packed, row_order

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

    def cost(self, name: str) -> int:
        """Bytes of the file that are read for ``name``, a tensor or a weight that others stand for."""
        return sum(self.tensors[own].nbytes for own in read_with(self.config.quantization, name, self.tensors))

    def read_scale(self, name: str) -> torch.Tensor:
        """[*shape] float32 on the host. Raises ``UserError`` where a value is not finite or not above zero."""
        return checked(self.read(name), self.tensors[name])

    def read_values(self, name: str) -> torch.Tensor:
        """[*shape] on the host: what the tensor stands for, float32 where it is stored quantised, under its own name or
        in parts. Raises ``UserError``."""
        scheme, module = self.config.quantization, name.removesuffix(".weight")
        if scheme is not None and scheme.packed and name not in self.tensors:
            zeros = self.read_part(f"{module}.{scheme.zero}") if scheme.zero else None
            scales = self.read_part(f"{module}.{scheme.scale}")
            return four_bits.unpacked(scheme, self.read_part(f"{module}.{scheme.weight}"), scales, zeros)
        if scheme is None or self.tensors[name].format != scheme.storage:
            return self.read(name)
        return unpacked(self.read(name), self.read_scale(f"{module}.{scheme.scale}"), scheme.block)

    def read_part(self, name: str) -> torch.Tensor:
        """A part of a matrix of four bits, on the host, in the order of its rows: the values, uint8 [rows, columns];
        the zeros, uint8 [rows, groups]; the scales, float32 [rows, groups], or their exponents, uint8. Raises
        ``UserError`` where columns of a group are apart, or a scale is no number."""
        info, scheme, (module, _, end) = self.tensors[name], self.config.quantization, name.rpartition(".")
        assert scheme is not None and info.part_of is not None
        rows = info.part_of[0]
        if end == scheme.weight:
            self._check_parts(scheme, module, info.part_of)
            found = four_bits.values(scheme, self.read(name), info.part_of)
        elif end == scheme.zero:
            found = four_bits.zeros(scheme, self.read(name), rows)
        else:
            found = four_bits.scales(scheme, checked_group(self.read(name), info), rows)
        order = row_order(in_halves(self.config, replace(info, name=f"{module}.weight", shape=info.part_of)))
        return found if order is None else found[order]

    def _check_parts(self, scheme: Quantization, module: str, shape: tuple[int, int]) -> None:
        groups, said = f"{module}.{GROUPS_OF_COLUMNS}", f"{module}.{SHAPE}"
        if groups in self.tensors:
            four_bits.check_runs(self.read(groups), scheme.group(shape[1]), f"{self.path}: {module}")
        if said in self.tensors and (found := tuple(self.read(said).tolist())) != shape:
            raise UserError(
                f"{self.tensors[said].file}: tensor {said!r} says {list(found)}, its config asks {list(shape)}; fetch "
                "the checkpoint again"
            )

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
