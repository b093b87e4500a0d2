"""What any accelerator must do; the folders of the platforms call it."""

from __future__ import annotations

import torch

from engine import LLM, SamplingParams
from engine.ops import OPS
from platforms.discovery import Selection
from tests.checkpoints import hf_config, random_weights, write_hf
from tests.word_tokenizer import write_word_tokenizer


def check_runtime(selection: Selection) -> None:
    """Opening it gives measured facts, memory that adds up, and copies that arrive."""
    runtime = selection.plugin.open(selection.index)
    try:
        assert runtime.profile.origin == "measured" and runtime.profile.arch == selection.profile.arch
        memory = runtime.memory()
        assert 0 < memory.available <= memory.total
        with runtime.compute():
            tensor = torch.arange(1000, device=runtime.device) * 2
            fetch = runtime.fetch(tensor)
        assert fetch.wait().tolist() == list(range(0, 2000, 2))
        zeros = runtime.zeros((3, 5), torch.float32)
        assert zeros.device.type == runtime.device.type and not zeros.any()
        runtime.synchronize()
    finally:
        runtime.close()


def check_references(selection: Selection) -> None:
    """Every op's reference gives on the device what it gives in float64 on the host, within the op's tolerance."""
    runtime = selection.plugin.open(selection.index)
    try:
        for op in OPS.values():
            for case in op.cases:
                inputs = op.inputs(case, "float32", torch.Generator().manual_seed(1))
                truth = op.reference(*(x.double() if x.is_floating_point() else x for x in inputs), **case.attributes)
                with runtime.compute():
                    found = op.reference(*(x.clone().to(runtime.device) for x in inputs), **case.attributes)
                pairs = zip(*(r if isinstance(r, tuple) else (r,) for r in (truth, found)), strict=True)
                for expected, got in pairs:
                    host, expected = runtime.fetch(got).wait().double(), expected.double()
                    relative, absolute = op.bound("float32", str(got.dtype).removeprefix("torch."))
                    bound = {"rtol": 4 * relative + 1e-6, "atol": 4 * absolute + 1e-6}
                    torch.testing.assert_close(host, expected, **bound, msg=lambda text, op=op: f"{op.name}: {text}")
    finally:
        runtime.close()


def check_tokens(selection: Selection, folder, host: str) -> None:
    """A tiny model in float32 says on the device what it says on the host."""
    config = hf_config("llama")
    write_hf(folder, config, random_weights(config, seed=5))
    write_word_tokenizer(folder, config["vocab_size"])
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    prompts = [list(range(3, 3 + n)) for n in (1, 5, 40)]
    found = []
    for platform in (host, selection.plugin.name):
        with LLM(str(folder), platform=platform, dtype="float32", max_model_len=256) as llm:
            found.append([list(r.outputs[0].token_ids) for r in llm.generate(prompts, params, use_tqdm=False)])
    assert found[0] == found[1]


def check_levels(selection: Selection, folder) -> None:
    """A tiny model in float32 says the same at every level: eager, with graphs of pieces, with graphs of whole steps;
    alone and with others beside it."""
    config = hf_config("llama")
    write_hf(folder, config, random_weights(config, seed=6))
    write_word_tokenizer(folder, config["vocab_size"])
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    prompts = [list(range(3, 3 + n)) for n in (1, 5, 40, 2, 17)]
    found = []
    for level in (0, 1, 2, 3):
        settings = {"platform": selection.plugin.name, "dtype": "float32", "max_model_len": 256}
        with LLM(str(folder), optimization_level=level, **settings) as llm:
            for group in (prompts, prompts[:1], prompts[1:4]):
                answers = llm.generate(group, params, use_tqdm=False)
                found.append((level, [list(answer.outputs[0].token_ids) for answer in answers]))
            steps = llm._open_core().stats().steps
            assert (steps["FULL"] > 0) == (level >= 2) and (steps["PIECEWISE"] > 0) == (level >= 1), (level, steps)
    alone = {level: [tokens for at, tokens in found if at == level] for level in (0, 1, 2, 3)}
    assert alone[0] == alone[1] == alone[2] == alone[3]
