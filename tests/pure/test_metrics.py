"""Counting, without a server."""

from __future__ import annotations

import logging
import re
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.batch import FinishReason, Stats, Times
from engine.generation import CoreInfo, Delta
from engine.sampling_params import SamplingParams
from engine.server.logs import StatsLog
from engine.server.metric_names import (
    ALIAS,
    BETWEEN,
    CORE_COUNTERS,
    CORE_GAUGES,
    COUNTERS,
    HISTOGRAMS,
    LATENCY,
    PREFIX,
    TTFT,
    Refusal,
    token_buckets,
)
from engine.server.metrics import Metrics

INFO = CoreInfo(
    model_name="m", model_path="/m", vocab_size=10, max_model_len=1000, num_blocks=7, block_size=16,
    plan_hash="abc", platform="toy", level=2, compile_mode="PIECEWISE", graph_mode="FULL",
    summary=[("platform", "something people read", "")], phases=[], built=1, loaded=2,
    plan={
        "arch": "toy-2",
        "decisions": {
            f"cache.{name}": {"value": value, "origin": "default", "reason": ""}
            for name, value in {"kv_cache_dtype": "auto", "enable_prefix_caching": True, "gpu_memory_utilization": 0.9,
                                "kv_cache_memory_bytes": None}.items()
        },
        "kernels": [
            {"op": "linear", "chosen": "toy_linear", "count": 3}, {"op": "linear", "chosen": "reference", "count": 1},
            {"op": "linear", "chosen": "toy_linear", "count": 4},
        ],
        "fusions": [{"rule": "fuse_norm_quant", "matched": 6}, {"rule": "fuse_act_quant", "matched": 0}],
    },
)  # fmt: skip
NAMES = Path(__file__).parents[1] / "golden/metrics.txt"
IDLE = Stats(0, 0, 0.0, 0, 0, 0, 0, 0, 0)


class Core:
    stats = IDLE

    def __call__(self):
        return self.stats


@pytest.fixture
def core():
    return Core()


@pytest.fixture
def metrics(core):
    return Metrics(INFO, "m", core)


def samples(metrics):
    """(name, labels without the usual two) → value."""
    found = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("model_name") == "m" and labels.pop("engine") == "0"
            key = (sample.name, tuple(sorted(labels.items())))
            assert key not in found, key
            found[key] = sample.value
    return found


def value(metrics, name, **labels):
    return samples(metrics)[("engine:" + name, tuple(sorted(labels.items())))]


def run(metrics, deltas, outcome, prompts=(5,), **params):
    record = metrics.begin(SamplingParams(**params), list(prompts), time.monotonic())
    for place, choice, delta in deltas:
        record.delta(place, choice, delta)
    record.end(outcome)
    return record


def delta(index=0, tokens=1, **more):
    return Delta(index, "x" * tokens, list(range(tokens)), **more)


def test_buckets_are_those_users_know():
    assert len(TTFT) == 22 and TTFT[0] == 0.001 and TTFT[-1] == 2560
    assert len(BETWEEN) == 19 and BETWEEN[-1] == 80
    assert len(LATENCY) == 21 and LATENCY[-1] == 7680
    assert token_buckets(1000) == [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]
    assert token_buckets(64) == [1, 2, 5, 10, 20, 50] and token_buckets(1) == [1]


def test_the_exposition_holds_the_names_that_dashboards_know(metrics):
    """``tests/golden/metrics.txt``: a line per family, with the labels of its series. A name goes or changes by hand
    alone: somebody's dashboard has it."""
    lines = []
    for family in text_string_to_metric_families(metrics.text().decode()):
        (labels,) = {tuple(sorted(sample.labels.keys() - {"le"})) for sample in family.samples}
        assert family.documentation and family.samples
        lines.append(f"{family.type} {family.name} {' '.join(labels)}")
    wanted = NAMES.read_text().splitlines()
    assert wanted == sorted(wanted)
    assert sorted(line.replace(PREFIX, "", 1) for line in lines if PREFIX in line) == wanted
    assert sorted(line.replace(ALIAS, "", 1) for line in lines if ALIAS in line) == wanted
    assert len(lines) == 2 * len(wanted)


