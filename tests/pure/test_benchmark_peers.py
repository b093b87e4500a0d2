"""The harness that puts engines side by side: judging, tables, the chart, processes and scores."""

import json
import math
import os
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from benchmarks.compare import tables
from benchmarks.compare.accuracy import Score
from benchmarks.compare.arguments import parse
from benchmarks.compare.cases import decode, prefill
from benchmarks.compare.chart import chart
from benchmarks.compare.command import headline
from benchmarks.compare.goals import ENGINE, GOALS, READING, Goal, judge
from benchmarks.compare.outlook import outlook
from benchmarks.compare.process import Failed, Process
from benchmarks.compare.roster import PEERS, Entrant, entrants
from engine.errors import UserError

SPEEDS = {
    "decode, batch 1": {ENGINE: 180.0, "llama.cpp": 90.0, "openvino": 120.0, READING: 200.0},
    "peak memory": {ENGINE: 300.0, "llama.cpp": 250.0, "openvino": 500.0},
}


def found(row: str, against: str, limit: float, values=SPEEDS, absent=None):
    return judge(Goal(row, against, limit), values, absent or {}, {})


def test_the_best_of_all_peers_is_compared_not_the_one_that_was_named() -> None:
    one = found("decode, batch 1", "llama.cpp", 1.7)
    assert (one.best, one.met, one.words) == ("openvino", False, "not met")
    assert one.ratio == pytest.approx(1.5)


def test_less_is_better_where_the_row_says_so() -> None:
    assert found("peak memory", "llama.cpp", 1.2).met
    assert found("peak memory", "llama.cpp", 1.1).met is False


def test_the_reading_limit_is_no_peer() -> None:
    assert found("decode, batch 1", READING, 0.9).met
    alone = {"decode, batch 1": {ENGINE: 180.0, READING: 200.0}}
    assert found("decode, batch 1", "llama.cpp", 1.7, alone).met is None


@pytest.mark.parametrize("goal", GOALS, ids=lambda goal: f"{goal.row} {goal.against}")
def test_what_was_not_measured_is_never_met(goal: Goal) -> None:
    for values in ({}, {goal.row: {"openvino": 1.0}}, {goal.row: {ENGINE: 1e-9, "other": 1.0}}):
        one = judge(goal, values, {goal.against: "absent: no such module"}, {})
        if goal.against or ENGINE not in values.get(goal.row, {}):
            assert one.met is None and one.words == "not measured" and one.reason


def test_an_absent_peer_is_a_row_that_says_so() -> None:
    here = {one.name: one for one in entrants([f"openvino={sys.executable}"], ["llama.cpp"], "cache")}
    assert set(here) == {ENGINE, *PEERS}
    assert here["llama.cpp"].absent == "left out by --without"
    verdict = found("prefill 512", "openvino", 1.7, {"prefill 512": {ENGINE: 5.0}}, {"openvino": "absent: nothing"})
    said = tables.judged([verdict])[1]
    assert said[-1] == "not measured: openvino: absent: nothing" and said[2] == "–"


def test_who_is_absent_and_about_how_long_it_takes_is_said_before_it_begins() -> None:
    taking = [
        Entrant(ENGINE, "python", "w"),
        Entrant("llama.cpp", "python", "w", "absent: this interpreter has no llama_cpp"),
        Entrant("openvino", "python", "w", "left out by --without"),
        Entrant("transformers", "python", "w"),
    ]
    first, absent, without, time_ = outlook(parse([], ""), taking)
    assert first == "engine, transformers: the engine beside 1 of 3 peers"
    assert absent.startswith("not llama.cpp, this interpreter has no llama_cpp; ") and "--peer llama.cpp=" in absent
    assert without == "not openvino, left out by --without"

    def minutes(line: str) -> int:
        return int(line.split()[1])

    assert 3 <= minutes(time_) <= 30
    assert minutes(outlook(parse(["--quick"], ""), taking)[-1]) < minutes(time_)
    assert minutes(outlook(parse(["--quick", "--only", "speed"], ""), taking[:1])[-1]) == 1


def test_names_and_interpreters_that_do_not_exist_are_refused() -> None:
    with pytest.raises(UserError, match="no peer"):
        entrants(["vllm=python"], [], "cache")
    with pytest.raises(UserError, match="does not run"):
        entrants(["openvino=/nowhere/python"], [], "cache")


@pytest.mark.parametrize(
    "words",
    [["--only", "speeds"], ["--batches", "0"], ["--batches", "1,x"], ["--rounds", "0"], ["--quick", "--write-readme"]],
)
def test_words_that_cannot_be_followed_are_refused(words: list[str]) -> None:
    with pytest.raises(UserError):
        parse(words, "")


def test_tables_have_a_cell_for_everyone_and_write_between_marks(tmp_path: Path) -> None:
    cells = tables.measured(SPEEDS, [ENGINE, "llama.cpp", "openvino", "transformers"])
    assert cells[0] == ["", ENGINE, "llama.cpp", "openvino", READING, ""]
    assert cells[2] == ["peak memory", "300", "250", "500", "–", "MiB"]
    file = tmp_path / "README.md"
    file.write_text("before\n<!-- peers -->\nold\n<!-- /peers -->\nafter\n")
    tables.write_between(file, "peers", tables.markdown(cells))
    text = file.read_text()
    assert "old" not in text and text.startswith("before\n") and text.endswith("<!-- /peers -->\nafter\n")
    assert text.count("| peak memory | 300 |") == 1
    with pytest.raises(UserError, match="levels"):
        tables.write_between(file, "levels", "x")


