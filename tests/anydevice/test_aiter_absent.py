"""An AITER that is absent, half there, or not what the rows were written for: each row is judged alone, and a plan is
made without those that fail."""

from __future__ import annotations

import sys
import types

import pytest

import kernels_rocm.library
from engine.config import collect
from engine.first_touch import first_touch
from engine.plan import plan_for
from platforms.discovery import select
from platforms.rocm.plugin import RocmPlugin
from tests.aiter_cases import CASES, OPS, PROFILE, ROWS, inputs_of, run
from tests.aiter_stand_ins import install_aiter
from tests.model_configs import BLOCK, INT8, LLAMA, MLA, MOE


@pytest.fixture(autouse=True)
def nothing_remembered():
    """Each test finds the library it installed, and none after it does."""
    yield
    kernels_rocm.library.function.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "aiter"]:
        del sys.modules[name]


def unusable(op):
    """What a row of the installed library says when it is first touched."""
    _, sizes, attributes = next(case for case in CASES if case[0] == op)
    inputs = inputs_of(op, sizes, attributes)
    with pytest.raises(RuntimeError) as found:
        run(op, inputs, attributes)
    return str(found.value)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("(input, weight, epsilon,", "(input, weight, eps,", "unknown there: ['epsilon']"),
        ("(input, weight, epsilon,", "(input, weight, epsilon, gemma,", "not given: ['gemma']"),
        ("def rms_norm(", "def rms_norm_2(", "has no rms_norm"),
    ],
)
def test_a_version_that_declares_something_else_turns_off_one_row(monkeypatch, tmp_path, old, new, said):
    install_aiter(monkeypatch, tmp_path, {old: new})
    assert said in unusable("rms_norm")
    _, sizes, attributes = next(case for case in CASES if case[0] == "rms_norm_quantize_dynamic")
    assert (
        len(run("rms_norm_quantize_dynamic", inputs_of("rms_norm_quantize_dynamic", sizes, attributes), attributes))
        == 2
    )


@pytest.mark.parametrize(
    "error", ["RuntimeError('no ROCm version file')", "KeyError('gfx')", "ImportError('libamdhip64')"]
)
@pytest.mark.parametrize("op", sorted(ROWS))
def test_a_library_whose_import_fails_is_told(monkeypatch, tmp_path, op, error):
    """Without a working ROCm it raises other errors than ImportError."""
    (tmp_path / "aiter").mkdir()
    (tmp_path / "aiter" / "__init__.py").write_text(f"raise {error}")
    monkeypatch.syspath_prepend(str(tmp_path))
    said = unusable(op)
    assert "cannot be loaded" in said and error.partition("(")[0] in said and "repair the library" in said


@pytest.mark.parametrize("op", sorted(ROWS))
def test_a_library_without_a_module_of_its_own_is_told(monkeypatch, tmp_path, op):
    """A package of another author has the same name; a version may lack the file that holds a kernel."""
    (tmp_path / "aiter").mkdir()
    (tmp_path / "aiter" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "ModuleNotFoundError" in unusable(op)


@pytest.mark.parametrize(
    ("op", "lost"),
    [("moe", "def biased_grouped_topk("), ("moe", "def topk_softmax("), ("scaled_linear", "def gemm_a8w8_blockscale(")],
)
def test_a_row_that_picks_among_calls_is_refused_whole(monkeypatch, tmp_path, op, lost):
    """Its first touch is of one of them; what lacks would be found by the call of a user."""
    install_aiter(monkeypatch, tmp_path, {lost: f"{lost[:-1]}_2("})
    assert f"has no {lost.split()[1][:-1]} there" in unusable(op)


def test_a_module_without_source_is_told(monkeypatch):
    """Then nothing says what a call would do, and a wrong one may end the process."""
    for name in ("aiter", "aiter.ops", "aiter.ops.rmsnorm"):
        module = types.ModuleType(name)
        module.__path__ = []
        module.rms_norm = lambda **given: None
        monkeypatch.setitem(sys.modules, name, module)
    assert "no source to compare with" in unusable("rms_norm")


class Alone(RocmPlugin):
    """Rows of the library only, since the portable ones need the device."""

    def kernels(self):
        return tuple(ROWS.values())


@pytest.fixture(scope="module")
def runtime():
    selection = select("auto")
    opened = selection.plugin.open(selection.index)
    yield opened
    opened.close()


def touched(runtime, folder, model):
    """Rows of a plan after first touch, and what it said to those that it did not take."""

    def make(observations):
        return plan_for(Alone(), PROFILE, model, collect([], {}).given, environment={}, observations=observations)

    found = first_touch(make, OPS, tuple(ROWS.values()), runtime, folder)
    said = {row.op: verdict.reason for row in found.kernels for name, verdict in row.considered if name == "aiter"}
    return {row.op for row in found.kernels if row.chosen == "aiter"}, said


def test_a_half_present_library_loses_the_rows_it_lacks_and_no_others(monkeypatch, tmp_path, runtime):
    install_aiter(monkeypatch, tmp_path, {"def gemm_a8w8(": "def gemm_a8w8_2("})
    rows, said = touched(runtime, tmp_path / "cache", INT8)
    assert "scaled_linear" not in rows and "first touch: RuntimeError" in said["scaled_linear"]
    assert "has no gemm_a8w8 there" in said["scaled_linear"]
    assert {"add_rms_norm", "attention", "rotary_kv_write"} <= rows


@pytest.mark.parametrize("model", [LLAMA, INT8, BLOCK, MOE, MLA], ids=lambda model: model.name)
def test_a_library_that_cannot_be_imported_leaves_a_plan_without_it(monkeypatch, tmp_path, runtime, model):
    (tmp_path / "aiter").mkdir()
    (tmp_path / "aiter" / "__init__.py").write_text("raise RuntimeError('ROCm version file not found')")
    monkeypatch.syspath_prepend(str(tmp_path))
    rows, said = touched(runtime, tmp_path / "cache", model)
    assert not rows
    assert any("ROCm version file not found" in reason for reason in said.values())


@pytest.mark.parametrize("model", [LLAMA, INT8, BLOCK, MOE, MLA], ids=lambda model: model.name)
def test_a_library_as_recorded_passes_first_touch(monkeypatch, tmp_path, runtime, model):
    install_aiter(monkeypatch, tmp_path)
    rows, said = touched(runtime, tmp_path / "cache", model)
    assert rows and not [reason for reason in said.values() if "first touch" in reason]
    wanted = {INT8.name: "scaled_linear", BLOCK.name: "scaled_linear", MOE.name: "moe", MLA.name: "mla_attention"}
    assert wanted.get(model.name, "attention") in rows
