"""The rope fields of ``config.json``: ``rope_theta`` with ``rope_scaling``, or ``rope_parameters``."""

from __future__ import annotations

from collections.abc import Mapping

from engine.errors import UserError
from engine.models.fields import Fields
from engine.models.rope import Rope, yarn_attention_factor

MAX_FACTOR = 1e6
_TOP_LEVEL = ("rope_theta", "partial_rotary_factor")


def merge_rope(config: Mapping[str, object], overrides: Mapping[str, object], source: str) -> dict[str, object]:
    """One flat dictionary under the spelling of ``rope_parameters``; ``overrides`` win, field by field."""
    return {**_normalise(config, source), **_normalise(overrides, f"the overrides of {source}")}


def _normalise(config: Mapping[str, object], source: str) -> dict[str, object]:
    found: dict[str, object] = {}
    for group in ("rope_parameters", "rope_scaling"):
        values = config.get(group)
        if values is None:
            continue
        if not isinstance(values, Mapping) or any(isinstance(value, Mapping) for value in values.values()):
            raise UserError(f"{source}: field {group!r} is {values!r}, expected one flat object")
        for key, value in values.items():
            _put(found, "rope_type" if key == "type" else str(key), value, f"{group}.{key}", source)
    for key in _TOP_LEVEL:
        if config.get(key) is not None:
            found.setdefault(key, config[key])
    return found


def _put(found: dict[str, object], key: str, value: object, spelling: str, source: str) -> None:
    if value is None:
        return
    if key in found and found[key] != value:
        raise UserError(
            f"{source}: field {spelling!r} is {value!r}, but {key!r} was also given as {found[key]!r}; keep one"
        )
    found[key] = value


def read_rope(fields: Fields, values: Mapping[str, object], head_dim: int) -> tuple[Rope, int]:
    """The rope and the longest context in tokens.

    The context follows vLLM: a linear factor multiplies ``max_position_embeddings``, a yarn factor the original
    context, and llama3 configs already state the extended one.
    """
    rope = Fields(fields.source, {f"rope_parameters.{key}": value for key, value in values.items()}, "rope_parameters.")
    positions = fields.integer("max_position_embeddings")
    theta = rope.number("rope_theta", 10000.0, above=1.0)
    dim = int(head_dim * rope.number("partial_rotary_factor", 1.0, most=1.0))
    if values.get("rope_type") is None and "factor" in values:
        fields.fail("the rope fields have a 'factor' and no 'rope_type', so nobody can know which scaling is meant")
    kind = rope.choice("rope_type", ("default", "linear", "llama3", "yarn"), "default")
    if kind == "default":
        return Rope(theta, dim), positions
    factor = rope.number("factor", most=MAX_FACTOR)
    if kind == "linear":
        return Rope(theta, dim, "linear", factor), int(positions * factor)
    original = fields.integer("original_max_position_embeddings", positions)
    original = rope.integer("original_max_position_embeddings", original)
    if kind == "llama3":
        low = rope.number("low_freq_factor")
        high = rope.number("high_freq_factor", above=low)
        return Rope(theta, dim, "llama3", factor, original, low_freq_factor=low, high_freq_factor=high), positions
    scale = yarn_attention_factor(
        factor, rope.number("mscale", 0.0, above=-1.0), rope.number("mscale_all_dim", 0.0, above=-1.0)
    )
    extended = Rope(
        theta,
        dim,
        "yarn",
        factor,
        original,
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        truncate=rope.flag("truncate", True),
        attention_factor=rope.number("attention_factor", scale),
    )
    return extended, max(positions, int(original * factor))
