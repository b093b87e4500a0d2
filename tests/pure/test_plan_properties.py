"""What holds for every plan: of any own target, level, model and set of flags."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.config import BY_KEY, collect
from engine.errors import UserError
from engine.fusion import RULES
from engine.levels import FUSIONS, LEVELS
from engine.plan import Plan, plan_for
from engine.plan.graph_modes import PARTS
from engine.plan_values import Given
from platforms.discovery import candidates
from platforms.fusions import ADD_NORM
from tests.model_configs import MODELS

PLUGINS = {row.name: row.plugin for row in candidates() if row.name in ("cuda", "rocm", "cpu") and row.plugin}
TARGETS = [(name, target) for name, plugin in PLUGINS.items() for target in plugin.targets()]
IDS = [":".join(pair) for pair in TARGETS]
NUMBERS = [level.number for level in LEVELS]
SWITCHES = [f"compilation.pass_config.{name}" for name in FUSIONS]
VALUES: dict[str, list[Any]] = {
    "performance_mode": ["interactivity", "throughput"],
    "enforce_eager": [True, False],
    "batch_invariant": [True, False],
    "kernels": ["reference"],
    "kernel_config.autotune": [True, False],
    "compilation.mode": ["NONE", "PIECEWISE", "STOCK_TORCH_COMPILE", "DYNAMO_TRACE_ONCE"],
    "compilation.graph_mode": list(PARTS),
    "compilation.custom_ops": [("all",), ("none",), ("+rms_norm",), ("none", "+quant_fp8"), ("all", "-rotary")],
    "compilation.splitting_ops": [("attention", "mla_attention"), ("attention", "moe")],
    "compilation.capture_sizes": [(1, 3, 8), (256,)],
    "compilation.max_capture_size": [1, 42, 300],
    "compilation.compile_ranges_endpoints": [(64,), (17, 400)],
    "compilation.compile_sizes": [(1,), (3, 64), ("capture_sizes",), (5, "capture_sizes")],
    "compilation.backend": ["inductor", "eager"],
    "compilation.cache_dir": ["kept"],
    "compilation.debug_dump_path": ["dump"],
    "compilation.pass_config.rope_kvcache_max_tokens": [1, 100],
    "compilation.pass_config.allreduce_max_size_mb": [0.5, 64.0],
    "model.dtype": ["float32", "float16", "bfloat16"],
    "cache.block_size": [8, 64],
    "cache.kv_cache_dtype": ["float32", "bfloat16"],
    "scheduler.max_model_len": [256, 4096],
    "scheduler.max_num_seqs": [1, 7, 300],
    "scheduler.max_num_batched_tokens": [64, 8192],
    "scheduler.enable_chunked_prefill": [True, False],
    "parallel.tensor_parallel_size": [1, 2, 8],
    "parallel.pipeline_parallel_size": [1, 2],
    **{key: [True, False] for key in SWITCHES},
}


def make(target: tuple[str, str], model: Any, **values: Any) -> Plan:
    plugin = PLUGINS[target[0]]
    asked = {key: Given(value, "command line") for key, value in values.items()}
    return plan_for(plugin, plugin.targets()[target[1]], model, asked)


def active(plan: Plan) -> set[str]:
    return {row.rule for row in plan.fusions if row.matched}


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
def test_a_plan_is_made_for_every_model_and_level_and_is_the_same_twice(target: tuple[str, str]) -> None:
    for model in MODELS:
        for ranks, number in ((1, 0), (1, 2), (2, 1), (8, 3)):
            values = {"optimization_level": number, "parallel.tensor_parallel_size": ranks}
            first, second = (make(target, model, **values) for _ in range(2))
            assert first.to_json() == second.to_json() and first.ranges == second.ranges
            assert all(row.reason and row.origin for row in first.decisions.values())
            assert all(row.reason for row in (*first.kernels, *first.fusions))


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_invariant_5_a_level_never_takes_away_what_a_lower_one_gave(target: tuple[str, str], model: Any) -> None:
    for ranks in (1, 2):
        plans = [
            make(target, model, **{"optimization_level": number, "parallel.tensor_parallel_size": ranks})
            for number in NUMBERS
        ]
        for low, high in pairwise(plans):
            lost = active(low) - active(high)
            covered = {name for name in lost if any(_covers(other, name) for other in active(high) - active(low))}
            assert lost == covered
            for one, two in zip(*(PARTS[plan["compilation.graph_mode"]] for plan in (low, high)), strict=True):
                assert one == "NONE" or two != "NONE"


def _covers(wide: str, narrow: str) -> bool:
    """Whether a rule of the one name does all that one of the other does."""

    def ops(name: str) -> list[list[str]]:
        return [[line.split("(")[0] for line in rule.pattern] for rule in (*RULES, ADD_NORM) if rule.name == name]

    return any(set(few) <= set(many) for many in ops(wide) for few in ops(narrow))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    target=st.sampled_from(TARGETS),
    model=st.sampled_from(MODELS),
    number=st.sampled_from(NUMBERS),
    keys=st.lists(st.sampled_from(sorted(VALUES)), unique=True, max_size=6),
    data=st.data(),
)
def test_what_a_user_asks_for_is_in_the_plan_or_refused_by_name(
    target: tuple[str, str], model: Any, number: int, keys: list[str], data: Any
) -> None:
    values = {key: data.draw(st.sampled_from(VALUES[key]), label=key) for key in keys}
    try:
        plan = make(target, model, optimization_level=number, **values)
    except UserError as error:
        named = [key for key in keys if BY_KEY[key].flag in str(error) or key.rpartition(".")[2] in str(error)]
        assert named, f"{values}: {error}"
        return
    for key, value in values.items():
        found = tuple(plan[key]) if isinstance(value, tuple) else plan[key]
        assert found == value and plan.decisions[key].origin == "command line", key
    ranges = plan.ranges
    assert ranges[0].start == 1 and ranges[-1].end == plan["scheduler.max_num_batched_tokens"]
    assert all(low.end + 1 == high.start for low, high in pairwise(ranges))
    cut = plan["compilation.mode"] == "PIECEWISE"
    assert all(bool(one.pieces) == cut for one in ranges) and (cut or not plan.between)
    generated = {row.generator for one in ranges for row in one.pieces}
    assert generated <= ({"native", "inductor"} if plan["compilation.backend"] == "inductor" else {"native"})


@settings(max_examples=60, deadline=None)
@given(order=st.permutations(["-O1", "-cc.mode=NONE", "--max-num-seqs=7", "-cc.pass_config.fuse_act_quant=false"]))
def test_the_order_of_flags_changes_nothing(order: list[str]) -> None:
    plugin = PLUGINS["cuda"]
    given_ = collect(order, {}).given
    plan = plan_for(plugin, plugin.targets()["sm_90"], MODELS[0], given_)
    assert plan.hash == plan_for(plugin, plugin.targets()["sm_90"], MODELS[0], collect(sorted(order), {}).given).hash
