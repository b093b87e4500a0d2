"""The library of the host's kernels ahead of time: one unit for all rows, and what a start makes of a bundle."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.bundle import open_bundle, write_bundle
from engine.errors import UserError
from engine.fusion import RULES, all_ops
from engine.kernels.bundle_folder import MANIFEST
from engine.kernels.units import units_of
from kernels_cpu.build import compiled_before, library_for
from kernels_cpu.manifest import KERNELS
from platforms.contract import DeviceError, DeviceProfile
from platforms.cpu import bundle, native
from platforms.cpu.bundle import Unit, all_flags, installed, uninstall
from platforms.cpu.native import cache_folder, with_kernels
from platforms.cpu.plugin import CpuPlugin
from platforms.cpu.threads import read_threads
from platforms.machine import Machine
from tests.checkpoints import hf_config, random_weights, write_hf
from tests.described_plans import PLUGINS, own_rules, plan
from tests.model_configs import LLAMA

ROOT = str(Path(__file__).parents[2])
FEATURE = "kernel.cxx"
OPS = all_ops((*RULES, *own_rules("cpu")))


@pytest.fixture
def profile() -> DeviceProfile:
    (found,) = CpuPlugin().probe().profiles
    return found


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    uninstall()
    yield
    uninstall()


@pytest.fixture
def library(profile: DeviceProfile) -> Path:
    """As the suite has compiled it before."""
    return library_for(profile, profile.evidence["tool.cxx"], cache_folder(os.environ), 2)


@pytest.fixture
def made(profile: DeviceProfile, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bundle for this machine."""
    monkeypatch.setattr(Unit, "_compiled", lambda self, compiler, jobs: library.read_bytes())
    written = write_bundle(tmp_path / "bundle", plan(profile, LLAMA), KERNELS, OPS)
    assert written.forms == 1 and not written.problems
    return tmp_path / "bundle"


def without_compiler(profile: DeviceProfile) -> tuple[Machine, DeviceProfile]:
    machine = dataclasses.replace(Machine(), which=lambda name: None)
    (found,) = CpuPlugin(machine).probe().profiles
    assert FEATURE not in found.features and found.arch == profile.arch
    return machine, found


@pytest.mark.parametrize("target", sorted(PLUGINS["cpu"].targets()))
def test_all_rows_of_a_processor_share_one_unit(target: str) -> None:
    found = units_of(plan(PLUGINS["cpu"].targets()[target], LLAMA), KERNELS, OPS)
    ((unit, rows),) = found.rows.items()
    assert len(rows) > 5 and not found.problems
    assert unit.flags == bundle.flags_for(PLUGINS["cpu"].targets()[target])


def test_a_family_without_a_compiler_is_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "Machine", lambda: dataclasses.replace(Machine(), which=lambda name: None))
    for family, name in (("arm64", "g++"), ("x86-64", "g++"), ("riscv64", "riscv64")):
        said = Unit(family, ()).make()
        assert name in said["figures"]["left_out"] and said["problems"] == ()
        with pytest.raises(DeviceError, match=name.replace("+", r"\+")):
            Unit(family, ()).save(Path())


def test_what_the_compiler_refuses_is_a_problem(profile: DeviceProfile) -> None:
    said = Unit(profile.family, ("-march=abacus",)).make()
    assert "abacus" in said["problems"][0] and said["figures"]["compiler"]


def test_without_a_compiler_the_kernels_come_from_the_bundle(made: Path, profile: DeviceProfile) -> None:
    machine, bare = without_compiler(profile)
    body = json.loads((made / MANIFEST).read_text())
    assert ROOT not in (made / MANIFEST).read_text() and body["arch"] == profile.arch
    bundle_ = open_bundle(str(made), bare, KERNELS, True)
    opened = with_kernels(machine, bare, read_threads(machine))
    assert FEATURE in opened.features and str(made) in opened.evidence[f"features.{FEATURE}"]
    assert bundle_ is not None
    bundle_.check()


