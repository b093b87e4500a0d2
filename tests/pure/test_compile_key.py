"""What a compiled piece is declared to be made from: everything that can change it, and no place on a disk."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from engine.compile import key
from engine.compile.key import HARMLESS, SHAPING, environment, settings
from engine.compile.store import Store
from engine.config.fields import FIELDS
from engine.fusion import RULES, all_ops
from engine.ops import OPS
from engine.plan import Plan, Tables, make_plan, model_facts
from engine.plan.make import Observations
from engine.plan_values import Decision
from platforms.contract import FusionOffer, FusionRule, always
from tests.described_plans import TARGETS, described
from tests.described_plans import plan as described_plan
from tests.model_configs import LLAMA
from tests.pure.toy_plans import ABLE, PROFILE, toy_model, toy_plan

ROOT = Path(__file__).parents[2]
ALL_OPS = all_ops(RULES)
RULE = FusionRule("fuse_add_norm", "add_norm", ("add(x, y) -> z", "rms_norm(z, w) -> n"), ("n", "z"), 2)
OFFERED = Tables(ABLE.kernels, (*ABLE.fusions, RULE, FusionOffer("fuse_add_norm", always("toys add"))),
                 ABLE.settings, ABLE.compiler, ABLE.graphs)  # fmt: skip


def observed() -> Plan:
    """With everything that a plan can decide: the blocks that fit, and a rule that the platform brings."""
    return make_plan(PROFILE, model_facts(toy_model()), {}, OFFERED, Observations(blocks=100, space="a toy box"))


PLAN = observed()
DECIDED = sorted(PLAN.decisions)
EVERY = sorted({field.key for field in FIELDS} | set(DECIDED))


def tables_of(name: str) -> list[str]:
    """The tables that know a setting."""
    found = []
    for title, patterns in (("HARMLESS", HARMLESS), ("SHAPING", SHAPING)):
        found += [title] if any(fnmatchcase(name, pattern) for pattern in patterns) else []
    return found


@pytest.mark.parametrize("name", EVERY)
def test_H_CCH_01_every_setting_is_in_one_table(name):
    assert len(tables_of(name)) == 1, (
        f"{name} is in {tables_of(name) or 'neither table'}: say in engine/compile/key.py whether it can change a piece"
    )


@pytest.mark.parametrize(("platform", "target"), TARGETS)
def test_H_CCH_01_every_decision_of_our_platforms_is_in_one_table(platform, target):
    found = described_plan(described(platform, target), LLAMA)
    assert {name: tables_of(name) for name in found.decisions if len(tables_of(name)) != 1} == {}


def test_H_CCH_01_an_unknown_setting_is_in_no_table_and_counts():
    name = "speculation.draft_tokens"
    with pytest.raises(AssertionError, match=r"speculation\.draft_tokens is in neither table"):
        test_H_CCH_01_every_setting_is_in_one_table(name)
    three, five = (settings(decided(name, count)) for count in (3, 5))
    assert three[name] == 3 and three != five


def test_every_harmless_setting_says_why():
    assert all(len(why) > 10 for why in HARMLESS.values())


def decided(name: str, value: object) -> Plan:
    row = Decision(name, value, "command line", "asked for")
    return dataclasses.replace(PLAN, decisions={**PLAN.decisions, name: row})


def changed(value: object) -> object:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    return f"{value} and more" if isinstance(value, str) else [value, "more"]


@pytest.mark.parametrize("name", DECIDED)
def test_H_CCH_01_a_decision_changes_the_key_unless_it_is_harmless(tmp_path, name):
    plain, other = settings(PLAN), settings(decided(name, changed(PLAN[name])))
    Store(tmp_path).write(plain, b"first")
    hit = Store(tmp_path).read(other)
    assert hit == (b"first" if tables_of(name) == ["HARMLESS"] else None)


@pytest.mark.parametrize("name", DECIDED)
def test_H_CCH_01_who_decided_and_why_changes_nothing(name):
    assert settings(decided(name, PLAN[name])) == settings(PLAN)


SHAPING_WORDS = [
    "--dtype=bfloat16", "--block-size=32", "--kernel=rms_norm=old", "--kernels=reference", "-cc.mode=NONE",
    "-cc.backend=eager", "-cc.custom_ops=+rotary", "-cc.splitting_ops=rotary",
    "-cc.pass_config.fuse_rope_kvcache=false", "-cc.pass_config.rope_kvcache_max_tokens=8", "--enforce-eager",
    "--max-num-batched-tokens=512", "-tp=2", "-O0", "--kv-cache-dtype=bfloat16",
]  # fmt: skip
HARMLESS_WORDS = [
    "--gpu-memory-utilization=0.4", "--kv-cache-memory-bytes=1M", "-cc.graph_mode=PIECEWISE", "--max-num-seqs=7",
    "--scheduling-policy=priority",
    "--enable-prefix-caching=false", "--capture-sizes=1,2,4", "--max-capture-size=64", "-cc.compile_sizes=4",
    "-cc.compile_ranges_endpoints=16", "-cc.debug_dump_path=/tmp/dump", "--max-model-len=100",
    "--long-prefill-token-threshold=8", "--port=1", "--served-model-name=me", "--seed=3", "-O3",
]  # fmt: skip


@pytest.mark.parametrize("word", SHAPING_WORDS)
def test_H_CCH_01_a_flag_that_shapes_pieces_changes_the_key(word):
    assert settings(toy_plan(word)) != settings(toy_plan())


@pytest.mark.parametrize("word", HARMLESS_WORDS)
def test_H_CCH_01_a_flag_that_cannot_leaves_it(word):
    assert settings(toy_plan(word)) == settings(toy_plan())


def test_blocks_that_happen_to_fit_leave_the_key():
    facts = model_facts(toy_model())
    few, many = (make_plan(PROFILE, facts, {}, ABLE, Observations(blocks=blocks, space="")) for blocks in (5, 9))
    assert few["scheduler.max_model_len"] != many["scheduler.max_model_len"]
    assert settings(few) == settings(many)


FACTS = {
    "platform": "other", "arch": "toy-v2", "family": "toasters", "features": {"dtype.float32"},
    "limits": {"shared_memory": 3}, "libraries": {"toys": "2"},
}  # fmt: skip
BESIDE = {"product": "Toy 4000", "memory_bytes": 1, "origin": "probed", "evidence": {"arch": "a label"}}


@pytest.mark.parametrize("fact", [*FACTS, *BESIDE])
def test_H_CCH_01_facts_of_the_device(fact):
    profile = dataclasses.replace(PROFILE, **{fact: {**FACTS, **BESIDE}[fact]})
    same = environment(dataclasses.replace(PLAN, profile=profile), OPS) == environment(PLAN, OPS)
    assert same == (fact in BESIDE)


def test_how_much_of_a_device_a_process_is_given_is_no_part_of_its_code():
    limits = {**PROFILE.limits, "threads": 63, "physical_cores": 31, "numa_nodes": 5}
    profile = dataclasses.replace(PROFILE, limits=limits)
    assert environment(dataclasses.replace(PLAN, profile=profile), OPS) == environment(PLAN, OPS)


@pytest.mark.parametrize("library", ["torch", "triton"])
def test_H_CCH_01_versions(monkeypatch, library):
    real = key.version
    monkeypatch.setattr(key, "version", lambda name: "9.9.9" if name == library else real(name))
    assert environment(PLAN, OPS)[library] == "9.9.9"


def test_a_library_is_found_under_another_distribution_or_absent(monkeypatch):
    def missing(name):
        if name == "pytest-of-a-vendor":
            return "7"
        raise key.PackageNotFoundError(name)

    monkeypatch.setattr(key, "version", missing)
    monkeypatch.setattr(key, "packages_distributions", lambda: {"pytest": ["pytest-of-a-vendor"]})
    assert key._version("pytest") == "pytest-of-a-vendor 7"
    assert key._version("no_such_module") == "absent" and key._version("json") == "unknown"


def test_variables_of_code_generators_count(monkeypatch):
    before = environment(PLAN, OPS)
    monkeypatch.setenv("TORCHINDUCTOR_MAX_AUTOTUNE", "1")
    assert environment(PLAN, OPS) != before
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert set(environment(PLAN, OPS)["variables"]) >= {"TORCHINDUCTOR_MAX_AUTOTUNE", "TRITON_INTERPRET"}


def test_H_CCH_01_the_pattern_of_a_platforms_own_rule_counts():
    turned = dataclasses.replace(RULE, pattern=("add(y, x) -> z", "rms_norm(z, w) -> n"))
    one, other = (environment(PLAN, all_ops((rule,))) for rule in (RULE, turned))
    assert one["sources"] == other["sources"] and one != other
    assert environment(PLAN, all_ops((RULE,))) == one


def test_what_is_declared_is_plain():
    declared = {**settings(PLAN), **environment(PLAN, ALL_OPS)}
    assert json.loads(json.dumps(declared)) == declared
    strange = {"set": {2, 1}, "one": Path("/x"), "row": (1, None, {3: frozenset("a")})}
    assert settings(decided("strange", strange))["strange"] == {
        "set": [1, 2], "one": "PosixPath('/x')", "row": [1, None, {"3": ["a"]}]
    }  # fmt: skip


PRINT = """
import json, sys
from engine.compile.key import environment, settings
from engine.fusion import RULES, all_ops
from tests.pure.toy_plans import toy_plan
plan = toy_plan()
print(json.dumps([settings(plan), environment(plan, all_ops(RULES))], sort_keys=True))
assert "torch" not in sys.modules
"""


def declared(root: Path, cwd: Path, **variables: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ENGINE_", "VLLM_"))}
    inherited = {**kept, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1", **variables}
    command = [sys.executable, "-c", PRINT]
    return subprocess.run(command, env=inherited, cwd=cwd, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """The sources at another place, without bytecode."""
    root = tmp_path_factory.mktemp("another place")
    skip = shutil.ignore_patterns("__pycache__", "*.so")
    for name in ("engine", "platforms", "tests/pure"):
        shutil.copytree(ROOT / name, root / name, ignore=skip)
    return root


def test_H_CCH_05_places_leave_what_is_declared(tmp_path, installed):
    here = declared(ROOT, ROOT)
    away = tmp_path / "cache"
    moved = declared(
        installed, tmp_path, HOME=str(tmp_path), XDG_CACHE_HOME=str(away), XDG_CONFIG_HOME=str(away),
        ENGINE_CACHE_ROOT=str(away), VLLM_CACHE_ROOT=str(away), ENGINE_DEBUG_DUMP_PATH=str(away), ENGINE_PORT="1",
        TMPDIR=str(tmp_path), TORCHINDUCTOR_CACHE_DIR=str(away), TRITON_CACHE_DIR=str(away), TRITON_HOME=str(away),
    )  # fmt: skip
    assert moved == here
    for place in (str(ROOT), str(Path.home()), str(tmp_path)):
        assert place not in moved


def test_H_CCH_05_times_of_change_leave_it_and_one_byte_does_not(tmp_path, installed):
    before = declared(installed, tmp_path)
    for name in ("engine/ops/norm.py", "engine/compile/cut.py", "engine/fusion/fused.py"):
        file = installed / name
        kept = file.read_bytes()
        file.touch()
        assert declared(installed, tmp_path) == before
        file.write_bytes(kept + b"\n")
        assert declared(installed, tmp_path) != before
        file.write_bytes(kept)
    assert declared(installed, tmp_path) == before


def test_a_source_of_a_strangers_op_counts(tmp_path, monkeypatch):
    (tmp_path / "stranger" / "deep").mkdir(parents=True)
    for name in ("__init__", "deep/__init__", "deep/ops", "helpers"):
        (tmp_path / "stranger" / f"{name}.py").write_text("def twice(x):\n    return x + x\n")
    monkeypatch.syspath_prepend(tmp_path)
    from stranger.deep.ops import twice

    ops = {**OPS, "twice": dataclasses.replace(OPS["add"], name="twice", reference=twice)}
    before = key.sources(ops)
    assert "stranger" in before and key.sources(ops) == before
    (tmp_path / "stranger" / "helpers.py").write_text("def twice(x):\n    return x * x\n")
    assert key.sources(ops) != before
    for name in [name for name in sys.modules if name.partition(".")[0] == "stranger"]:
        del sys.modules[name]


def test_a_source_that_cannot_be_read_is_never_taken_for_unchanged():
    def typed(x):
        return x

    typed.__module__ = "no_such_module"
    ops = {"typed": dataclasses.replace(OPS["add"], name="typed", reference=typed)}
    assert key.sources(ops)["no_such_module"] != key.sources(ops)["no_such_module"]
