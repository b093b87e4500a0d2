"""Programs run with references alone, on weights cut as their program says; one process per rank."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from engine.bind import Bound
from engine.fusion import RULES, all_ops
from engine.models import Layout, build_program
from engine.models.config import ModelConfig
from engine.plan.kernels import Chooser, choose_all
from engine.plan_values import Plan, TokenRange
from engine.program import Program, Weight
from tests.checkpoints import hf_config, random_weights
from tests.profiles import DEVICE

IDS = [5, 9, 17, 3, 80, 41, 2]
OPS = all_ops(RULES)


def run(program: Program, weights: dict[str, Any]) -> torch.Tensor:
    """Logits [tokens, vocabulary] of one prompt, ``IDS``."""
    chooser = Chooser(DEVICE, {}, (), OPS, {}, ("all",), {}, True)
    plan = Plan(DEVICE, {}, choose_all(program, chooser), (), (TokenRange(1, 64, program, {}),))
    bound = Bound(plan, OPS, (), weights)
    bound.attach({c.name: torch.zeros(2, 3, c.page, c.heads, c.dims[0]) for c in program.caches.values()})
    count = len(IDS)
    every = torch.arange(count)
    inputs = {"ids": torch.tensor(IDS), "positions": every, "slots.0": every, "rows": every}
    inputs["blocks.0"] = torch.arange(3, dtype=torch.int32)[None]
    inputs |= {"starts": torch.tensor([0, count]).int(), "lengths": torch.tensor([count]).int()}
    return bound.run(inputs)["logits"]


def cut(weight: Weight, tensors: Mapping[str, torch.Tensor], dim: int, rank: int, ranks: int) -> torch.Tensor:
    """What a rank keeps of a dense weight. ``dim``: of a head, several ranks keep one where there are too few."""

    def own(name: str) -> torch.Tensor:
        whole = tensors[name]
        if weight.shard is None:
            return torch.zeros_like(whole) if weight.once and rank else whole
        heads = whole.shape[0] // dim
        if heads < ranks and (".k_proj." in name or ".v_proj." in name):
            return whole.chunk(heads)[rank * heads // ranks]
        return whole.chunk(ranks, weight.shard)[rank]

    found = torch.cat([own(name) for name in weight.tensors])
    assert tuple(found.shape) == weight.shape, weight
    return found


def logits(kv_heads: int, rank: int, ranks: int) -> torch.Tensor:
    """Of a llama with biases everywhere and a head of its own."""
    config = hf_config(num_key_value_heads=kv_heads, attention_bias=True, mlp_bias=True)
    tensors = {name: torch.from_numpy(array) for name, array in random_weights(config, 5).items()}
    model = ModelConfig.from_hf(config, "tiny")
    program = build_program(model, Layout("float32", 4, "float32", ranks))
    held = {name: cut(weight, tensors, model.head_dim, rank, ranks) for name, weight in program.weights.items()}
    return run(program, held)


def one_rank(rank: int, ranks: int, folder: Path) -> None:
    """Leaves ``rank.pt`` in ``folder``: sums, joins and logits that this rank found."""
    import torch.distributed as dist

    from engine.ops import OPS as plain
    from engine.ops.collective import open_group

    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meet'}", rank=rank, world_size=ranks)
    found: dict[str, Any] = {}
    x = torch.arange(6.0).view(2, 3) * (rank + 1)
    try:
        plain["all_reduce"].reference(x, group="tp")
    except ValueError as error:
        found["closed"] = str(error)
    open_group("tp", dist.group.WORLD)
    found["sum"] = plain["all_reduce"].reference(x, group="tp")
    found["strided"] = plain["all_reduce"].reference(x.t(), group="tp")
    found["join"] = plain["all_gather"].reference(x, group="tp", ranks=ranks)
    found["given"] = x
    found["logits"] = {heads: logits(heads, rank, ranks) for heads in (2, 1)}
    torch.save(found, folder / f"{rank}.pt")
    dist.destroy_process_group()
