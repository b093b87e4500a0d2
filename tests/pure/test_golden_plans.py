"""Plans per target × level × model, as text that can be reviewed.

``python tests/pure/test_golden_plans.py`` writes the files again after a change on purpose.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from engine.models.config import ModelConfig  # noqa: E402
from engine.plan import plan_for  # noqa: E402
from engine.plan_values import FusionReport, Given, Plan, TokenRange  # noqa: E402
from engine.table import written  # noqa: E402
from platforms.discovery import candidates  # noqa: E402
from tests.model_configs import LLAMA, MODELS, STATIC  # noqa: E402

FOLDER = ROOT / "tests/golden/plans"
RUNS: tuple[tuple[str, ModelConfig, int], ...] = (
    *((model.name, model, 1) for model in MODELS),
    *((f"{model.name} tp2", model, 2) for model in (LLAMA, STATIC)),
)
"""Name, model, ranks."""
IMPLIED = re.compile(r"\.fuse_|\.weight_bytes$")
"""Decisions that the rest of a file or the model itself tells."""
OWN = ("cuda", "rocm", "cpu")
PLUGINS = {row.name: row.plugin for row in candidates() if row.name in OWN and row.plugin}
TARGETS = [(name, target) for name, plugin in PLUGINS.items() for target in plugin.targets()]


def brief(plan: Plan) -> dict[str, dict[str, object]]:
    """What a reviewer wants to see of a plan; equal parts of two plans read equal."""
    return {
        "settings": {key: short(row.value) for key, row in plan.decisions.items() if not IMPLIED.search(key)},
        "kernels": {f"{row.op} ×{row.count}": row.chosen for row in plan.kernels},
        "pieces": {f"{one.start}..{one.end}": pieces(one) for one in plan.ranges if one.pieces},
        "fusions": {row.rule: state(row, plan.ranges[-1].end) for row in plan.fusions if row.requested},
        "warnings": dict(enumerate(plan.warnings)),
    }


def pieces(one: TokenRange) -> str:
    return ", ".join(f"{row.name} ×{row.count} of {row.calls} by {row.generator}" for row in one.pieces)


def state(row: FusionReport, most: int) -> str:
    if not row.matched:
        return f"off: {row.reason}"
    first, last = row.ranges[0][0], row.ranges[-1][1]
    held = "" if (first, last) == (1, most) else f" in steps of {first}..{last}"
    return f"on ×{row.matched}{held}: {row.reason}"


def short(value: object) -> object:
    return written(value) if isinstance(value, (list, tuple)) else value


def golden(name: str, target: str) -> str:
    """The first run at -O0 in full, its other levels as what each changes, and every other run as what differs from
    the first at the same level."""
    plugin = PLUGINS[name]
    profile = plugin.targets()[target]
    rows: dict[str, object] = {}
    first: list[dict[str, dict[str, object]]] = []
    for title, model, ranks in RUNS:
        for level in range(4):
            given = {
                "optimization_level": Given(level, "command line"),
                "parallel.tensor_parallel_size": Given(ranks, "command line"),
            }
            found = brief(plan_for(plugin, profile, model, given))
            if len(first) == 4:
                rows[f"{title} -O{level}"] = changes(first[level], found)
            else:
                rows[f"{title} -O{level}"] = changes(first[-1], found) if first else found
                first.append(found)
    return json.dumps(rows, indent=1, ensure_ascii=False) + "\n"


def changes(old: dict[str, dict[str, object]], new: dict[str, dict[str, object]]) -> dict[str, object]:
    """Only what differs."""
    found: dict[str, object] = {}
    for part, value in new.items():
        before = old[part]
        changed = {key: row for key, row in value.items() if before.get(key) != row}
        changed |= {f"without {key}": before[key] for key in before if key not in value}
        if changed:
            found[part] = changed
    return found


@pytest.mark.parametrize(("name", "target"), TARGETS, ids=":".join)
def test_plans_are_the_reviewed_ones(name: str, target: str) -> None:
    file = FOLDER / f"{name}-{target}.json"
    assert file.exists(), f"run python {Path(__file__).relative_to(ROOT)} and review {file.relative_to(ROOT)}"
    assert golden(name, target) == file.read_text()


def test_every_own_platform_loads_and_no_golden_file_is_left_over() -> None:
    assert set(PLUGINS) == set(OWN)
    assert {file.stem for file in FOLDER.glob("*.json")} == {f"{name}-{target}" for name, target in TARGETS}


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for stale in FOLDER.glob("*.json"):
        stale.unlink()
    for name, target in TARGETS:
        (FOLDER / f"{name}-{target}.json").write_text(golden(name, target))
    print(f"{len(TARGETS)} files written to {FOLDER.relative_to(ROOT)}")
