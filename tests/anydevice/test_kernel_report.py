"""``engine kernels report`` with rows of a stranger: whom it asks, what it makes once, what it says of what breaks."""

import json
from dataclasses import dataclass

import pytest

from engine.cli import kernel_report, main
from engine.explain.matrix import Device
from engine.kernels.report import asked_for, clean, render, report
from engine.kernels.units import make_all
from engine.plan_values import Given
from platforms.contract import Kernel, Verdict
from platforms.cuda.plugin import CudaPlugin
from tests.model_configs import LLAMA

HERE = "tests.anydevice.test_kernel_report"


@dataclass(frozen=True, slots=True)
class Unit:
    name: str
    arch: str
    breaks: bool = False

    def make(self):
        if self.breaks:
            raise RuntimeError("no such instruction\nmore of it")
        return {"figures": {"registers": len(self.name), "matrix": ("fma",)}, "problems": ()}


def build(profile, target, tensors, attributes):
    assert all(x.device.type == "meta" for x in tensors)
    tokens = tensors[0].shape[0]
    return (Unit(f"{target.partition(':')[2]} rows={16 if tokens <= 16 else 64}", "toy"),)


def build_broken(profile, target, tensors, attributes):
    return (Unit("broken", profile.arch, True),)


def build_nothing(profile, target, tensors, attributes):
    raise ValueError("a tile of no size")


def packed(tensors, attributes):
    return tuple(x.t() for x in tensors)


def build_packed(profile, target, tensors, attributes):
    assert tensors[1].stride(0) == 1, "weights come as pack lays them out"
    return build(profile, target, tensors, attributes)


def row(op, name, builder="build", **more):
    return Kernel(op, name, f"{HERE}:{op}_{name}", build=f"{HERE}:{builder}" if builder else "", **more)


class Plugin(CudaPlugin):
    rows = ()

    def kernels(self):
        return self.rows


def on(*rows, targets=("sm_80", "sm_90"), **more):
    plugin = Plugin()
    plugin.rows = rows
    devices = [Device(f"toy:{name}", plugin, plugin.targets()[name], False) for name in targets]
    return report(devices, LLAMA, {}, {}, **more)


def names(target):
    return {unit.name: sorted(rows) for unit, rows in target.units.rows.items()}


def test_every_row_that_says_yes_is_asked_and_equal_units_are_made_once():
    told = []
    found = on(
        row("linear", "first", priority=9),
        row("linear", "second"),
        row("linear", "never", accepts=lambda profile, facts: Verdict(False, "no")),
        row("linear", "plain", "", priority=-1),
        told=lambda done, count, name: told.append((done, count)),
    )
    assert [target.device.label for target in found] == ["toy:sm_80", "toy:sm_90"]
    for target in found:
        assert names(target) == {
            f"linear_{which} rows={rows}": [f"linear/{which}"] for which in ("first", "second") for rows in (16, 64)
        }
        assert not target.problems and len(target.made) == 4
    assert told == [(done, 4) for done in (1, 2, 3, 4)] and clean(found)


def test_weights_are_those_that_a_row_has_packed():
    (found,) = on(row("linear", "turned", "build_packed", pack=f"{HERE}:packed"), targets=("sm_90",))
    assert not found.problems and len(found.units.rows) == 2


def test_what_breaks_is_a_problem_of_its_device_and_the_rest_goes_on():
    rows = row("linear", "fine"), row("rms_norm", "broken", "build_broken"), row("embedding", "none", "build_nothing")
    (found,) = on(*rows, targets=("sm_90",))
    assert found.problems == [
        "embedding/none names no units of work for sm_90: ValueError: a tile of no size",
        "broken: cannot be made: RuntimeError: no such instruction",
    ]
    assert not clean([found]) and "linear_fine rows=16" in names(found)
    text = render([found], ["platform x is left out"], 80, False)
    assert "2 problems" in text and "problem  broken: cannot be made" in text and "left out" in text
    assert all(len(line) <= 80 for line in text.splitlines() if not line.startswith("  problem"))
    assert json.loads(json.dumps(found.to_json()))["problems"] == found.problems


def test_a_device_without_rows_that_are_built_is_left_out():
    assert on(row("linear", "plain", "")) == []


def test_processes_share_the_work_and_one_does_it_all():
    units = [Unit(f"u{at}", "toy", at == 3) for at in range(7)]
    one, two = (dict(make_all(units, processes)) for processes in (1, 2))
    assert one == two and set(one) == set(units)
    assert one[units[3]]["problems"] == ("cannot be made: RuntimeError: no such instruction",)


def test_all_devices_are_asked_for_by_that_word_and_by_none():
    given = {}, {"platform": Given("all", "command line")}
    one, other = ([device.profile for device in asked_for(words)[0]] for words in given)
    assert one == other and {profile.arch for profile in one} >= {"sm_90", "gfx942"}
    assert len({(profile.platform, profile.arch) for profile in one}) == len(one)
    one, _ = asked_for({"platform": Given("cuda:sm_90", "command line")})
    assert [device.profile.arch for device in one] == ["sm_90"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["kernels"], "engine kernels takes report"),
        (["kernels", "sort"], "found sort"),
        (["kernels", "report", "--platform", "cpu:amx"], "is made ahead of time; --platform names others"),
        (["kernels", "report", "--nonsense"], "--nonsense"),
    ],
)
def test_what_cannot_be_answered_says_so_with_code_2(words, said, capsys):
    assert main(words) == 2
    assert said in capsys.readouterr().err


def test_progress_is_written_where_a_person_sees_it():
    class Stream:
        def __init__(self, terminal):
            self.text, self.terminal = "", terminal

        def isatty(self):
            return self.terminal

        def write(self, text):
            self.text += text

        def flush(self):
            pass

    for terminal in (False, True):
        stream = Stream(terminal)
        told = kernel_report.progress(stream)
        told(1, 2, "linear")
        told(2, 2, "linear")
        assert ("1/2 linear" in stream.text) == terminal and stream.text.endswith("\x1b[2K" * terminal)