def test_every_declared_family_is_shown(metrics):
    names = {family.name for family in metrics.registry.collect()}
    declared = [row.name for row in (*COUNTERS, *HISTOGRAMS, *CORE_GAUGES, *CORE_COUNTERS)]
    assert names == {PREFIX + name for name in declared} and len(names) == len(declared)


def test_every_family_under_both_names_with_equal_values(metrics, core):
    core.stats = Stats(3, 2, 0.25, 4, 100, 40, 17, 50, 60, deferred=1)
    run(metrics, [(0, 0, delta(tokens=4))], FinishReason.STOP)
    found = samples(metrics)
    own = {key: number for key, number in found.items() if key[0].startswith("engine:")}
    alias = {("engine:" + key[0][5:], key[1]): number for key, number in found.items() if key[0].startswith("vllm:")}
    assert own == alias and len(own) + len(alias) == len(found)
    assert not any(name.endswith("_created") for name, _ in own)
    for name, number in {"num_requests_running": 3, "num_requests_waiting": 2, "kv_cache_usage_perc": 0.25,
                         "num_preemptions_total": 4, "prefix_cache_queries_total": 100,
                         "prefix_cache_hits_total": 40}.items():  # fmt: skip
        assert own[("engine:" + name, ())] == number
    for reason in ("capacity", "deferred"):
        assert own[("engine:num_requests_waiting_by_reason", (("reason", reason),))] == 1


def test_steps_by_kind_of_graph_tokens_of_padding_and_pieces_by_where_they_came_from(metrics, core):
    core.stats = Stats(1, 0, 0.0, 0, 0, 0, 9, 0, 0, {"FULL": 5, "PIECEWISE": 2, "NONE": 1}, 11)
    found = samples(metrics)
    for kind, count in (("FULL", 5), ("PIECEWISE", 2), ("NONE", 1)):
        assert found[("engine:graph_steps_total", (("kind", kind),))] == count
    assert found[("vllm:graph_padding_tokens_total", ())] == 11
    for source, count in (("built", 1), ("cache", 2)):
        assert found[("engine:compiled_functions", (("source", source),))] == count


def test_drafts_and_what_came_true_by_place(metrics, core):
    assert value(metrics, "spec_decode_num_accepted_tokens_per_pos_total", position="0") == 0
    core.stats = Stats(1, 0, 0.0, 0, 0, 0, 9, 0, 0, drafts=10, draft_tokens=30, accepted=[6, 4, 2])
    for name, number in (("drafts", 10), ("draft_tokens", 30), ("accepted_tokens", 12)):
        assert value(metrics, f"spec_decode_num_{name}_total") == number
    for place, number in (("0", 6), ("1", 4), ("2", 2)):
        assert value(metrics, "spec_decode_num_accepted_tokens_per_pos_total", position=place) == number


def test_types_in_the_text_format(metrics):
    text = metrics.text().decode()
    kinds = {"num_requests_running": "gauge", "num_preemptions_total": "counter", "request_success_total": "counter"}
    for name, kind in (kinds | {"time_to_first_token_seconds": "histogram"}).items():
        for prefix in ("engine", "vllm"):
            assert re.search(rf"^# TYPE {prefix}:{name} {kind}$", text, re.M), name


def test_what_was_planned_is_a_metric(metrics):
    labels = {"platform": "toy", "arch": "toy-2", "level": "-O2", "compile_mode": "PIECEWISE", "graph_mode": "FULL"}
    assert value(metrics, "plan_info", **labels, plan_hash="abc") == 1
    cache = {"block_size": "16", "cache_dtype": "auto", "enable_prefix_caching": "True", "num_blocks": "7"}
    more = {"gpu_memory_utilization": "0.9", "kv_cache_memory_bytes": "None", "num_gpu_blocks": "7"}
    assert value(metrics, "cache_config_info", **cache, **more) == 1
    assert value(metrics, "kernel_info", op="linear", kernel="toy_linear", calls="7") == 1
    assert value(metrics, "kernel_info", op="linear", kernel="reference", calls="1") == 1
    assert value(metrics, "fusion_info", fusion="fuse_norm_quant", active="true", places="6") == 1
    assert value(metrics, "fusion_info", fusion="fuse_act_quant", active="false", places="0") == 1


