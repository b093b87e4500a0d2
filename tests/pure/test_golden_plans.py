"""Plans per target × level × model, as text that can be reviewed.

``python tests/pure/test_golden_plans.py`` writes the files again after a change on purpose.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from engine.models.config import ModelConfig  # noqa: E402
from engine.plan import plan_for  # noqa: E402
from engine.plan_values import Given, Plan  # noqa: E402
from platforms.discovery import candidates  # noqa: E402
from tests.profiles import MODEL  # noqa: E402

FOLDER = ROOT / "tests/golden/plans"
SIZES = {"hidden_size": 4096, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128}
LLAMA = dataclasses.replace(MODEL, name="llama", dtype="bfloat16", **SIZES)
MODELS: tuple[ModelConfig, ...] = (LLAMA, dataclasses.replace(LLAMA, name="qwen3", architecture="qwen3", qk_norm=True))
OWN = ("cuda", "rocm", "cpu")
PLUGINS = {row.name: row.plugin for row in candidates() if row.name in OWN and row.plugin}
TARGETS = [(name, target) for name, plugin in PLUGINS.items() for target in plugin.targets()]


def brief(plan: Plan) -> dict[str, object]:
    """What a reviewer wants to see of a plan; equal parts of two levels read equal."""
    return {
        "settings": {key: row.value for key, row in plan.decisions.items() if "pass_config" not in key},
        "kernels": {f"{row.op} x{row.count}": row.chosen for row in plan.kernels},
        "fusions": {
            row.rule: f"{'on' if row.matched else 'off'}: {row.reason}" for row in plan.fusions if row.requested
        },
        "warnings": list(plan.warnings),
    }


def golden(name: str, target: str) -> str:
    plugin = PLUGINS[name]
    profile = plugin.targets()[target]
    rows: dict[str, object] = {}
    for model in MODELS:
        base: dict[str, object] = {}
        for level in range(4):
            found = brief(plan_for(plugin, profile, model, {"optimization_level": Given(level, "command line")}))
            rows[f"{model.name} -O{level}"] = changes(base, found) if level else found
            base = found
    text = json.dumps(rows, indent=1, default=list)
    return re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda found: "[" + " ".join(found[1].split()) + "]", text) + "\n"


def changes(old: dict[str, object], new: dict[str, object]) -> dict[str, object]:
    """Only what differs from the level below."""
    found: dict[str, object] = {}
    for part, value in new.items():
        if isinstance(value, dict):
            before = old[part]
            assert isinstance(before, dict)
            changed = {key: row for key, row in value.items() if before.get(key) != row}
            changed |= {f"without {key}": before[key] for key in before if key not in value}
            if changed:
                found[part] = changed
        elif value != old[part]:
            found[part] = value
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
