"""The Grafana dashboard asks only for what ``/metrics`` has."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from test_metrics import IDLE, INFO

from engine.server.metrics import Metrics

BOARD = json.loads((Path(__file__).parents[2] / "docs/grafana/engine.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
TARGETS = [target for panel in PANELS for target in panel["targets"]]
SELECTED = {"model_name", "engine"}


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """Name of a sample → the labels it has."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(Metrics(INFO, "m", lambda: IDLE).text().decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def check(expression: str, exported: dict[str, set[str]]) -> set[str]:
    """The names in ``expression``, each with labels that it has."""
    selectors = re.findall(r"([a-zA-Z_]+:[a-zA-Z0-9_:]+)(?:\{([^}]*)\})?", expression)
    assert selectors, expression
    common = set.intersection(*(exported[name] for name, _ in selectors))
    for name, matchers in selectors:
        assert set(re.findall(r"(\w+)=", matchers)) <= exported[name], (name, matchers)
    for labels in re.findall(r"\bby \(([^)]*)\)", expression):
        assert {label.strip() for label in labels.split(",")} <= common, expression
    return {name for name, _ in selectors}


def test_every_expression_names_exported_metrics_and_their_labels(exported: dict[str, set[str]]) -> None:
    assert len(TARGETS) > 40
    for target in TARGETS:
        check(target["expr"], exported)
        grouped = {label for labels in re.findall(r"\bby \(([^)]*)\)", target["expr"]) for label in labels.split(", ")}
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= grouped


@pytest.mark.parametrize(
    "expression", ["sum(engine:no_such_metric)", 'engine:num_requests_running{colour="x"}',
                   "sum by (colour) (engine:num_requests_running)"],
)  # fmt: skip
def test_a_name_that_is_not_exported_is_found(expression: str, exported: dict[str, set[str]]) -> None:
    with pytest.raises((KeyError, AssertionError)):
        check(expression, exported)


def test_every_expression_follows_the_variables(exported: dict[str, set[str]]) -> None:
    for target in TARGETS:
        for selector in re.findall(r"engine:\w+(?:\{([^}]*)\})?", target["expr"]):
            assert set(re.findall(r'(\w+)=~"\$\1"', selector)) == SELECTED
    variables = {row["name"]: row["query"] for row in BOARD["templating"]["list"]}
    assert set(variables) == SELECTED | {"datasource"}
    for name in SELECTED:
        (asked,) = check(variables[name]["query"], exported)
        assert variables[name]["query"].endswith(f", {name})") and name in exported[asked]


def test_what_a_dashboard_is_for_is_on_it() -> None:
    """Every histogram of times, the caches, the queue and what was decided."""
    asked = " ".join(target["expr"] for target in TARGETS)
    for name in ("generation_tokens_total", "num_requests_waiting_by_reason", "time_to_first_token_seconds_bucket",
                 "inter_token_latency_seconds_bucket", "e2e_request_latency_seconds_bucket", "kv_cache_usage_perc",
                 "request_queue_time_seconds_sum", "request_prefill_time_seconds_sum", "prefix_cache_hits_total",
                 "request_decode_time_seconds_sum", "num_preemptions_total", "graph_steps_total", "plan_info",
                 "kernel_info", "fusion_info", "request_success_total", "admission_rejections_total"):  # fmt: skip
        assert f"engine:{name}" in asked, name


def test_panels_stand_beside_each_other() -> None:
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    cells = [{(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
             for at in (panel["gridPos"] for panel in BOARD["panels"])]  # fmt: skip
    assert not any(one & other for one, other in combinations(cells, 2))
    assert all(at["x"] + at["w"] <= 24 for at in (panel["gridPos"] for panel in BOARD["panels"]))
    assert all(panel["datasource"]["uid"] == "${datasource}" for panel in PANELS)