def test_a_request_counts_once_whatever_its_choices(metrics):
    ends = {"finish_reason": FinishReason.STOP}
    deltas = [(place, place * 2 + index, delta(index, 3, **ends)) for place in (0, 1) for index in (0, 1)]
    run(metrics, deltas, FinishReason.STOP, prompts=(5, 7), n=2)
    assert value(metrics, "request_success_total", finished_reason="stop") == 1
    assert value(metrics, "prompt_tokens_total") == 12
    assert value(metrics, "generation_tokens_total") == 12
    assert value(metrics, "request_generation_tokens_sum") == 12
    assert value(metrics, "request_max_num_generation_tokens_sum") == 3
    assert value(metrics, "e2e_request_latency_seconds_count") == 1
    assert value(metrics, "time_to_first_token_seconds_count") == 1


def test_aborted_refused_and_failed(metrics):
    run(metrics, [(0, 0, delta())], FinishReason.ABORT)
    run(metrics, [], None)
    run(metrics, [], FinishReason.ERROR)
    counts = {r.value: value(metrics, "request_success_total", finished_reason=r.value) for r in FinishReason}
    assert counts == {"stop": 0, "length": 0, "abort": 1, "error": 1}
    assert value(metrics, "generation_tokens_total") == 1
    assert value(metrics, "e2e_request_latency_seconds_count") == 0


@pytest.mark.parametrize("late", [False, True])
def test_phases_of_a_request_whenever_the_core_tells_them(metrics, late):
    times = Times(arrival=10.0, scheduled=11.0, first_token=13.0, last_token=17.0, preemptions=2)
    record = metrics.begin(SamplingParams(n=2, max_tokens=5), [5], time.monotonic())
    record.took(Times(arrival=10.0, scheduled=12.0, first_token=13.0, last_token=14.0, preemptions=0))
    steps = [lambda: record.took(times), lambda: record.end(FinishReason.LENGTH)]
    for tokens in (1, 4):
        record.delta(0, 0, delta(tokens=tokens))
    for step in reversed(steps) if late else steps:
        assert value(metrics, "request_queue_time_seconds_count") == 0
        step()
    expected = {"queue_time": 1, "prefill_time": 2, "decode_time": 4, "inference_time": 6}
    for name, seconds in expected.items():
        assert value(metrics, f"request_{name}_seconds_sum") == seconds
    assert value(metrics, "request_time_per_output_token_seconds_sum") == 1
    assert value(metrics, "request_num_preemptions_sum") == 2
    assert value(metrics, "request_params_max_tokens_sum") == 5
    assert value(metrics, "inter_token_latency_seconds_count") == 1
    for name in ("request_queue_time", "e2e_request_latency"):
        assert value(metrics, f"{name}_seconds_count") == 1


def test_an_aborted_request_has_no_phases(metrics):
    record = run(metrics, [(0, 0, delta())], FinishReason.ABORT)
    record.took(Times(arrival=1.0, scheduled=2.0, first_token=3.0, last_token=4.0, preemptions=0))
    assert value(metrics, "request_inference_time_seconds_count") == 0


def test_cached_tokens_count_once_per_prompt(metrics):
    run(metrics, [(0, 0, delta(cached_tokens=4)), (0, 1, delta(1, cached_tokens=5)), (0, 0, delta(cached_tokens=4))],
        FinishReason.STOP, n=2)  # fmt: skip
    assert value(metrics, "prompt_tokens_cached_total") == 4
    assert value(metrics, "prompt_tokens_cached_by_source_total", source="device") == 4
    assert value(metrics, "prompt_tokens_by_source_total", source="local_cache_hit") == 4
    assert value(metrics, "prompt_tokens_by_source_total", source="local_compute") == 1
    assert value(metrics, "request_prefill_kv_computed_tokens_sum") == 1


