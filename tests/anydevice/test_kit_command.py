"""``engine conform``: exit codes, tables, and what did not run."""

import json

import pytest

import engine.cli
from platforms.contract import Probe
from tests.strange_platform import CASE, SELECTION, Stranger, good, norm, off


def test_the_command_says_passed_failed_and_not_supported_apart(capsys, tmp_path):
    globals()["SHOWN"] = Stranger((norm(off),))
    name, report = f"{__name__}:SHOWN", tmp_path / "support.csv"
    words = ["conform", name, "--chapter", "kernels", "--report", str(report)]
    assert engine.cli.main(words) == 1
    out = capsys.readouterr().out
    assert "chapter  passed  failed  not supported" in out
    assert f"failed  kernels/rms_norm/off/{CASE}" in out
    assert "rms_norm," in report.read_text()
    assert engine.cli.main([*words, "--json"]) == 1
    body = json.loads(capsys.readouterr().out)
    assert body["failed"] == sum(row["state"] == "failed" for row in body["outcomes"]) > 0
    assert engine.cli.main(["conform", SELECTION.plugin.name, "--chapter=plans"]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["no_such_platform"], "no platform 'no_such_platform' is installed"),
        (["no_such_package:Plugin"], "does not load: ModuleNotFoundError"),
        ([], "takes one NAME"),
        (["a", "b"], "takes one NAME"),
        (["cpu", "--chapter", "magic"], "no chapter 'magic'"),
        (["cpu", "--chapter"], "--chapter needs a value"),
        (["cpu", "--report", "x.html"], "written as .csv or .md"),
        (["cpu", "--fast"], "unknown word --fast"),
    ],
)
def test_what_cannot_be_asked_is_one_message_and_code_2(words, said, capsys):
    assert engine.cli.main(["conform", *words]) == 2
    assert said in capsys.readouterr().err


def test_checks_that_found_no_device_are_counted_and_fail_on_request(capsys):
    class Absent(Stranger):
        def probe(self):
            return Probe(evidence=("no chip on the bus",))

    globals()["ABSENT"] = Absent((norm(good),))
    words = ["conform", f"{__name__}:ABSENT", "--chapter", "memory"]
    assert engine.cli.main(words) == 0
    assert "no device here: 8 device checks did not run" in capsys.readouterr().out
    assert engine.cli.main([*words, "--require-device"]) == 1
    assert "--require-device asks for them" in capsys.readouterr().out
