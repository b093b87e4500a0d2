"""What benchmarks compute: arrivals, lengths, prompts, percentiles and rates."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizer_toys import builtin, chat_tokenizer

from engine.bench import lengths
from engine.bench.arrivals import arrivals, ramp
from engine.bench.figures import figures, per_second
from engine.bench.load import Outcome
from engine.bench.plot import draw, histogram, sparkline
from engine.bench.samples import OPTIONS, make_samples
from engine.bench.statistics import percentile, summary
from engine.bench.texts import Texts
from engine.cli.options import read_options
from engine.errors import UserError


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.floats(0, 100))
def test_percentiles_are_numpys(values: list[float], share: float) -> None:
    assert percentile(sorted(values), share) == pytest.approx(np.percentile(values, share), abs=1e-6, rel=1e-9)


def test_E59_a_summary_has_mean_median_deviation_and_every_percentile() -> None:
    found = summary("ttft_ms", [4.0, 1.0, 3.0, 2.0], (50, 95, 99.5))
    assert list(found) == [f"{kind}_ttft_ms" for kind in ("mean", "median", "std", "p50", "p95", "p99.5")]
    assert found["mean_ttft_ms"] == found["median_ttft_ms"] == 2.5
    assert found["std_ttft_ms"] == pytest.approx(statistics.pstdev([1, 2, 3, 4]))
    assert set(summary("x", [], (99,)).values()) == {0.0}


@pytest.mark.parametrize("burstiness", [0.2, 1.0, 50.0])
def test_requests_arrive_at_the_rate_and_burstiness_is_in_the_gaps(burstiness: float) -> None:
    moments = arrivals(4000, 8.0, burstiness, seed=1)
    assert moments[-1] == pytest.approx(4000 / 8.0) and moments == sorted(moments)
    assert moments == arrivals(4000, 8.0, burstiness, seed=1) != arrivals(4000, 8.0, burstiness, seed=2)
    gaps = np.diff(moments)
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.15)
    assert arrivals(3, float("inf"), burstiness, 1) == [0.0] * 3


@pytest.mark.parametrize(("strategy", "first"), [("linear", 0.0), ("linear", 2.0), ("exponential", 2.0)])
def test_a_ramp_goes_up_from_one_rate_to_the_other(strategy: str, first: float) -> None:
    moments = ramp(20000, strategy, first, 20.0, 1.0, seed=3)
    begin, end = (1 / np.diff(part).mean() for part in (moments[:1000], moments[-1000:]))
    assert begin == pytest.approx(first, abs=0.6) and end == pytest.approx(20.0, rel=0.1)
    with pytest.raises(UserError, match="above"):
        ramp(2, "linear", 3.0, 2.0, 1.0, 0)
    with pytest.raises(UserError, match="cannot start at 0"):
        ramp(2, "exponential", 0.0, 2.0, 1.0, 0)


def test_lengths_are_drawn_evenly_within_the_ratio() -> None:
    drawn = lengths.uniform(3000, 100, 10, 0.2, seed=0)
    assert {low: (min(column), max(column)) for low, column in zip("ab", zip(*drawn, strict=True), strict=True)} == {
        "a": (80, 120), "b": (8, 12),
    }  # fmt: skip
    assert lengths.uniform(2, 5, 1, 0.0, 0) == [(5, 1)] * 2


def test_E100_conversations_are_mostly_short_with_a_long_tail_and_the_same_for_a_seed() -> None:
    drawn = lengths.conversational(5000, seed=7)
    assert drawn == lengths.conversational(5000, seed=7) != lengths.conversational(5000, seed=8)
    assert all(lengths.is_usable(*pair) for pair in drawn)
    for column, median in zip(zip(*drawn, strict=True), (70, 200), strict=True):
        assert statistics.median(column) == pytest.approx(median, rel=0.15)
        assert np.percentile(column, 99) > 6 * median * 0.9 and statistics.mean(column) > 1.3 * median


@pytest.mark.parametrize("tokenizer", [builtin(), chat_tokenizer(None)], ids=["words", "bytes"])
def test_texts_have_the_tokens_that_were_wanted(tokenizer: Any) -> None:
    texts = Texts(tokenizer, seed=0)
    prefix = texts.make(5)
    for wanted in (1, 7, 300):
        text = texts.make(wanted, prefix)
        assert text.startswith(prefix) and len(tokenizer.encode(text, add_special_tokens=False)) == wanted + 5
        assert texts.count(text) == len(tokenizer.encode(text))


def asked(*words: str) -> Any:
    return read_options(words, OPTIONS, "test")


def test_E93_the_same_seed_makes_the_same_requests() -> None:
    words = ("--num-prompts=20", "--input-len=30", "--output-len=5", "--random-range-ratio=0.5")
    first, again = (make_samples(asked(*words), builtin()) for _ in range(2))
    assert first == again != make_samples(asked(*words, "--seed=1"), builtin())
    assert all(15 <= sample.prompt_len <= 45 and 2 <= sample.output_len <= 8 for sample in first)
    shaped = make_samples(asked("--num-prompts=20", "--dataset-name=sharegpt"), builtin())
    assert [(s.prompt_len, s.output_len) for s in shaped] == lengths.conversational(20, 0)


def conversations(path: Path) -> str:
    texts = [("word " * 10, "answer " * 20), ("no", "way"), ("word " * 12, "answer " * 30), ("long " * 2000, "a " * 9)]
    rows: list[Any] = [{"conversations": [{"value": a}, {"value": b}]} for a, b in texts]
    path.write_text(json.dumps([*rows, {"conversations": []}, {"id": 1}, 5]))
    return str(path)


def test_a_file_of_conversations_gives_what_fits_again_and_again(tmp_path: Path) -> None:
    words = ("--dataset-name=sharegpt", "--dataset-path", conversations(tmp_path / "c.json"), "--num-prompts=5")
    found = make_samples(asked(*words), builtin())
    assert len(found) == 5 and {sample.prompt for sample in found} == {"word " * 10, "word " * 12}
    assert {sample.output_len for sample in found} == {21, 31}
    found = make_samples(asked(*words, "--no-oversample", "--disable-shuffle", "--output-len=3"), builtin())
    assert [sample.prompt for sample in found] == ["word " * 10, "word " * 12]
    assert {sample.output_len for sample in found} == {3}


def test_a_file_of_prompts(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "one two"}\n\n{"prompt": "three", "output_tokens": 4}\n')
    words = ("--dataset-name=custom", "--dataset-path", str(path), "--disable-shuffle", "--num-prompts=2")
    found = make_samples(asked(*words), builtin())
    assert [(sample.prompt, sample.output_len) for sample in found] == [("one two", 256), ("three", 4)]
    path.write_text('{"prompt": "x"}\n{"text": "y"}\n')
    with pytest.raises(UserError, match="line 2"):
        make_samples(asked(*words), builtin())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--dataset-name=custom",), "needs --dataset-path"),
        (("--dataset-path=x",), "sharegpt or custom"),
        (("--dataset-name=sharegpt", "--dataset-path=nowhere.json"), "nowhere.json: cannot be read"),
        (("--dataset-name=sharegpt", "--dataset-path", __file__), "is not JSON"),
    ],
)
def test_a_dataset_that_is_not_there_is_named(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(UserError, match=said):
        make_samples(asked(*words), builtin())


def outcome(start: float, ttft: float, itls: list[float], tokens: int | None = None, error: str = "") -> Outcome:
    count = len(itls) + 1 if tokens is None else tokens
    return Outcome(start, ttft, itls, ttft + sum(itls), 10, count, "x", error)


def test_figures_are_of_what_was_answered() -> None:
    done = [outcome(5.0, 0.5, [0.1] * 4), outcome(5.2, 1.5, [0.2, 0.4], tokens=5), outcome(6.0, 0, [], 0, "refused")]
    found = figures(done, 4.0, ("ttft", "tpot", "itl", "e2el"), (50, 99), {"ttft": 600.0, "e2el": 1000.0})
    assert (found["completed"], found["failed"], found["duration"]) == (2, 1, 4.0)
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (20, 10)
    assert found["request_throughput"] == 0.5 and found["output_throughput"] == 2.5
    assert found["total_token_throughput"] == 7.5 and found["request_goodput"] == 0.25
    assert found["mean_ttft_ms"] == pytest.approx(1000) and found["mean_tpot_ms"] == pytest.approx((100 + 150) / 2)
    assert found["median_itl_ms"] == pytest.approx(100) and found["p50_e2el_ms"] == pytest.approx((900 + 2100) / 2)
    assert figures(done, 4.0, (), (), {})["request_goodput"] is None
    nobody = figures(done[2:], 1.0, ("ttft",), (99,), {"ttft": 1.0})
    assert nobody["completed"] == 0 and nobody["p99_ttft_ms"] == 0.0 and nobody["request_goodput"] == 0.0


def test_each_second_has_its_texts_and_its_requests() -> None:
    done = [outcome(10.0, 0.5, [1.0, 1.0]), outcome(11.5, 0.2, [0.1])]
    assert per_second(done) == ([1, 3, 1], [1, 2, 1]) and per_second([]) == ([], [])
    assert figures(done, 3.0, (), (), {})["max_output_tokens_per_s"] == 3.0
    assert figures(done, 3.0, (), (), {})["max_concurrent_requests"] == 2


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=200))
def test_a_histogram_counts_every_value_once(values: list[float]) -> None:
    edges, counts = histogram(sorted(values))
    assert sum(counts) == len(values) and edges == sorted(edges)
    assert edges[0] == min(values) and edges[-1] >= max(values)


def test_the_plot_draws_what_was_measured_and_fits() -> None:
    done = [outcome(0.1 * i, 0.1 + i / 100, [0.05] * 20) for i in range(30)]
    text = draw(done, {"ttft": "time to first token"}, 80, False)
    assert "TTFT: time to first token, ms" in text and "█" in text and "texts per second" in text
    assert all(len(line) <= 80 for line in text.splitlines()) and "\x1b" not in text
    assert sparkline([0, 5, 10]) == "▁▅█" and len(sparkline(list(range(1000)))) == 60
    assert draw([outcome(0, 1, [], error="x")], {"ttft": ""}, 80, False) == ""


def test_a_request_of_one_token_has_no_time_per_token() -> None:
    assert outcome(0, 1, []).tpot is None
