"""A stranger's distribution, installed as anybody would install one, is a platform like ours."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.conformance import CHAPTERS
from tests.throwaway import ROOT, Throwaway

CHIP = {"TOY_CHIP": "1"}
ROWS = ("rms_norm/toy_tiles", "rotary_kv_write/toy_complex")
MENTIONING = ("tests/", "docs/")
"""Where the stranger may be spoken of: its own folder, tests and documents."""

SERVE = """
import json
from engine import LLM, SamplingParams
if __name__ == "__main__":
    sizes = {"max_model_len": 96, "kv_cache_memory_bytes": "32M", "max_num_batched_tokens": 96}
    with LLM(platform="toy", **sizes) as llm:
        (answer,) = llm.generate(["The capital of France is"], SamplingParams(temperature=0, max_tokens=6), False)
        rows = {row.op: row.chosen for row in llm.plan.kernels}
    print(json.dumps({"text": answer.outputs[0].text, "rows": rows}))
"""


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Throwaway]:
    folder = tmp_path_factory.mktemp("stranger")
    source = folder / "source"
    shutil.copytree(ROOT / "tests/toy_platform", source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    place = Throwaway(folder / "venv")
    place.install(str(source))
    shutil.rmtree(source)
    yield place


def test_installing_it_changes_nothing_until_its_variable_is_set(stranger: Throwaway) -> None:
    body = json.loads(stranger.run("engine", "platforms", "--json").stdout)
    (row,) = [row for row in body["rows"] if row["name"] == "toy"]
    assert row["devices"] == [] and row["reason"] == "TOY_CHIP not set: no chip" and body.get("platform") != "toy"


def test_with_its_variable_it_is_chosen(stranger: Throwaway) -> None:
    body = json.loads(stranger.run("engine", "platforms", "--json", environment=CHIP).stdout)
    (row,) = [row for row in body["rows"] if row["name"] == "toy"]
    others = [row["name"] for row in body["rows"] if row["devices"] and row["kind"] == "accelerator"]
    assert row["evidence"] == ["TOY_CHIP=1: one chip of the second generation"] and "toy" in others
    assert body.get("platform") == "toy" or others != ["toy"]


def test_a_value_nobody_understands_is_told(stranger: Throwaway) -> None:
    done = stranger.run("engine", "explain", "--platform", "toy", environment={"TOY_CHIP": "2"})
    assert done.returncode == 2 and "TOY_CHIP=2 is not understood" in done.stderr and "Traceback" not in done.stderr


def choices(body: dict[str, object], op: str) -> list[dict[str, object]]:
    return [row for row in body["kernels"] if row["op"] == op]  # type: ignore[attr-defined]


def test_its_targets_are_planned_for_with_its_reasons(stranger: Throwaway) -> None:
    plans = {
        name: json.loads(stranger.run("engine", "explain", "--json", "--platform", f"toy:{name}").stdout)
        for name in ("gen1", "gen2")
    }
    large, small = (choices(plans[name], "rms_norm")[0] for name in ("gen2", "gen1"))
    assert large["chosen"] == "toy_tiles" and small["chosen"] == "reference"
    assert "scratch_bytes 24576 < 29952" in str(small["reason"])
    for body in plans.values():
        assert body["decisions"]["cache.block_size"] == {
            "value": 12,
            "origin": "platform",
            "reason": "the chip moves 12 rows at a time",
        }
        (fusion,) = [row for row in body["fusions"] if row["rule"] == "fuse_rope_kvcache"]
        assert fusion["matched"] == 30, fusion


def test_its_variable_reaches_its_predicates(stranger: Throwaway) -> None:
    words = ("engine", "explain", "--json", "--platform", "toy:gen2")
    done = stranger.run(*words, environment={"TOY_KERNELS": "0"})
    assert {row["chosen"] for row in json.loads(done.stdout)["kernels"]} == {"reference"}
    assert "TOY_KERNELS=0" in done.stdout and "unread" not in done.stderr


def test_it_serves_a_request(stranger: Throwaway, tmp_path: Path) -> None:
    (tmp_path / "serve.py").write_text(SERVE)
    done = stranger.run("python", "serve.py", folder=tmp_path, environment=CHIP)
    assert done.returncode == 0, done.stdout + done.stderr
    body = json.loads(done.stdout.splitlines()[-1])
    assert "Paris" in body["text"]
    assert (body["rows"]["rms_norm"], body["rows"]["rotary_kv_write"]) == ("toy_tiles", "toy_complex")


def test_without_a_chip_it_is_not_opened(stranger: Throwaway, tmp_path: Path) -> None:
    (tmp_path / "serve.py").write_text(SERVE)
    done = stranger.run("python", "serve.py", folder=tmp_path)
    assert done.returncode != 0 and "TOY_CHIP not set: no chip" in done.stderr


def test_it_passes_the_kit(stranger: Throwaway) -> None:
    done = stranger.run("engine", "conform", "toy", "--require-device", "--json", environment=CHIP)
    assert done.stdout, done.stderr
    body = json.loads(done.stdout)
    states = {f"{row['chapter']}/{row['check']}": row["state"] for row in body["outcomes"]}
    assert not [row for row in body["outcomes"] if row["state"] == "failed"] and done.returncode == 0
    assert {name.partition("/")[0] for name, state in states.items() if state == "passed"} == set(CHAPTERS)
    idle = [name for name, state in states.items() if state == "not supported"]
    at = "kernels/rotary_kv_write/toy_complex/"
    assert f"{at}odd-sizes" in idle and all(name.startswith(at) for name in idle), "heads turned in part, other types"
    assert any(name.startswith(f"{at}tokens=") and state == "passed" for name, state in states.items())
    assert {f"kernels/{at}" for at in ROWS} <= {name.rpartition("/")[0] for name in states}


def test_adding_it_touched_nothing_outside_its_folder() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    names = listed.stdout.split() if listed.returncode == 0 else [str(p.relative_to(ROOT)) for p in ROOT.rglob("*")]
    files = [ROOT / name for name in names if not name.startswith(MENTIONING) and (ROOT / name).is_file()]
    assert len(files) > 100
    spoken = [str(file) for file in files if "toy_platform" in file.read_bytes().decode("latin-1")]
    assert not spoken
    assert "toy" not in (ROOT / "pyproject.toml").read_text()


def test_it_imports_the_contract_and_nothing_of_the_engine() -> None:
    import ast
    import sys

    for file in (ROOT / "tests/toy_platform").rglob("*.py"):
        light = file.stem in ("plugin", "targets", "manifest", "__init__")
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            for name in names:
                top = name.split(".")[0]
                assert (
                    name == "platforms.contract"
                    or top == "toy_platform"
                    or top in sys.stdlib_module_names
                    or (top == "torch" and not light)
                ), f"{file}: {name}"
