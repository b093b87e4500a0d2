"""Options of subcommands that are no settings of the engine."""

from __future__ import annotations

import pytest

from engine.cli.options import Option, chosen, plainly, read_options, rows_of, usages
from engine.config import collect
from engine.config import kinds as k
from engine.errors import UserError

POSITIONAL = Option("--what", k.NAME, "what")
OPTIONS = (
    Option("--num-prompts", k.COUNT, "how many", 1000),
    Option("--input-file", k.FILE, "from", short="-i"),
    Option("--header", k.NAME, "headers", (), "none", many=True),
    Option("--quiet", k.SWITCH, "say less"),
    Option("--stream", k.SWITCH, "as it comes", True),
    Option("--plot", k.SWITCH, "draw", unset="on a terminal"),
    Option("--no-oversample", k.SWITCH, "fewer"),
)


def read(*words: str, positional: Option | None = None) -> dict[str, object]:
    return vars(read_options(words, OPTIONS, "engine x", positional))


def test_without_words_everything_is_as_declared() -> None:
    assert read() == {
        "num_prompts": 1000, "input_file": None, "header": (), "quiet": False, "stream": True, "plot": None,
        "no_oversample": False,
    }  # fmt: skip


@pytest.mark.parametrize("words", ["--num-prompts 7", "--num_prompts=7", "--num-prompts=3 --num-prompts=7"])
def test_a_value_may_stand_after_a_blank_or_an_equals_sign_and_the_last_counts(words: str) -> None:
    assert read(*words.split())["num_prompts"] == 7


def test_switches_go_both_ways_and_one_may_begin_with_no() -> None:
    found = read("--quiet", "--no-stream", "--plot=false", "--no-oversample")
    assert [found[name] for name in ("quiet", "stream", "plot", "no_oversample")] == [True, False, False, True]


def test_many_values_end_at_the_next_flag() -> None:
    found = read("--header", "a", "b", "-i", "file")
    assert found["header"] == ("a", "b") and found["input_file"] == "file"


def test_one_word_may_stand_alone() -> None:
    assert read("m", "--quiet", positional=POSITIONAL)["what"] == "m"
    for words, positional in ((("m", "n"), POSITIONAL), (("m",), None)):
        with pytest.raises(UserError, match="unexpected word"):
            read(*words, positional=positional)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--num-prompt", "1"), "did you mean --num-prompts"),
        (("--zzzzzz",), "engine x --help"),
        (("--num-prompts",), "--num-prompts N"),
        (("--num-prompts", "--quiet"), "found --quiet"),
        (("--num-prompts", "none"), "--num-prompts none: wants a whole number"),
        (("--quiet=perhaps",), "true or false"),
    ],
)
def test_a_mistake_names_the_word(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(UserError, match=said):
        read(*words)


def test_the_same_options_beside_settings_of_the_engine() -> None:
    options = OPTIONS[:1] + OPTIONS[3:4]
    words = plainly(["--num_prompts=5", "-O1", "--quiet", "--max-num-seqs", "3"], options)
    found = collect(words, {}, "bench", usages(options))
    assert vars(chosen(found.switches, options)) == {"num_prompts": 5, "quiet": True}
    assert {key: row.value for key, row in found.given.items()} == {
        "optimization_level": 1, "scheduler.max_num_seqs": 3,
    }  # fmt: skip


def test_help_says_the_spelling_the_default_and_what_else_decides() -> None:
    rows = dict(rows_of(OPTIONS))
    assert rows["--num-prompts N"] == "how many [1000]" and rows["--[no-]stream"] == "as it comes [on]"
    assert "-i, --input-file FILE" in rows and rows["--header NAME ..."] == "headers [none]"
    assert rows["--plot"] == "draw [on a terminal]" and rows["--quiet"] == "say less"
