"""The fields of ``config.json`` that describe latent attention."""

from __future__ import annotations

from collections.abc import Mapping

from engine.models.config import MAX_HEAD_DIM, Architecture, Mla
from engine.models.experts_hf import only
from engine.models.fields import Fields
from engine.models.quantization import Quantization
from engine.models.rope import Rope, yarn_scale


def read_mla(fields: Fields, architecture: Architecture, heads: int) -> Mla | None:
    """``None`` where keys and values are separate. ``score_factor`` is still to be read, with the rope. Raises
    ``UserError`` naming the field."""
    if architecture not in ("deepseek_v2", "deepseek_v3"):
        return None
    only(fields, "num_key_value_heads", heads)
    only(fields, "mlp_bias", False)
    if architecture == "deepseek_v2":
        only(fields, "rope_interleave", True)
    direct = "q_lora_rank" in fields.values and fields.get("q_lora_rank") is None
    nope, rope, value = (
        fields.integer(key, most=MAX_HEAD_DIM) for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    )
    return Mla(
        q_rank=0 if direct else fields.integer("q_lora_rank"),
        kv_rank=fields.integer("kv_lora_rank"),
        nope=nope,
        rope=rope,
        value=value,
        interleaved=fields.flag("rope_interleave", True),
    )


def read_score_factor(fields: Fields, values: Mapping[str, object], rope: Rope) -> float:
    """``values``: the rope fields, merged. A stretched context sharpens the scores by the square of YaRN's scale, as
    DeepSeek-V2's own code does where ``mscale_all_dim`` is set."""
    only(Fields(fields.source, values), "partial_rotary_factor", 1.0)
    weight = Fields(fields.source, values).number("mscale_all_dim", 0.0, above=-1.0)
    return yarn_scale(rope.factor, weight) ** 2 if rope.kind and weight else 1.0


def check_pairs(fields: Fields, mla: Mla, heads: int, scheme: Quantization | None) -> None:
    """Raises ``UserError`` where rotated rows, which loading brings from pairs into halves, would leave the block whose
    scale is theirs."""
    if scheme is None or scheme.block is None or scheme.weights == "group" or not mla.interleaved:
        return
    rows = scheme.block[0]
    starts = [mla.kv_rank, *(head * (mla.nope + mla.rope) + mla.nope for head in range(min(heads, rows)))]
    if any(start // rows != (start + mla.rope - 1) // rows for start in starts):
        fields.fail(
            f"weights have scales for blocks of {rows} rows, and rotated rows of one head ('qk_rope_head_dim' "
            f"{mla.rope}) lie in two of them; expected them in one"
        )
