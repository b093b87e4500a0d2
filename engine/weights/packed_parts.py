"""The tensors that stand in for one matrix whose values share whole numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from engine.errors import UserError
from engine.models.config import ModelConfig
from engine.models.quantization import Quantization
from engine.weights.stored import MAYBE, may_be_stored, refuse
from engine.weights.tensor_info import DENSE_FORMATS, TensorInfo

GROUPS_OF_COLUMNS = "g_idx"
"""The group of each column."""
SHAPE = "weight_shape"


@dataclass(frozen=True, slots=True)
class Part:
    """What a tensor may look like."""

    shapes: tuple[tuple[int, ...], ...]
    formats: tuple[str, ...]
    needed: bool = True


def wanted_parts(
    config: ModelConfig, shapes: Mapping[str, tuple[int, ...]], found: Mapping[str, TensorInfo]
) -> dict[str, dict[str, Part]]:
    """For each weight in ``shapes`` that is stored packed, its parts by the checkpoint's names: those it needs, and
    others that are in ``found``. Raises ``UserError`` naming a weight that is packed and should be dense, or the
    reverse."""
    scheme, made = config.quantization, {}
    if scheme is None or not scheme.packed:
        return {}
    for name, shape in shapes.items():
        module = name.removesuffix(".weight")
        packed, dense = found.get(f"{module}.{scheme.weight}"), found.get(name)
        if not may_be_stored(scheme, name, shape):
            if packed is not None and dense is None:
                raise UserError(
                    f"{packed.file}: {module!r} is stored in {scheme.kind}, its config says that it is not quantised; "
                    "fetch the checkpoint again, or mend 'quantization_config'"
                )
            continue
        if packed is None and name.endswith(MAYBE):
            continue
        if packed is None and dense is not None:
            raise UserError(
                f"{dense.file}: tensor {name!r} is stored as {dense.format}, the config says {scheme.storage}; list "
                f"{module!r} among the modules that are not quantised if it is dense, or fetch the checkpoint again"
            )
        parts = {f"{module}.{end}": part for end, part in _parts(scheme, shape[0], shape[1]).items()}
        made[name] = {own: part for own, part in parts.items() if part.needed or own in found}
    return made


def check_part(info: TensorInfo, part: Part, shape: tuple[int, ...]) -> TensorInfo:
    """With the ``shape`` of the matrix it belongs to. Raises ``UserError`` where it is not what ``part`` says."""
    if info.shape not in part.shapes or info.format not in part.formats:
        sizes = " or ".join(str(list(one)) for one in part.shapes)
        refuse(info, f"{' or '.join(part.formats)} of shape {sizes}")
    return replace(info, part_of=(shape[0], shape[1]))


def read_with(scheme: Quantization | None, name: str, found: Mapping[str, TensorInfo]) -> tuple[str, ...]:
    """Which tensors of a checkpoint are read for ``name``, a tensor or a weight that others stand for."""
    module, _, end = name.rpartition(".")
    ends: tuple[str, ...] = (end,)
    if scheme is not None and scheme.packed and end == "weight" and name not in found:
        ends = scheme.weight, GROUPS_OF_COLUMNS, SHAPE, scheme.scale, scheme.zero
    elif scheme is not None and scheme.packed and end == scheme.weight:
        ends = end, GROUPS_OF_COLUMNS, SHAPE
    elif scheme is not None and end == "weight" and found[name].format == scheme.storage:
        ends = end, scheme.scale
    return tuple(own for own in (f"{module}.{one}" for one in ends) if own in found)


def _parts(scheme: Quantization, rows: int, columns: int) -> dict[str, Part]:
    groups = -(-columns // scheme.group(columns))
    eighths = -(-rows // 8), -(-columns // 8)
    ints = ("int32",)
    if scheme.layout in ("awq", "gptq"):
        weight = (columns, eighths[0]) if scheme.layout == "awq" else (eighths[1], rows)
        parts = {
            scheme.weight: Part((weight,), ints),
            scheme.scale: Part(((groups, rows),), DENSE_FORMATS),
            scheme.zero: Part(((groups, eighths[0]),), ints),
        }
        if scheme.layout == "gptq":
            parts[GROUPS_OF_COLUMNS] = Part(((columns,),), ints, scheme.ordered)
        return parts
    if scheme.layout == "pairs":
        parts = {
            scheme.weight: Part(((rows, -(-columns // 2)),), ("uint8",)),
            scheme.scale: Part(((rows, groups),), ("uint8",)),
        }
    else:
        scales = ((rows, groups), (rows,)) if groups == 1 else ((rows, groups),)
        parts = {scheme.weight: Part(((rows, eighths[1]),), ints), scheme.scale: Part(scales, DENSE_FORMATS)}
        if scheme.zero:
            parts[scheme.zero] = Part(((eighths[0], groups),), ints)
    return parts | {SHAPE: Part(((2,),), ("int64", "int32"), False)}
