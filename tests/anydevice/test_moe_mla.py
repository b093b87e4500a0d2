"""Mixtures of experts and latent attention: ops against plain loops, programs and tokens against transformers."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from engine import LLM, SamplingParams
from engine.bind import Bound
from engine.fusion import RULES, all_ops
from engine.load import load_weights, make_caches
from engine.models import Layout, build_program
from engine.ops import OPS
from engine.plan.kernels import Chooser, choose_all
from engine.plan_values import Plan, TokenRange
from engine.weights.checkpoint import open_checkpoint
from engine.weights.tensor_info import TensorInfo, read_dense
from tests.expert_checkpoints import expert_config, write_expert_model
from tests.profiles import DEVICE
from tests.reference_model import greedy
from tests.word_tokenizer import write_word_tokenizer

GROUPED = {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "mscale": 1.0}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_moe": ("qwen3_moe", {}),
    "qwen3_moe-not-renormalised": ("qwen3_moe", {"norm_topk_prob": False, "attention_bias": True}),
    "mixtral": ("mixtral", {"sliding_window": 9}),
    "deepseek_v2": ("deepseek_v2", {}),
    "deepseek_v2-grouped-direct": ("deepseek_v2", {**GROUPED, "q_lora_rank": None, "attention_bias": True}),
    "deepseek_v2-all-experts": ("deepseek_v2", {"first_k_dense_replace": 0, "num_experts_per_tok": 8}),
    "deepseek_v3": ("deepseek_v3", {}),
    "deepseek_v3-biased": ("deepseek_v3", {"attention_bias": True, "norm_topk_prob": False}),
    "deepseek_v3-one-group": ("deepseek_v3", {"n_group": 1, "topk_group": 1}),
    "deepseek_v3-yarn": ("deepseek_v3", {"rope_parameters": {**YARN, "rope_theta": 1e4, "mscale_all_dim": 0.7}}),
    "deepseek_v3-halves": ("deepseek_v3", {"rope_interleave": False, "q_lora_rank": None}),
}
PAGE = 4


@pytest.fixture(scope="module", params=VARIANTS)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Any]]:
    """A folder and the model in transformers that it was saved from."""
    architecture, changes = VARIANTS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    model = write_expert_model(folder, expert_config(architecture, **changes), seed=3)
    write_word_tokenizer(folder, 160)
    yield folder, model


class Bench:
    """A program bound to its references, with caches of 32 blocks."""

    def __init__(self, folder: Path) -> None:
        checkpoint = open_checkpoint(folder)
        program = build_program(checkpoint.config, Layout("float32", PAGE, "float32"))
        chooser = Chooser(DEVICE, {}, (), all_ops(RULES), {}, ("all",), {}, True)
        plan = Plan(DEVICE, {}, choose_all(program, chooser), (), (TokenRange(1, 64, program, {}),))
        host: Any = SimpleNamespace(
            device=torch.device("cpu"), zeros=lambda shape, dtype: torch.zeros(shape, dtype=dtype)
        )
        self.bound = Bound(plan, all_ops(RULES), (), load_weights(program, checkpoint, host))
        self.bound.attach(make_caches(program, 32, host))
        assert set(checkpoint.reads.values()) == {1}

    def step(self, *work: tuple[list[int], int, list[int]]) -> list[torch.Tensor]:
        """Logits of every token, by request. ``work``: (tokens, position of the first, blocks)."""
        ids = [token for tokens, _, _ in work for token in tokens]
        positions = [start + at for tokens, start, _ in work for at in range(len(tokens))]
        slots = [
            blocks[(start + at) // PAGE] * PAGE + (start + at) % PAGE
            for tokens, start, blocks in work
            for at in range(len(tokens))
        ]
        edges = np.cumsum([0, *(len(tokens) for tokens, _, _ in work)])
        width = max(len(blocks) for _, _, blocks in work)
        found = self.bound.run(
            {
                "ids": torch.tensor(ids),
                "positions": torch.tensor(positions),
                "slots.0": torch.tensor(slots),
                "blocks.0": torch.tensor([blocks + [0] * (width - len(blocks)) for _, _, blocks in work]).int(),
                "starts": torch.tensor(edges).int(),
                "lengths": torch.tensor([start + len(tokens) for tokens, start, _ in work]).int(),
                "rows": torch.arange(len(ids)),
            }
        )
        return list(found["logits"].split([len(tokens) for tokens, _, _ in work]))


def test_logits_of_chunks_and_decodes_equal_transformers(saved: tuple[Path, Any]) -> None:
    """Two requests, in blocks out of order: a prompt in three chunks beside another's decode steps."""
    folder, model = saved
    long, short = [3 + at * 7 % 150 for at in range(19)], [5 + at * 11 % 140 for at in range(9)]
    with torch.inference_mode():
        expected = [model(torch.tensor([ids])).logits[0] for ids in (long, short)]
        bench = Bench(folder)
        first, second = [7, 3, 9, 1, 20], [12, 0, 5]
        steps = [
            bench.step((long[:6], 0, first[:2]), (short[:7], 0, second[:2])),
            bench.step((short[7:8], 7, second[:2]), (long[6:13], 6, first[:4]))[::-1],
            bench.step((long[13:], 13, first), (short[8:], 8, second)),
        ]
    for at, logits in enumerate(expected):
        found = torch.cat([step[at] for step in steps])
        assert logits.abs().max() > 0.5
        torch.testing.assert_close(found, logits, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("saved", ["qwen3_moe", "mixtral", "deepseek_v2-grouped-direct", "deepseek_v3"], indirect=True)
def test_greedy_tokens_equal_transformers(saved: tuple[Path, Any]) -> None:
    folder, model = saved
    prompts = [list(range(3, 3 + length)) for length in (1, 5, 40)]
    expected = [greedy(model, prompt, 16) for prompt in prompts]
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    exact = {"dtype": "float32", "kv_cache_dtype": "float32"}
    with LLM(model=str(folder), max_model_len=64, max_num_batched_tokens=16, max_num_seqs=8, **exact) as llm:
        found = [list(result.outputs[0].token_ids) for result in llm.generate(prompts, params, use_tqdm=False)]
    assert found == expected
    assert len({token for tokens in expected for token in tokens}) > 8


def test_rotated_rows_lie_in_halves_and_all_else_as_stored(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    write_expert_model(tmp_path, expert_config("deepseek_v3", attention_bias=True))
    stored, checkpoint = load_file(tmp_path / "model.safetensors"), open_checkpoint(tmp_path)
    pairs = [0, 2, 4, 6, 1, 3, 5, 7]
    orders = {
        "q_b_proj": [head * 24 + at for head in range(4) for at in [*range(16), *(16 + row for row in pairs)]],
        "kv_a_proj_with_mqa": [*range(32), *(32 + row for row in pairs)],
    }
    seen = set()
    for name in checkpoint.tensors:
        part, expected = name.split(".")[-2], stored[name]
        if part in orders:
            seen.add(".".join(name.split(".")[-2:]))
            expected = expected[orders[part]]
        assert torch.equal(checkpoint.read(name), expected), name
    assert seen == {"q_b_proj.weight", "kv_a_proj_with_mqa.weight", "kv_a_proj_with_mqa.bias"}


def test_rows_before_the_rotated_ones_stay(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(np.arange(12, dtype=np.float32).tobytes())
    info = TensorInfo("t", (12,), "float32", 48, path, 0, (2, 4), 1)
    assert read_dense(info).tolist() == [0, 1, 3, 2, 4, 5, 6, 7, 9, 8, 10, 11]


def test_the_tensors_of_a_drafting_layer_are_told_in_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = expert_config("deepseek_v3")
    write_expert_model(tmp_path, config)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "num_hidden_layers": 2}))
    with caplog.at_level(logging.INFO, "engine"):
        assert len(open_checkpoint(tmp_path).config.name)
    assert len(caplog.records) == 1 and "of layer 2 ignored" in caplog.text


