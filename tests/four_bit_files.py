"""Checkpoints of four-bit weights, packed with numpy after the formats' own descriptions, without the code under test.

AWQ: qweight [columns, rows / 8], bits 4i of a word hold row ``AWQ[i]`` of its eight. GPTQ: qweight [columns / 8, rows],
bits 4i hold column i; zeros one less in its first version. compressed-tensors: weight_packed [rows, columns / 8], bits
4i hold column i, and weight_zero_point [rows / 8, groups], bits 4i hold row i. MXFP4: a byte holds an even column in
its low half.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

AWQ = (0, 2, 4, 6, 1, 3, 5, 7)
FLOATS = np.array([s * v for s in (1, -1) for v in (0, 0.5, 1, 1.5, 2, 3, 4, 6)])


@dataclass(frozen=True)
class Scheme:
    """``config``: of ``quantization_config``; ``group``: columns of a group, 0 for whole rows; ``zeros``: whether they
    vary; ``one_less``: stored so."""

    config: dict[str, Any]
    layout: str
    group: int
    zeros: bool = True
    one_less: bool = False


def _awq(group: int, **more: Any) -> Scheme:
    config = {"quant_method": "awq", "bits": 4, "group_size": group or -1, "zero_point": True, "version": "gemm"}
    return Scheme({**config, **more}, "awq", group)


def _gptq(group: int, **more: Any) -> Scheme:
    config = {"quant_method": "gptq", "bits": 4, "group_size": group or -1, "sym": False, "desc_act": False, **more}
    return Scheme(config, "gptq", group, one_less=more.get("checkpoint_format") != "gptq_v2")


def _packed(group: int, symmetric: bool) -> Scheme:
    reach = {"strategy": "group", "group_size": group} if group else {"strategy": "channel", "group_size": None}
    weights = {"num_bits": 4, "type": "int", "symmetric": symmetric, "dynamic": False, **reach}
    return Scheme(_groups("pack-quantized", weights), "rows", group, not symmetric)


def _groups(form: str, weights: dict[str, Any]) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups, "ignore": ["lm_head"]}


_MX = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "group", "group_size": 32}
SCHEMES = {
    "awq": _awq(32),
    "awq whole rows": _awq(0),
    "gptq": _gptq(32),
    "gptq v2": _gptq(64, checkpoint_format="gptq_v2"),
    "gptq whole rows": _gptq(0, desc_act=True),
    "packed symmetric": _packed(32, True),
    "packed asymmetric": _packed(64, False),
    "packed channel": _packed(0, True),
    "packed channel asymmetric": _packed(0, False),
    "mxfp4": Scheme(_groups("mxfp4-pack-quantized", _MX), "pairs", 32, False),
}


@dataclass(frozen=True)
class Packed:
    """Of one matrix: values [rows, columns] and, per group, zeros and scales [rows, groups], the tensors that a
    checkpoint has of them, by the ends of their names, and what they stand for, in float64."""

    values: np.ndarray
    zeros: np.ndarray
    scales: np.ndarray
    tensors: dict[str, np.ndarray]
    dense: np.ndarray


def pack(weight: np.ndarray, scheme: Scheme) -> Packed:
    """weight: float64 [rows, columns]."""
    columns = weight.shape[1]
    width = scheme.group or columns
    parts = [weight[:, at : at + width] for at in range(0, columns, width)]
    low, high = (np.stack([found(part, 1) for part in parts], 1) for found in (np.min, np.max))
    repeat = np.repeat(np.arange(len(parts)), width)[:columns]
    if scheme.layout == "pairs":
        exponents = np.floor(np.log2(np.maximum(-low, high))).astype(np.int64) - 2 + 127
        sizes = 2.0 ** (exponents - 127)
        values = np.abs(weight[..., None] / sizes[:, repeat, None] - FLOATS).argmin(-1)
        dense = FLOATS[values] * sizes[:, repeat]
        return Packed(values, np.zeros_like(exponents), exponents, _tensors(values, exponents, None, scheme), dense)
    top = high - low if scheme.zeros else 2 * np.maximum(-low, high)
    scales = (top / 15).astype(np.float16).astype(np.float64)
    zeros = np.clip(np.rint(-low / scales), 1, 15).astype(np.int64) if scheme.zeros else np.full(low.shape, 8)
    values = np.clip(np.rint(weight / scales[:, repeat]) + zeros[:, repeat], 0, 15).astype(np.int64)
    dense = (values - zeros[:, repeat]) * scales[:, repeat]
    return Packed(values, zeros, scales, _tensors(values, scales, zeros, scheme), dense)


def _tensors(values: np.ndarray, scales: np.ndarray, zeros: Any, scheme: Scheme) -> dict[str, np.ndarray]:
    rows, columns = values.shape
    if scheme.layout == "pairs":
        pairs = (values[:, 0::2] + 16 * values[:, 1::2]).astype(np.uint8)
        return {"weight_packed": pairs, "weight_scale": scales.astype(np.uint8)}
    if scheme.layout == "awq":
        found = {"qweight": words(values.T, AWQ), "qzeros": words(zeros.T, AWQ)}
        return found | {"scales": scales.T.astype(np.float16)}
    if scheme.layout == "gptq":
        found = {"qweight": words(values).T, "qzeros": words(zeros.T - scheme.one_less)}
        groups = (np.arange(columns) // (scheme.group or columns)).astype(np.int32)
        return found | {"scales": scales.T.astype(np.float16), "g_idx": groups}
    found = {"weight_packed": words(values), "weight_scale": scales.astype(np.float16)}
    found["weight_shape"] = np.array([rows, columns], np.int64)
    return found | ({"weight_zero_point": words(zeros.T).T} if scheme.zeros else {})


def words(numbers: np.ndarray, order: tuple[int, ...] = tuple(range(8))) -> np.ndarray:
    """Eight side by side in an int32, the one at ``order[i]`` at bits 4i."""
    eights = numbers.reshape(numbers.shape[0], -1, 8).astype(np.uint32)
    return sum(eights[..., at] << np.uint32(4 * place) for place, at in enumerate(order)).view(np.int32)