def test_with_a_compiler_nothing_is_compiled_beside_a_bundle_that_fits(
    made: Path, profile: DeviceProfile, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_bundle(str(made), profile, KERNELS, False)
    monkeypatch.setattr(native, "library_for", None)
    assert str(made) in with_kernels(Machine(), profile, read_threads(Machine())).evidence[f"features.{FEATURE}"]


def test_one_for_other_flags_is_one_line_and_under_force_the_end(
    made: Path, library: Path, profile: DeviceProfile, caplog: pytest.LogCaptureFixture
) -> None:
    less = dataclasses.replace(profile, features=frozenset(name for name in profile.features if "isa" not in name))
    less = dataclasses.replace(less, arch="x86-64-v1" if profile.family == "x86-64" else profile.arch)
    flags = all_flags(less, Machine())
    assert flags != all_flags(profile, Machine())
    assert open_bundle(str(made), profile, KERNELS, True) is not None
    with pytest.raises(DeviceError, match=r"ENGINE_FORCE_AOT_LOAD.*has kernels for .*, here they are for"):
        with_kernels(Machine(), less, read_threads(Machine()))
    open_bundle(str(made), profile, KERNELS, False)
    with caplog.at_level(logging.WARNING, "engine"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "library_for", lambda *given: library)
        assert FEATURE in with_kernels(Machine(), less, read_threads(Machine())).features
    (record,) = caplog.records
    assert "here they are for" in record.getMessage()
    found = installed()
    assert found is not None and found.misses


def test_one_for_another_processor_is_refused_before_the_device_opens(made: Path, profile: DeviceProfile) -> None:
    elsewhere = dataclasses.replace(profile, arch="another")
    assert open_bundle(str(made), elsewhere, KERNELS, False) is None and installed() is None
    with pytest.raises(UserError, match=r"the device is .*another"):
        open_bundle(str(made), elsewhere, KERNELS, True)


def test_one_of_other_sources_is_not_used(
    made: Path, profile: DeviceProfile, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(bundle, "sources_hash", lambda: "0" * 64)
    assert open_bundle(str(made), profile, KERNELS, False) is None
    assert "here is the kernels of version 000000000000" in caplog.text


@pytest.mark.parametrize("kind", ["bytes", "gone", "entry"])
def test_a_damaged_library_is_one_line_and_under_force_the_end(
    kind: str, made: Path, library: Path, profile: DeviceProfile, caplog: pytest.LogCaptureFixture
) -> None:
    (file,) = made.glob("*.so")
    if kind == "bytes":
        file.write_bytes(file.read_bytes()[:-1] + b"x")
    elif kind == "gone":
        file.unlink()
    else:
        body = json.loads((made / MANIFEST).read_text())
        body["forms"][0]["files"] = ["kernels.so"]
        (made / MANIFEST).write_text(json.dumps(body))
    found = open_bundle(str(made), profile, KERNELS, False)
    assert found is not None and found.forms == 0
    opened = with_kernels(Machine(), profile, read_threads(Machine()))
    assert FEATURE in opened.features and str(made) not in opened.evidence[f"features.{FEATURE}"]
    assert len(caplog.records) == 1 and "are not used" in caplog.text
    open_bundle(str(made), profile, KERNELS, True)
    with pytest.raises(DeviceError, match="has no whole library"):
        with_kernels(Machine(), profile, read_threads(Machine()))


def test_one_that_does_not_load_is_compiled_anew_or_under_force_the_end(
    made: Path, library: Path, profile: DeviceProfile, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Unit, "_compiled", lambda self, compiler, jobs: b"no library")
    write_bundle(made, plan(profile, LLAMA), KERNELS, OPS)
    open_bundle(str(made), profile, KERNELS, True)
    with pytest.raises(DeviceError, match="do not load"):
        with_kernels(Machine(), profile, read_threads(Machine()))
    open_bundle(str(made), profile, KERNELS, False)
    assert FEATURE in with_kernels(Machine(), profile, read_threads(Machine())).features
    assert "do not load" in caplog.text


def test_no_compiler_and_no_bundle_is_a_warning_and_the_cache_still_serves(
    library: Path, profile: DeviceProfile, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    machine, bare = without_compiler(profile)
    cached = with_kernels(machine, bare, read_threads(machine))
    assert FEATURE in cached.features and "compiled before" in cached.evidence[f"features.{FEATURE}"]
    assert compiled_before(cache_folder(os.environ), all_flags(bare, machine)) is not None and not caplog.records
    empty = dataclasses.replace(machine, environ={"ENGINE_CACHE_ROOT": str(tmp_path)})
    assert FEATURE not in with_kernels(empty, bare, read_threads(machine)).features
    (record,) = caplog.records
    assert "none of g++" in record.getMessage()


START = """
import os
from engine.config.sources import from_environment
from engine.core import EngineCore
core = EngineCore(from_environment(os.environ))
print(*sorted(f"{row.op}={row.chosen}" for row in core.plan.kernels if row.target))
core.close()
"""


def test_a_start_with_an_empty_cache_and_without_a_compiler_serves_compiled_kernels(made: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    config = hf_config("llama", tie_word_embeddings=True)
    write_hf(model, config, random_weights(config, seed=1))
    (tmp_path / "empty").mkdir()
    environ = {name: text for name, text in os.environ.items() if name != "CXX"} | {
        "PYTHONPATH": ROOT, "PATH": str(tmp_path / "empty"), "ENGINE_CACHE_ROOT": str(tmp_path / "cache"),
        "ENGINE_PLATFORM": "cpu", "ENGINE_MODEL": str(model), "ENGINE_KERNEL_BUNDLE": str(made),
        "ENGINE_FORCE_AOT_LOAD": "1", "ENGINE_MAX_MODEL_LEN": "64",
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-c", START], env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "attention=native" in done.stdout and "linear=native" in done.stdout
    assert not (tmp_path / "cache" / "kernels_cpu").exists()