def route(scores: list[float], bias: list[float] | None, case: dict[str, Any]) -> list[int]:
    """The experts that one token visits, by the words of the papers."""
    ranked = scores if bias is None else [score + more for score, more in zip(scores, bias, strict=True)]
    size = len(ranked) // case["groups"]
    groups = [range(at, at + size) for at in range(0, len(ranked), size)]
    counted = 1 if bias is None else 2
    worth = [sum(sorted((ranked[at] for at in group), reverse=True)[:counted]) for group in groups]
    best = sorted(range(len(groups)), key=lambda at: -worth[at])[: case["top_groups"]]
    allowed = [at for group in best for at in groups[group]] if len(groups) > 1 else list(range(len(ranked)))
    return sorted(allowed, key=lambda at: -ranked[at])[: case["top_k"]]


@pytest.mark.parametrize("case", OPS["moe"].cases, ids=str)
def test_moe_equals_each_token_at_its_own_experts(case: Any) -> None:
    inputs = OPS["moe"].inputs(case, "float64", torch.Generator().manual_seed(4))
    x, logits, gate_up, down = inputs[:4]
    bias = inputs[4].tolist() if len(inputs) > 4 else None
    settings = case.attributes
    scores = logits.softmax(-1) if settings["scoring"] == "softmax" else logits.sigmoid()
    rows = []
    for token in range(len(x)):
        chosen = route(scores[token].tolist(), bias, settings)
        shares = scores[token, chosen]
        shares = shares / shares.sum() if settings["renormalize"] else shares
        total = torch.zeros_like(x[token])
        for share, expert in zip(shares * settings["scaling"], chosen, strict=True):
            gate, up = (gate_up[expert] @ x[token]).chunk(2)
            total += share * (down[expert] @ (torch.nn.functional.silu(gate) * up))
        rows.append(total)
    torch.testing.assert_close(OPS["moe"].reference(*inputs, **settings), torch.stack(rows), rtol=1e-6, atol=1e-6)


