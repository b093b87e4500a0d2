"""Weights in GGUF blocks: loaded as they are, one at a time, and served."""

from __future__ import annotations

import pytest
import torch

from engine import LLM, SamplingParams
from engine.errors import UserError
from engine.load import load_weights
from engine.models import Layout, build_program
from engine.models.block_linear import FLOATING, SCALED, TABLE
from engine.ops.blocks import FORMATS, dequantised
from engine.weights.checkpoint import open_checkpoint
from engine.weights.dummy import dummy_checkpoint
from platforms.cpu.plugin import CpuPlugin
from tests import block_platform
from tests.block_files import mixed, write_blocks

EVERY = frozenset((way, format) for way in (SCALED, FLOATING, TABLE) for format in FORMATS)
PROMPT = list(range(3, 20))
PARAMS = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, logprobs=1)
TYPES = [kind.upper() for kind in FORMATS]


def layout(**changes):
    return Layout("float32", 4, "float32", blocks=EVERY, **changes)


def served(folder, platform, **settings):
    """Tokens, their log-probabilities, and the ops of the plan."""
    settings = {"compilation_config": {"mode": 0}, "max_model_len": 64, **settings}
    with LLM(str(folder), platform=platform, dtype="float32", **settings) as llm:
        found = llm.generate([PROMPT], PARAMS, use_tqdm=False)[0].outputs[0]
        said = [step[token].logprob for step, token in zip(found.logprobs, found.token_ids, strict=True)]
        return list(found.token_ids), said, {call.op for call in llm.plan.program.calls}


@pytest.mark.parametrize("types", [*TYPES, "mixed"])
def test_blocks_load_as_they_are_stored(types, tmp_path):
    _, dense = write_blocks(tmp_path / "m", mixed if types == "mixed" else lambda name: types)
    checkpoint = open_checkpoint(tmp_path / "m")
    program, runtime, counts = build_program(checkpoint.config, layout()), CpuPlugin().open(0), []
    found = dict(load_weights(program, checkpoint, runtime, counts.append))
    for weight in program.weights.values():
        got = found[weight.name]
        assert (str(got.dtype), tuple(got.shape)) == (f"torch.{weight.dtype}", weight.shape)
        wanted = torch.cat([torch.from_numpy(dense[name]) for name in weight.tensors])
        kind, _, format = weight.format.partition(" ")
        assert torch.equal(dequantised(got, format) if kind == "blocks" else got, wanted), weight.name
        assert kind == ("blocks" if wanted.ndim == 2 else "dense")
    assert sum(counts) == checkpoint.nbytes and set(checkpoint.reads.values()) == {1}
    runtime.close()


def test_modules_of_several_formats_are_products_of_their_own_and_nothing_is_split(tmp_path):
    write_blocks(tmp_path / "m", mixed)
    program = build_program(open_checkpoint(tmp_path / "m").config, layout())
    formats = {name: weight.format for name, weight in program.weights.items() if weight.dtype == "uint8"}
    first = {name: formats[name] for name in formats if name.startswith("0.")}
    assert first == {
        **{"0.qkv.0": "blocks q4_k", "0.qkv.1": "blocks q4_k", "0.qkv.2": "blocks q6_k", "0.o": "blocks q4_k"},
        **{"0.gate_up": "blocks q4_k", "0.down": "blocks q6_k"},
    }
    assert formats["1.qkv"] == "blocks q4_k" and formats["embed"] == "blocks q6_k" and "head" not in formats
    ops = [call.op for call in program.calls]
    assert ops.count("split") == 1 and ops.count("scaled_block_linear") == 4 + 6 and ops.count("block_linear") == 1
    assert ops.count("quantize_dynamic") == 8, "what q, k and v read is quantised once"


def test_a_weight_is_read_when_it_is_asked_for_and_mapped_where_it_is_one_tensor_in_order(tmp_path):
    write_blocks(tmp_path / "m", lambda name: "Q4_1")
    checkpoint, runtime = open_checkpoint(tmp_path / "m"), CpuPlugin().open(0)
    weights = load_weights(build_program(checkpoint.config, layout()), checkpoint, runtime)
    assert (
        not checkpoint.reads
        and "0.down" in weights
        and len(weights) == len(build_program(checkpoint.config, layout()).weights)
    )
    down = weights["0.down"]
    assert weights["0.down"] is down and checkpoint.reads == {"model.layers.0.mlp.down_proj.weight": 1}
    mapped = checkpoint.read_packed("model.layers.0.mlp.down_proj.weight")
    assert down.data_ptr() % 4096 == mapped.data_ptr() % 4096, "at its place in the file"
    del weights["0.down"]
    with pytest.raises(KeyError):
        weights["0.down"]
    assert "0.down" not in weights
    runtime.close()


