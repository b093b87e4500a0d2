"""Plans of models in GGUF blocks: multiplied as they are where rows of the platform do that."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import pytest

from engine.config import collect
from engine.errors import UserError
from engine.models import Layout, build_program
from engine.models.block_linear import FLOATING, SCALED, TABLE, WIDE
from engine.models.blocks import Blocks
from engine.ops.blocks import FORMATS
from engine.plan import Observations, Plan, make_plan, model_facts
from platforms.contract import DeviceProfile, Kernel, fact, feature
from tests.described_plans import TARGETS, chosen, described, plan
from tests.model_configs import LLAMA
from tests.pure.toy_plans import ABLE, PROFILE

Q4 = replace(
    LLAMA, weight_format="gguf", dtype="float32", blocks=Blocks("Q4_1", (("model.embed_tokens.weight", "Q8_0"),))
)
OPS = ("scaled_block_linear", "block_linear", "block_embedding")
ROWS = tuple(Kernel(op, "theirs", f"toys:{op}") for op in OPS)
TAKES_Q4 = Kernel(OPS[0], "four", "toys:four", accepts=fact("format", lambda name: name == "q4_1", "q4_1"))


def toy(
    *rows: Kernel, model: Any = Q4, profile: DeviceProfile = PROFILE, words: tuple[str, ...] = (), **more: Any
) -> Plan:
    tables = dataclasses.replace(ABLE, kernels=(*ABLE.kernels, *rows))
    return make_plan(profile, model_facts(model), collect(words, {}).given, tables, Observations(**more))


def ops(found: Plan) -> set[str]:
    return {call.op for call in found.program.calls}


def why(found: Plan) -> tuple[object, str]:
    decision = found.decisions["model.quantization"]
    return decision.value, decision.reason


def test_what_a_file_holds_in_words_and_by_name() -> None:
    assert str(Q4.blocks) == "Q4_1, 5 bits a weight, Q8_0 ×1" and Q4.blocks is not None
    assert Q4.blocks.formats == ("q4_1", "q8_0")
    assert [Q4.blocks.of(name) for name in ("model.embed_tokens.weight", "lm_head.weight")] == ["q8_0", "q4_1"]
    assert Blocks.among({"a": "F32", "b": "F16"}) is None
    mixed = Blocks.among({"a": "F16", "b": "F16", "c": "Q6_K"})
    assert mixed == Blocks("F16", (("c", "Q6_K"),)) and mixed.of("a") == "" and mixed.of("c") == "q6_k"
    assert mixed.formats == ("q6_k",) and hash(mixed) == hash(Blocks("F16", (("c", "Q6_K"),)))


@pytest.mark.parametrize(("name", "target"), [row for row in TARGETS if row[0] != "cpu"])
def test_where_no_row_multiplies_them_they_are_unpacked(name: str, target: str) -> None:
    found = plan(described(name, target), Q4)
    said = f"GGUF blocks ({Q4.blocks}): unpacked to {found['model.dtype']} when loaded"
    assert why(found) == (None, said) and not any("block" in op for op in ops(found))


def test_rows_that_say_yes_multiply_them_as_they_are() -> None:
    found = toy(*ROWS)
    value, reason = why(found)
    assert value == "gguf" and reason == f"GGUF blocks ({Q4.blocks}): multiplied as they are by theirs"
    assert found["model.dtype"] == "bfloat16" and "linear" not in ops(found)
    assert all(chosen(found, op) == {"theirs"} for op in (OPS[0], OPS[2])) and OPS[1] not in ops(found)
    dense = toy(model=replace(Q4, blocks=None))
    assert found["model.weight_bytes"] < dense["model.weight_bytes"] / 2.5
    assert found.hash != dense.hash != toy(*ROWS, model=replace(Q4, blocks=Blocks("Q4_1"))).hash


def test_a_head_takes_activations_of_16_bits_where_a_row_does_and_floats_elsewhere() -> None:
    def storages(found: Plan) -> list[str]:
        return [call.attributes["storage"] for call in found.program.calls if call.op == "quantize_dynamic"]

    both = storages(toy(*ROWS))
    assert set(both[:-1]) == {"int8"} and both[-1] == "int16"
    bytes_only = replace(ROWS[0], accepts=fact("call_dtypes", lambda found: found[0] == "int8", "int8"))
    found = toy(bytes_only, *ROWS[1:])
    assert set(storages(found)) == {"int8"} and chosen(found, "block_linear") == {"theirs"}


def test_a_pinned_row_that_takes_some_products_has_the_others_go_another_way() -> None:
    bytes_only = replace(
        ROWS[0], name="bytes", accepts=fact("call_dtypes", lambda found: found[0] == "int8", "int8"), priority=-1
    )
    found = toy(bytes_only, *ROWS, words=("--kernel", "scaled_block_linear=bytes"))
    assert chosen(found, OPS[0]) == {"bytes"} and chosen(found, "block_linear") == {"theirs"}
    with pytest.raises(UserError, match=r"scaled_block_linear=never cannot be served: isa\.magic absent"):
        never = replace(ROWS[0], name="never", needs=feature("isa.magic"))
        toy(never, *ROWS, words=("--kernel", "scaled_block_linear=never"))


def test_predicates_are_told_what_is_multiplied() -> None:
    seen: list[dict[str, Any]] = []

    def needs(profile: DeviceProfile, facts: Any) -> Any:
        from platforms.contract import Verdict

        seen.append({name: facts.get(name) for name in ("storage", "quantization", "quantized")})
        return Verdict(True, "watches")

    watching = Kernel("select_rows", "watching", "toys:watching", needs=needs)
    toy(*ROWS, watching)
    assert seen[-1] == {"storage": "int8", "quantization": "gguf group", "quantized": True}
    toy(*ROWS[1:], watching)
    assert seen[-1] == {"storage": "", "quantization": "gguf none", "quantized": True}
    toy(watching)
    assert seen[-1] == {"storage": "", "quantization": "none", "quantized": False}


def test_a_row_that_says_no_is_named_with_its_reason() -> None:
    magic = tuple(replace(row, needs=feature("isa.magic")) for row in ROWS)
    value, reason = why(toy(*magic))
    assert value is None and "unpacked to bfloat16 when loaded; theirs: " in reason and "isa.magic" in reason
    assert why(toy(*magic, profile=replace(PROFILE, features=PROFILE.features | {"isa.magic"})))[0] == "gguf"
    value, reason = why(toy(ROWS[0], refused={(OPS[0], "theirs"): "wrong by 3"}))
    assert value is None and "theirs: first touch: wrong by 3" in reason


def test_references_alone_and_batch_invariance() -> None:
    value, reason = why(toy(*ROWS, words=("--kernels", "reference")))
    assert value is None and "--kernels reference" in reason
    value, reason = why(toy(*ROWS, words=("--batch-invariant",)))
    assert value is None and "not batch-invariant" in reason
    flagged = tuple(replace(row, batch_invariant=True) for row in ROWS)
    assert why(toy(*flagged, words=("--batch-invariant",)))[0] == "gguf"


def test_activations_keep_a_type_that_rows_take() -> None:
    only = tuple(
        replace(row, accepts=fact("call_dtypes", lambda dtypes: "bfloat16" not in dtypes, "float32"))
        for row in ROWS[1:]
    )
    wide = replace(ROWS[0], accepts=fact("result", lambda name: name == "float32", "float32"))
    found = toy(wide, *only)
    assert found["model.dtype"] == "float32" and why(found)[0] == "gguf"
    assert found.decisions["model.dtype"].reason == "of activations; quantised weights stay as they are"
    asked = toy(wide, *only, words=("--dtype", "bfloat16"))
    assert asked["model.dtype"] == "bfloat16" and why(asked)[0] is None and "linear" in ops(asked)


def test_a_format_that_no_row_takes_is_unpacked_weight_by_weight() -> None:
    found = toy(TAKES_Q4)
    value, reason = why(found)
    assert value == "gguf" and reason.endswith("multiplied as they are by four; Q8_0 unpacked to bfloat16")
    weights = found.program.weights
    assert (weights["embed"].format, weights["0.qkv"].format) == ("dense", "blocks q4_1")
    assert {"embedding", "scaled_block_linear"} <= ops(found)
    strange = toy(*ROWS, model=replace(Q4, blocks=Blocks("IQ4_XS", (("model.layers.0.mlp.down_proj.weight", "Q5_K"),))))
    formats = {name: row.format for name, row in strange.program.weights.items() if row.format != "dense"}
    assert formats == {"0.down": "blocks q5_k"} and "IQ4_XS unpacked" in why(strange)[1]


def test_gates_of_two_formats_are_unpacked_and_a_table_is_shared_only_in_one_form() -> None:
    every = frozenset((way, format) for way in (SCALED, WIDE, FLOATING, TABLE) for format in FORMATS)
    up = "model.layers.0.mlp.up_proj.weight"
    model = replace(Q4, tied_embeddings=True, blocks=Blocks("Q4_1", ((up, "Q5_1"),)))
    program = build_program(model, Layout("float32", 16, "float32", blocks=every))
    assert program.weights["0.gate_up"].format == "dense" and program.weights["1.gate_up"].format == "blocks q4_1"
    assert "head" not in program.weights
    rowless = build_program(model, Layout("float32", 16, "float32", blocks=every - {(TABLE, "q4_1")}))
    assert (rowless.weights["embed"].format, rowless.weights["head"].format) == ("dense", "blocks q4_1")
    headless = build_program(
        model, Layout("float32", 16, "float32", blocks=every - {(WIDE, "q4_1"), (FLOATING, "q4_1")})
    )
    assert (headless.weights["embed"].format, headless.weights["head"].format) == ("blocks q4_1", "dense")
    assert headless.weights["head"].tensors == headless.weights["embed"].tensors


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_hold_whole_blocks_of_their_share(ranks: int) -> None:
    every = frozenset((way, format) for way in (SCALED, WIDE, FLOATING, TABLE) for format in FORMATS)
    model = replace(Q4, intermediate_size=256 * 6, blocks=Blocks("Q4_K"))
    weights = build_program(model, Layout("float32", 16, "float32", ranks, blocks=every)).weights
    assert weights["0.down"].format == ("blocks q4_k" if ranks < 4 else "dense")
    if ranks < 4:
        assert weights["0.down"].shape == (model.hidden_size, 6 // ranks * 144) and weights["0.down"].shard == 1
    assert weights["0.gate_up"].shape[0] == 2 * 256 * 6 // ranks


def test_explain_says_what_becomes_of_the_built_in_models_blocks() -> None:
    from engine.explain.text import render
    from engine.weights.config_only import read_config
    from tests.checkpoints import builtin_gguf

    model = read_config(builtin_gguf(), "built-in")
    text = " ".join(render(toy(*ROWS, model=model), 400, False).split())
    assert "GGUF blocks (Q4_1, 5 bits a weight, Q8_0 ×1): multiplied as they are by theirs" in text
    for line in ("scaled_block_linear ×121 theirs", "block_embedding ×1 theirs"):
        assert line in text
    assert "quantize_dynamic ×121" in text
