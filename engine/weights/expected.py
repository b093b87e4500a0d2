"""The tensors a model must have, and the comparison with those a checkpoint holds."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from pathlib import Path

from engine.errors import UserError
from engine.models.config import ModelConfig
from engine.weights.expected_parts import attention, experts, in_halves, latent_attention, mlp
from engine.weights.gguf_types import BY_FORMAT, WITHOUT_DEQUANTISATION
from engine.weights.packed_parts import check_part, wanted_parts
from engine.weights.stored import may_be_stored, stored_scales
from engine.weights.tensor_info import DENSE_FORMATS, STORED_FORMATS, TensorInfo

logger = logging.getLogger("engine")

HEAD = "lm_head.weight"
RECOMPUTED = (".rotary_emb.inv_freq",)
_NAMED = 3


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Canonical name to shape, in the order of the forward pass."""
    hidden = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}

    def linear(name: str, rows: int, columns: int, bias: bool) -> None:
        shapes[f"{name}.weight"] = (rows, columns)
        if bias:
            shapes[f"{name}.bias"] = (rows,)

    for layer in range(config.num_layers):
        at = f"model.layers.{layer}"
        shapes[f"{at}.input_layernorm.weight"] = (hidden,)
        if config.mla:
            latent_attention(config, config.mla, f"{at}.self_attn", shapes, linear)
        else:
            attention(config, f"{at}.self_attn", shapes, linear)
        shapes[f"{at}.post_attention_layernorm.weight"] = (hidden,)
        if config.moe and layer >= config.moe.dense_layers:
            experts(config, config.moe, f"{at}.", shapes, linear)
        else:
            mlp(f"{at}.mlp", hidden, config.intermediate_size, config.mlp_bias, linear)
    shapes["model.norm.weight"] = (hidden,)
    if not config.tied_embeddings:
        shapes[HEAD] = (config.vocab_size, hidden)
    return shapes


def check_tensors(path: Path, config: ModelConfig, found: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
    """The expected tensors out of ``found``, in order, and the scales of those that are stored quantised. Raises
    ``UserError`` naming the tensor that is missing, of another shape, or in a format nobody reads; logs one line for
    each tensor that is not used."""
    shapes = expected_shapes(config)
    packed = wanted_parts(config, shapes, found)
    expected = [own for name in shapes for own in packed.get(name, (name,))]
    missing = [name for name in expected if name not in found]
    if missing == [HEAD]:
        raise UserError(
            f"{path}: tensor {HEAD!r} is missing, and 'tie_word_embeddings' is false, so the model needs it; fetch the "
            "checkpoint again, or set 'tie_word_embeddings' to true if the head is the embedding"
        )
    if missing:
        others = [name for name in found if name not in expected]
        advice = "fetch the checkpoint again"
        if others:
            advice = f"found instead: {_listed(others)}; mend config.json if these are the same layers, or {advice}"
        raise UserError(
            f"{path}: {config.architecture} of {config.num_layers} layers needs {len(expected)} tensors; missing: "
            f"{_listed(missing)}; {advice}"
        )
    made: dict[str, TensorInfo] = {}
    for name, shape in shapes.items():
        if name in packed:
            made |= {own: check_part(found[own], part, shape) for own, part in packed[name].items()}
        else:
            _check_shape(config, found[name], name, shape)
            made[name] = in_halves(config, found[name])
    scales = stored_scales(path, config, shapes, found)
    made |= {name: in_halves(config, info) for name, info in scales.items()}
    _log_unused(path, config, made, found)
    return made


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _check_shape(config: ModelConfig, info: TensorInfo, name: str, shape: tuple[int, ...]) -> None:
    if info.shape != shape:
        raise UserError(f"{info.file}: tensor {name!r} has shape {list(info.shape)}, its config asks {list(shape)}")
    if info.format in STORED_FORMATS and not may_be_stored(config.quantization, name, shape):
        raise UserError(
            f"{info.file}: tensor {name!r} is stored as {info.format}, its config says that it is not quantised; "
            "fetch the checkpoint again, or mend 'quantization_config'"
        )
    if not is_readable(info.format) and info.format not in STORED_FORMATS:
        raise UserError(f"{info.file}: tensor {name!r} is stored as {info.format!r}, which cannot be read")


def is_readable(format: str) -> bool:
    return format in DENSE_FORMATS or (format in BY_FORMAT and BY_FORMAT[format].name not in WITHOUT_DEQUANTISATION)


def _log_unused(path: Path, config: ModelConfig, expected: Collection[str], found: Mapping[str, TensorInfo]) -> None:
    drafting = {name for name in found if config.mla and name.startswith(f"model.layers.{config.num_layers}.")}
    if drafting:
        logger.info("%s: %d tensors of layer %d ignored, a head for drafting", path, len(drafting), config.num_layers)
    for name in found:
        if name in expected or name in drafting or name.endswith(RECOMPUTED):
            continue
        if name == HEAD and config.tied_embeddings:
            logger.info("%s: tensor %r ignored, the config ties the head to the embedding", path, name)
        else:
            logger.warning("%s: tensor %r is no part of %s and is ignored", path, name, config.architecture)