def test_a_file_that_shrank_is_named_when_its_weight_is_asked_for(tmp_path):
    write_blocks(tmp_path / "m", lambda name: "Q4_1")
    checkpoint, runtime = open_checkpoint(tmp_path / "m"), CpuPlugin().open(0)
    weights = load_weights(build_program(checkpoint.config, layout()), checkpoint, runtime)
    with (tmp_path / "m" / "m.gguf").open("r+b") as file:
        file.truncate(4096)
    with pytest.raises(UserError, match=r"down_proj.*cannot be read"):
        weights["1.down"]
    runtime.close()


def test_a_model_is_never_held_twice(tmp_path, monkeypatch):
    """Each weight leaves when it is packed, before the next one is read, though each range of the plan reads it."""
    from engine import load

    held, most = set(), []

    class Watched(load.Weights):
        def __getitem__(self, name):
            found = super().__getitem__(name)
            if found.dtype == torch.uint8:
                held.add(name)
                most.append(len(held))
            return found

        def __delitem__(self, name):
            super().__delitem__(name)
            held.discard(name)

    monkeypatch.setattr(load, "Weights", Watched)
    write_blocks(tmp_path / "m", mixed)
    block_platform.PACKED.clear()
    settings = {"compilation_config": {"mode": 3, "backend": "eager", "compile_ranges_endpoints": [4, 8]}}
    served(tmp_path / "m", "tests.block_platform:Blocking", **settings)
    assert len(block_platform.PACKED) >= 11
    assert held == {"embed"} and max(most) == 1


@pytest.mark.parametrize("types", ["Q4_0", "Q5_1", "Q6_K", "mixed"])
def test_without_quantised_activations_tokens_are_those_of_the_unpacked_model(types, tmp_path):
    write_blocks(tmp_path / "m", mixed if types == "mixed" else lambda name: types)
    plain, scores, ops = served(tmp_path / "m", "tests.block_platform:Blocking", kernels="reference")
    assert "linear" in ops and not any("block" in op for op in ops)
    found, more, ops = served(tmp_path / "m", "tests.block_platform:Floating")
    assert {"block_linear", "block_embedding"} <= ops and not ops & {
        "linear",
        "scaled_block_linear",
        "quantize_dynamic",
    }
    assert found == plain
    torch.testing.assert_close(torch.tensor(more), torch.tensor(scores), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("level", [0, 2])
@pytest.mark.parametrize("types", ["Q4_1", "Q8_0", "mixed"])
def test_with_quantised_activations_scores_are_close_to_those_of_the_unpacked_model(types, level, tmp_path):
    write_blocks(tmp_path / "m", mixed if types == "mixed" else lambda name: types, tie_word_embeddings=types != "Q8_0")
    plain, scores, _ = served(tmp_path / "m", "tests.block_platform:Blocking", kernels="reference")
    found, more, ops = served(tmp_path / "m", "tests.block_platform:Blocking", optimization_level=level)
    assert {"scaled_block_linear", "block_embedding"} <= ops and not ops & {"linear", "block_linear"}
    same = next((at for at, pair in enumerate(zip(found, plain, strict=True)) if pair[0] != pair[1]), len(plain))
    assert same >= 3, (found, plain)
    torch.testing.assert_close(torch.tensor(more[:same]), torch.tensor(scores[:same]), rtol=0.1, atol=0.1)


def test_dummy_weights_come_in_the_blocks_of_the_file(tmp_path):
    write_blocks(tmp_path / "m", mixed)
    checkpoint, runtime = dummy_checkpoint(tmp_path / "m"), CpuPlugin().open(0)
    program = build_program(checkpoint.config, layout())
    found = dict(load_weights(program, checkpoint, runtime))
    for weight in program.weights.values():
        assert tuple(found[weight.name].shape) == weight.shape
    assert dequantised(found["0.down"], "q6_k").isfinite().all()
    assert torch.equal(found["0.down"], load_weights(program, checkpoint, runtime)["0.down"])
    runtime.close()