def test_ratios_of_a_disturbed_run_are_not_called_met() -> None:
    verdicts = [found("decode, batch 1", "llama.cpp", 1.0), found("peak memory", "llama.cpp", 1.5)]
    assert [row[-1] for row in tables.judged(verdicts)[1:]] == ["met", "met"]
    assert [row[-1] for row in tables.judged(verdicts, frozenset({"tokens/s"}))[1:]] == [
        "disturbed by other programs",
        "met",
    ]


def test_the_chart_draws_bars_to_scale() -> None:
    root = ElementTree.fromstring(chart(SPEEDS, [ENGINE, "llama.cpp", "openvino"], "a < b"))
    widths = [float(one.get("width", 0)) for one in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert len(widths) == 3
    assert widths[1] / widths[0] == pytest.approx(90 / 180, abs=0.01)


def test_scores_agree_with_the_formula() -> None:
    np = pytest.importorskip("numpy")
    truth, other = np.log([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]), np.log([[0.25, 0.5, 0.25], [0.1, 0.8, 0.1]])
    score = Score()
    score.add(truth + 3.0, other - 5.0)
    report = score.report()
    assert report["kl"] == pytest.approx((0.5 * math.log(2) - 0.25 * math.log(2)) / 2)
    assert (report["same"], report["tokens"]) == (0.5, 2)


def test_every_turn_has_prompts_of_its_own() -> None:
    case = decode(8)
    assert case.prompts(0) != case.prompts(1) and case.prompts(0) == case.prompts(0)
    assert [len(one) for one in case.prompts(0)] == [16] * 8
    assert (case.counted, prefill().counted) == (8 * 64, 512)


TOY = """
import os, sys, time
sys.path.insert(0, {workers!r})
from answers import serve

class Toy:
    def echo(self, word):
        print("libraries print what they like")
        return {{"word": word}}
    def spin(self, seconds):
        until = time.thread_time() + seconds
        while time.thread_time() < until:
            pass
        return {{}}
    def beat(self, file):
        import threading
        def write():
            while True:
                open(file, "a").write("x")
                time.sleep(0.01)
        threading.Thread(target=write, daemon=True).start()
        return {{}}
    def end(self):
        raise SystemExit("it was too much")

serve(Toy())
"""


@pytest.fixture
def toy(tmp_path: Path):
    file = tmp_path / "toy.py"
    file.write_text(TOY.format(workers=str(Path(__file__).parents[2] / "benchmarks" / "workers")))
    with Process([sys.executable, str(file)]) as process:
        yield process


@pytest.mark.skipif(sys.platform != "linux", reason="benchmarks are for Linux")
class TestProcess:
    def test_it_answers_and_its_own_work_is_not_others(self, toy: Process) -> None:
        assert toy.ask("echo", word="ä")["word"] == "ä"
        before = toy.seconds()
        answer = toy.ask("spin", seconds=0.3)
        assert 0 <= toy.busy() <= (os.cpu_count() or 1)
        assert toy.seconds() - before >= 0.25 and 0 <= answer["busy"] <= (os.cpu_count() or 1)
        assert toy.peak() > 1 << 20

    def test_it_stands_still_between_questions(self, toy: Process, tmp_path: Path) -> None:
        file = tmp_path / "beats"
        toy.ask("beat", file=str(file))
        time.sleep(0.1)
        count = len(file.read_text()) if file.exists() else 0
        time.sleep(0.2)
        assert (len(file.read_text()) if file.exists() else 0) == count
        toy.ask("spin", seconds=0.1)
        assert len(file.read_text()) > count

    def test_an_end_is_told_with_its_last_words(self, toy: Process) -> None:
        with pytest.raises(Failed, match=r"no answer to end.*it was too much"):
            toy.ask("end")
        with pytest.raises(Failed):
            toy.ask("echo", word="x")

    def test_silence_has_a_limit(self, toy: Process) -> None:
        with pytest.raises(Failed, match="no answer to spin"):
            toy.ask("spin", 0.3, seconds=60)


def test_the_written_results_are_those_of_the_readme() -> None:
    folder = Path(__file__).parents[2] / "benchmarks"
    text = (folder / "README.md").read_text().partition("<!-- peers -->")[2].partition("<!-- /peers -->")[0]
    if not (folder / "peers.json").exists():
        assert "No figures" in text and "|" not in text
        return
    written = json.loads((folder / "peers.json").read_text())
    assert tables.markdown(tables.measured(written["values"], [ENGINE, *PEERS])) in text
    assert written["machine"]["date"] in text
    assert "/" not in written["model"] and not written["quick"]


def test_the_headline_names_the_best_peer_and_skips_what_was_not_measured() -> None:
    machine = {"processor": "P", "features": "avx2", "date": "2026-11-30 10:00 UTC"}
    verdicts = [judge(goal, SPEEDS, {}, {}) for goal in GOALS]
    said = headline({"machine": machine, "threads": 2}, verdicts)
    assert "decode, batch 1: 1.50 × openvino." in said and "batch 8" not in said and "2026-11-30" in said