def test_every_prompt_token_has_a_source_however_a_request_ends(metrics):
    run(metrics, [(0, 1, delta(1))], FinishReason.ABORT, n=2)
    run(metrics, [(0, 0, delta(cached_tokens=5))], FinishReason.STOP)
    sources = [value(metrics, "prompt_tokens_by_source_total", source=name) for name in ("local_compute",
               "local_cache_hit")]  # fmt: skip
    assert sources == [5, 5] and value(metrics, "prompt_tokens_total") == 10


def test_who_follows_a_request_is_told_once_and_with_its_phases(metrics):
    times = Times(arrival=10.0, scheduled=11.0, first_token=13.0, last_token=17.0, preemptions=0)
    told = []

    def follow(*steps):
        record = metrics.begin(SamplingParams(), [5], time.monotonic(), told.append)
        record.delta(0, 0, delta())
        for step in steps:
            step(record)
        return record

    record = follow(lambda record: record.took(times))
    assert told == []
    record.end(FinishReason.ABORT)
    assert told == [record] and record.outcome is FinishReason.ABORT
    assert record.phases() == {"queue": 1, "prefill": 2, "decode": 4, "inference": 6}
    failed = follow(lambda record: record.end(FinishReason.ERROR), lambda record: record.took(times))
    assert told == [record, failed]
    follow(lambda record: record.end(None), lambda record: record.took(times))
    assert told == [record, failed]


def test_requests_that_were_not_let_in_count_by_the_limit(metrics):
    for reason in (*Refusal, Refusal.RATE):
        metrics.refused(reason)
    counts = {r.value: value(metrics, "admission_rejections_total", reason=r.value) for r in Refusal}
    assert counts == {"queued_requests": 1, "queued_tokens": 1, "rate": 2, "grammars": 1}


def test_steps_are_counted_where_they_are_told(metrics, core):
    metrics.step(9)
    core.stats = Stats(1, 0, 0, 0, 0, 0, 9, 0, 0)
    run(metrics, [(0, 0, delta())], FinishReason.STOP)
    assert value(metrics, "iteration_tokens_total_sum") == 9
    assert value(metrics, "iteration_tokens_total_count") == 1


def test_H_SRV_09_a_broken_metric_is_one_warning(metrics, monkeypatch, caplog):
    def broken(*args):
        raise ValueError("negative")

    for counter in metrics.counters.values():
        monkeypatch.setattr(counter, "inc", broken)
    for histogram in metrics.histograms.values():
        monkeypatch.setattr(histogram, "observe", broken)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            run(metrics, [(0, 0, delta())], FinishReason.STOP)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "negative" in caplog.text


def test_the_periodic_line(core):
    now = [0.0]
    log = StatsLog(core, 10, clock=lambda: now[0])
    now[0] = 10.0
    assert log.line() is None
    core.stats = Stats(2, 1, 0.125, 3, 100, 40, 17, 500, 60)
    now[0] = 20.0
    line = log.line()
    for part in ("50.0 tokens/s", "generation throughput: 6.0", "Running: 2", "Waiting: 1", "Preemptions: 3 (3 in all)",
                 "12.5%", "40.0%"):  # fmt: skip
        assert part in line, part
    now[0] = 30.0
    assert "Preemptions" not in log.line()
    core.stats = Stats(0, 1, 0.0, 5, 100, 40, 0, 500, 60, deferred=1)
    now[0] = 40.0
    assert "Deferred: 1 reqs, Preemptions: 2 (5 in all)" in log.line()
    core.stats = Stats(0, 0, 0.0, 5, 100, 40, 0, 500, 60)
    now[0] = 50.0
    assert log.line() is None