def test_an_expert_that_overflows_spoils_only_the_tokens_that_visit_it() -> None:
    x, logits = torch.ones(2, 4), torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 2.0]])
    gate_up, down = torch.ones(3, 6, 4), torch.ones(3, 4, 3)
    gate_up[2] = torch.inf
    found = OPS["moe"].reference(
        x, logits, gate_up, down, top_k=2, scoring="softmax", renormalize=True, scaling=1.0, groups=1, top_groups=1
    )
    assert found[0].isfinite().all() and not found[1].isfinite().any()


def test_mla_attention_equals_torch_over_separate_keys_and_values() -> None:
    heads, nope, rope, rank, value, length, page = 3, 8, 4, 16, 12, 13, 4
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    cache, up = random(4, page, rank + rope), random(heads * (nope + value), rank)
    q_nope, q_rope = random(length + 2, heads * nope), random(length + 2, heads * rope)
    table, edges = torch.tensor([[2, 0, 3, 1]]).int(), torch.tensor([0, length]).int()
    sizes = {"heads": heads, "nope": nope, "rope": rope, "kv_rank": rank, "value": value, "scale": 0.3}
    found = OPS["mla_attention"].reference(q_nope, q_rope, cache, up, table, edges, edges[1:], **sizes)

    rows = cache[[2, 0, 3, 1]].flatten(0, 1)[:length]
    expanded = (rows[:, :rank] @ up.T).view(length, heads, nope + value).transpose(0, 1)
    k = torch.cat((expanded[..., :nope], rows[:, rank:].expand(heads, -1, -1)), -1)
    q = torch.cat([part[:length].view(length, heads, -1).transpose(0, 1) for part in (q_nope, q_rope)], -1)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, expanded[..., nope:], is_causal=True, scale=0.3)
    torch.testing.assert_close(found[:length], expected.transpose(0, 1).reshape(length, -1))
    assert torch.equal(found[length:], torch.zeros(2, heads * value, dtype=torch.float64))


def test_mla_write_leaves_everything_else_alone() -> None:
    cache = torch.arange(24.0).view(2, 3, 4)
    latent, k_rope = torch.full((3, 3), -1.0), torch.full((3, 1), -2.0)
    before = cache.clone()
    OPS["mla_write"].reference(latent, k_rope, cache, torch.tensor([4, -1, 0]))
    before.view(6, 4)[[4, 0]] = torch.tensor([-1.0, -1.0, -1.0, -2.0])
    assert torch.equal(cache, before)


def test_ranks_with_their_share_of_every_expert_sum_to_the_whole() -> None:
    case = OPS["moe"].cases[3]
    x, logits, gate_up, down, bias = OPS["moe"].inputs(case, "float64", torch.Generator().manual_seed(6))
    gate, up = gate_up.chunk(2, dim=1)
    whole = OPS["moe"].reference(x, logits, gate_up, down, bias, **case.attributes)
    parts = [
        OPS["moe"].reference(x, logits, torch.cat((g, u), 1), d, bias, **case.attributes)
        for g, u, d in zip(gate.chunk(2, 1), up.chunk(2, 1), down.chunk(2, 2), strict=True)
    ]
    torch.testing.assert_close(sum(parts), whole)
