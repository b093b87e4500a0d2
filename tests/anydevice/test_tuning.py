"""Kernels choose their tiles at start, rows are timed beside each other; a second start takes both from the cache."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine.fusion import RULES, all_ops
from engine.models.blocks import Blocks
from engine.ops import OPS
from engine.ops.blocks import dequantised
from engine.plan import Observations, Plan, plan_for
from engine.tuning import start
from engine.tuning.budget import Budget, Spent
from engine.tuning.samples import samples, tensors_of
from engine.tuning.start import Learner
from engine.tuning.timing import Stopwatch
from platforms.contract import Kernel, Runtime, Verdict
from platforms.cpu.plugin import CpuPlugin
from platforms.discovery import select
from tests.described_plans import described
from tests.profiles import MODEL, TABLES, Tables, plan

ALL = all_ops(RULES)
ASKED: list[tuple[int, Any]] = []
INSTALLED: dict[int, Any] = {}


def quick(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x, weight.shape, weight, eps)


def slow(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    time.sleep(0.002)
    return quick(x, weight, eps=eps)


def off(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    return quick(x, weight, eps=eps) * 2


def tune(tensors: Any, attributes: Any, known: Any, measure: Any) -> Any:
    x = tensors[0]
    ASKED.append((x.shape[0], known))
    choice = known
    if known is None:
        choice = min(("nap", "none"), key=lambda name: measure(lambda: time.sleep(0.005) if name == "nap" else None))
    INSTALLED[x.shape[0]] = choice
    return choice


def broken(tensors: Any, attributes: Any, known: Any, measure: Any) -> Any:
    raise RuntimeError("no tile fits\nand more")


def nothing(tensors: Any, attributes: Any, known: Any, measure: Any) -> Any:
    return None if known is None else known


def norm(name: str, priority: int = 1, tuner: str = "") -> Kernel:
    target = f"{__name__}:{tuner}" if tuner else ""
    return Kernel("rms_norm", name, f"{__name__}:{name}", priority=priority, tune=target)


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    selection = select("auto")
    opened = selection.plugin.open(selection.index)
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def fresh() -> None:
    ASKED.clear()
    INSTALLED.clear()


def learnt(runtime: Runtime, root: Path, *rows: Kernel, **values: Any) -> tuple[Plan, Learner]:
    def made(times: Any, refused: Any) -> Plan:
        return plan(Tables(rows, TABLES.fusions), observations=Observations(refused, times=times), **values)

    first = made({}, {})
    learner = Learner(first, ALL, {(row.op, row.name): row for row in rows}, runtime, None, root)
    return learner.learn(made), learner


def chosen(found: Plan) -> tuple[str, str]:
    row = next(row for row in found.kernels if row.op == "rms_norm")
    return row.chosen, row.reason


def test_every_size_of_step_is_tuned_once_and_the_next_start_installs_what_was_kept(
    runtime: Runtime, tmp_path: Path
) -> None:
    _, first = learnt(runtime, tmp_path / "one", norm("quick", tuner="tune"))
    assert ASKED and all(known is None for _, known in ASKED) and set(INSTALLED.values()) == {"none"}
    assert (first.tuning.done, first.tuning.kept) == (len(ASKED), 0)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    sizes = dict(INSTALLED)
    fresh_again = len(ASKED)
    ASKED.clear()
    INSTALLED.clear()
    _, second = learnt(runtime, tmp_path / "two", norm("quick", tuner="tune"))
    assert sizes == INSTALLED and {known for _, known in ASKED} == {"none"}
    assert (second.tuning.done, second.tuning.kept) == (0, fresh_again)
    assert "from the cache" in second.table()[0].value


def test_it_is_off_at_the_lowest_level_and_where_a_user_says_so(runtime: Runtime, tmp_path: Path) -> None:
    for values in ({"optimization_level": 0}, {"kernel_config__autotune": False}):
        _, learner = learnt(runtime, tmp_path, norm("quick", tuner="tune"), **values)
        assert not ASKED and not learner.table()


@pytest.mark.parametrize(
    ("tuner", "said"), [("broken", "RuntimeError: no tile fits"), ("nothing", "chose nothing"), ("absent", "absent")]
)
def test_a_tuner_that_fails_is_a_warning_and_the_default(
    runtime: Runtime, tmp_path: Path, tuner: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "engine"):
        found, learner = learnt(runtime, tmp_path, norm("quick", tuner=tuner))
    assert chosen(found)[0] == "quick" and learner.tuning.failed and said in caplog.text
    assert not list(tmp_path.glob("tuned/*"))


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"found": null}'])
def test_damage_is_a_miss(runtime: Runtime, tmp_path: Path, content: bytes) -> None:
    learnt(runtime, tmp_path, norm("quick", tuner="tune"))
    for file in (tmp_path / "tuned").iterdir():
        file.write_bytes(content)
    _, again = learnt(runtime, tmp_path, norm("quick", tuner="tune"))
    assert again.tuning.done and not again.tuning.kept


def test_a_folder_that_takes_nothing_is_no_error(runtime: Runtime, tmp_path: Path) -> None:
    (tmp_path / "tuned").write_text("a file")
    _, learner = learnt(runtime, tmp_path, norm("quick", tuner="tune"))
    assert learner.tuning.done and not learner.tuning.failed


def test_at_the_highest_level_the_faster_row_serves_and_is_remembered(runtime: Runtime, tmp_path: Path) -> None:
    rows = norm("slow", 2), norm("quick", 1)
    assert chosen(learnt(runtime, tmp_path, *rows)[0])[0] == "slow"
    found, first = learnt(runtime, tmp_path, *rows, optimization_level=3)
    assert chosen(found)[0] != "slow" and chosen(found)[1].startswith("measured: ") and "slow" in chosen(found)[1]
    again, second = learnt(runtime, tmp_path, *rows, optimization_level=3)
    assert again == found and (second.timing.done, second.timing.kept) == (0, first.timing.done)
    pinned, _ = learnt(runtime, tmp_path, *rows, optimization_level=3, kernel_pins={"rms_norm": "slow"})
    assert chosen(pinned)[0] == "slow"


def test_a_row_must_agree_with_its_reference_before_it_is_timed(runtime: Runtime, tmp_path: Path) -> None:
    found, _ = learnt(runtime, tmp_path, norm("quick", 2), norm("off", 1), optimization_level=3)
    row = next(row for row in found.kernels if row.op == "rms_norm")
    assert "first touch: differs" in dict(row.considered)["off"].reason and "off" not in row.reason


def test_what_the_time_does_not_suffice_for_is_left_for_the_next_start(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "TUNE_SECONDS", -1.0)
    monkeypatch.setattr(start, "MEASURE_SECONDS", -1.0)
    found, learner = learnt(
        runtime, tmp_path, norm("slow", 2, "tune"), norm("quick", 1), optimization_level=3
    )
    assert chosen(found)[0] == "slow" and learner.tuning.left and learner.timing.left and not INSTALLED
    assert "left for the next start" in learner.table()[0].value
    with pytest.raises(Spent):
        Budget(-1.0).check()


def test_every_call_of_a_plan_runs_on_the_tensors_made_for_it(runtime: Runtime) -> None:
    found = plan()
    for one in samples(found):
        for tokens in one.tokens:
            given = tensors_of(one, tokens, found, runtime)
            with torch.inference_mode():
                OPS.get(one.choice.op, ALL[one.choice.op]).reference(*given, **one.call.attributes)


def test_weights_in_blocks_are_made_of_finite_values(runtime: Runtime) -> None:
    """Bytes alone would make half floats of them that are no numbers, and nothing to compare rows by."""
    blocks = Blocks("Q4_K", (("model.embed_tokens.weight", "Q6_K"),))
    found = plan_for(CpuPlugin(), described("cpu", "x86-64-v3"), replace(MODEL, blocks=blocks, hidden_size=256), {})
    seen = set()
    for one in samples(found):
        given = tensors_of(one, 1, found, runtime)
        for name, tensor in zip(one.call.inputs, given, strict=True):
            weight = found.program.weights.get(name)
            if weight is not None and weight.dtype == "uint8":
                format = weight.format.removeprefix("blocks ")
                values = dequantised(tensor.cpu(), format)
                assert tuple(tensor.shape) == weight.shape and values.isfinite().all() and 0 < values.std() < 1
                seen.add((one.choice.op, format))
        if one.choice.op.endswith("linear"):
            assert OPS[one.choice.op].reference(*given, **one.call.attributes).isfinite().all()
    assert seen == {("scaled_block_linear", "q4_k"), ("scaled_block_linear", "q6_k"), ("block_embedding", "q6_k")}


def test_a_stopwatch_counts_one_call(runtime: Runtime) -> None:
    seconds = Stopwatch(runtime, None).measure(lambda: time.sleep(0.003))
    assert 0.003 <= seconds < 0.02


class Calling:
    """Graphs that record what calling the work does."""

    name = "calling"

    def new_pool(self) -> None:
        return None

    def capture(self, work: Any, pool: Any) -> Any:
        return SimpleNamespace(replay=work, close=lambda: None)


class Walking(Calling):
    """Graphs that go through the calls of the work."""

    name = "walking"

    def capture(self, work: Any, pool: Any) -> Any:
        def replay() -> None:
            for placed in work.calls:
                placed.function(*(work.values[at] for at in placed.inputs), **placed.attributes)

        return SimpleNamespace(replay=replay, close=lambda: None)


@pytest.mark.parametrize("graphs", [Calling, Walking, "own"])
def test_replays_that_are_timed_do_the_call(runtime: Runtime, graphs: Any) -> None:
    found = runtime.graphs() if graphs == "own" else graphs()
    tensors = torch.ones(2, 4), torch.ones(4)
    watch = Stopwatch(runtime, None if isinstance(found, Verdict) else found)
    if graphs != "own" or runtime.device.type == "cpu":
        assert 0.002 <= watch.measure(slow, tensors, {"eps": 1e-5}) < 0.02
    x, weight = torch.ones(4096, 512, device=runtime.device), torch.ones(512, device=runtime.device)
    few = watch.measure(quick, (x[:1], weight), {"eps": 1e-5})
    assert watch.measure(quick, (x, weight), {"eps": 1e-5}) > 3 * few > 0
