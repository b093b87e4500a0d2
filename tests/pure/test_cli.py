"""The program ``engine``: what it prints, where, and how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from pathlib import Path

import pytest

from engine import __version__
from engine.cli import COMMANDS, GROUPS, main
from engine.config import FIELDS
from engine.errors import UserError
from engine.plan_values import Given
from platforms.discovery import read_profile


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(words)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Given]]:
    """What ``serve`` was called with, instead of a server."""
    calls: list[dict[str, Given]] = []
    module = types.ModuleType("engine.server.launch")
    module.serve = lambda given: calls.append(given) or 7  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "engine.server.launch", module)
    return calls


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",)])
def test_no_argument_prints_help(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    code, out, err = run(capsys, *words)
    assert (code, err) == (0, "")
    assert all(f"engine {name}" in out for name in COMMANDS)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version") == (0, f"engine {__version__}\n", "")


def test_serve_passes_what_was_asked_for(capsys: pytest.CaptureFixture[str], served: list[dict[str, Given]]) -> None:
    code, _, _ = run(capsys, "serve", "m", "-O1", "--port", "0")
    assert code == 7
    assert {key: row.value for key, row in served[0].items() if row.origin == "command line"} == {
        "model.name": "m",
        "optimization_level": 1,
        "server.port": 0,
    }


def test_environment_reaches_serve_and_warnings_reach_the_user(
    capsys: pytest.CaptureFixture[str], served: list[dict[str, Given]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_SEED", "1")
    monkeypatch.setenv("VLLM_SEED", "2")
    _, _, err = run(capsys, "serve")
    assert served[0]["model.seed"] == Given(1, "environment")
    assert err == "engine: warning: ENGINE_SEED wins over VLLM_SEED, which says something else\n"


def test_a_variable_nobody_reads_is_reported_and_a_platform_s_own_is_not(
    capsys: pytest.CaptureFixture[str], served: list[dict[str, Given]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from platforms.candidates import installed, loaded

    plugins = [row.plugin for row in map(loaded, installed()) if row.plugin is not None]
    for name in (name for plugin in plugins for name in plugin.aliases()):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("VLLM_MAX_NUM_SEQ", "3")
    for command in ("serve", "explain"):
        code, _, err = run(capsys, command)
        assert code in (0, 7)
        assert err.count("\n") == 1 and "VLLM_MAX_NUM_SEQ " in err and "did you mean VLLM_MAX_NUM_SEQS?" in err


@pytest.mark.parametrize("words", ["-O", "-O4", "-O-1", "-O2.5", "-Ofast", "-O.mode=x", "-o2", "-O 9"])
def test_H_OPT_06_malformed_level_exits_2_before_anything_starts(
    capsys: pytest.CaptureFixture[str], served: list[dict[str, Given]], words: str
) -> None:
    for command in ("serve", "explain"):
        code, out, err = run(capsys, command, *words.split())
        assert (code, out) == (2, "")
        assert "0, 1, 2, 3" in err and "Traceback" not in err and err.startswith("engine: error: ")
    assert not served


def test_H_OPT_04_config_without_a_file_exits_2_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "serve", "-O1", "--config")
    assert code == 2 and err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "token"),
    [
        ("sevre", "serve"),
        ("run", "platforms"),
        ("platforms --all", "--all"),
        ("pull", "engine pull NAME"),
        ("pull a b", "a b"),
        ("explain no-such-model", "no-such-model"),
        ("explain --platform nobody", "nobody"),
        ("explain --profile nowhere.json", "nowhere.json"),
        ("serve --profile x", "engine explain"),
        ("explain --kernel nothing=x", "nothing"),
        ("explain --html", "--html FILE"),
        ("explain --html --json", "--json"),
        ("explain --html x --json", "--html and --json"),
        ("explain --html no-such-folder/x.html", "no-such-folder/x.html"),
        ("explain --as-flags=yes", "--as-flags=yes"),
        ("explain --as-flags --diff -O1 -O2", "--as-flags and --diff"),
        ("explain --diff -O1", "--diff A B"),
        ("explain --diff=-O1 -O2", "--diff A B"),
        ("explain --diff -O1 -O7", "-O7"),
        ("explain --diff -O -O2", "-O2"),
        ("explain --diff -O1 --json", "--json"),
        ("explain --diff nobody -O1", "nobody"),
        ("explain -O3 --diff -O1 -O2", "-O 3"),
        ("explain --platform auto --diff a b", "--platform"),
        ("serve --as-flags", "--as-flags"),
        ("serve --help=zzz", "zzz"),
    ],
)
def test_mistake_exits_2_naming_it(capsys: pytest.CaptureFixture[str], words: str, token: str) -> None:
    code, out, err = run(capsys, *words.split())
    assert (code, out) == (2, "")
    assert err.startswith("engine: error: ") and token in err


def test_interrupt_exits_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(words: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("engine.cli.pull.run", interrupted)
    assert main(["pull", "x"]) == 130


def test_any_other_fault_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(words: object) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr("engine.cli.pull.run", broken)
    with pytest.raises(ZeroDivisionError):
        main(["pull", "x"])


def test_explain_prints_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "explain", "-O1", "--max-num-seqs", "17")
    assert (code, err) == (0, "")
    assert "no model named: the built-in one" in out and "-O1" in out
    assert any(line.split()[:2] == ["--max-num-seqs", "17"] for line in out.splitlines())
    assert all(title in out for title in ("Plan", "Kernels", "Fusions"))


def test_explain_for_machines_and_for_a_device_that_is_absent(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "platforms", "--json")
    names = [row["name"] for row in json.loads(out)["rows"]]
    code, out, _ = run(capsys, "explain", "--json", "-O3")
    body = json.loads(out)
    assert code == 0 and body["platform"] in names
    assert body["decisions"]["optimization_level"] == {
        "value": 3,
        "origin": "command line",
        "reason": body["decisions"]["optimization_level"]["reason"],
    }
    assert run(capsys, "explain", "--json", "-O3")[1] == out, "a plan is the same every time"


def test_a_saved_profile_gives_the_same_plan(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _, out, _ = run(capsys, "platforms", "--json")
    saved = tmp_path / "machine.json"
    saved.write_text(out, encoding="utf-8")
    assert read_profile(str(saved)).to_json() == json.loads(out)["profile"]
    here = json.loads(run(capsys, "explain", "--json")[1])
    assert json.loads(run(capsys, "explain", "--json", "--profile", str(saved))[1])["decisions"] == here["decisions"]


def test_platforms_prints_every_candidate(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(run(capsys, "platforms", "--json")[1])["rows"]
    code, out, err = run(capsys, "platforms")
    assert (code, err) == (0, "") and "\x1b" not in out
    for row in rows:
        assert row["name"] in out and row["source"] in out
    assert "--platform auto: " in out


@pytest.mark.parametrize("command", ["serve", "explain"])
def test_help_holds_every_flag(capsys: pytest.CaptureFixture[str], command: str) -> None:
    code, out, err = run(capsys, command, "--help=all")
    assert (code, err) == (0, "")
    for field in FIELDS:
        shown = field.only in ("", command)
        flag = field.flag.removeprefix("--") if field.kind.switch else field.flag
        assert (flag in out) == shown, field.key
        assert field.environment in out
    assert run(capsys, command, "--bogus", "--help")[0] == 0


@pytest.mark.parametrize(
    ("topic", "inside", "outside"),
    [
        ("scheduler", "--max-num-seqs", "--port"),
        ("MAX_NUM", "--max-num-seqs", "--max-model-len"),
        ("cudagraph-mode", "-cc.graph_mode", "--port"),
        ("fusions", "fuse_norm_quant", "--port"),
        ("level", "-O1", "--port"),
    ],
)
def test_help_can_be_narrowed(capsys: pytest.CaptureFixture[str], topic: str, inside: str, outside: str) -> None:
    _, out, _ = run(capsys, "serve", f"--help={topic}")
    assert inside in out and outside not in out


def test_a_reader_that_leaves_is_no_error() -> None:
    script = "import sys; from engine.cli import main; sys.exit(main(['explain', '--help=all']))"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(60) in (0, 141)


def test_the_module_runs_too() -> None:
    done = subprocess.run([sys.executable, "-m", "engine", "serve", "-O9"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "-O9" in done.stderr


def test_user_errors_are_the_engine_s_own() -> None:
    assert not issubclass(UserError, ValueError)


@pytest.mark.parametrize("words", [(), *((name,) for name in COMMANDS), ("kernels", "--help=all")])
def test_no_help_is_wider_than_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = run(capsys, *words, "--help")
    assert code == 0 and max(map(len, out.splitlines())) <= 80


def test_the_overview_keeps_usage_and_purpose_apart(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    _, out, _ = run(capsys)
    rows = [line for line in out.splitlines() if line.startswith("  engine ")]
    assert len(rows) == len(COMMANDS) and all("  " in row.strip() for row in rows)
    assert len({row.index(COMMANDS[row.split()[1]]) for row in rows}) == 1


def test_a_flag_that_kernels_does_not_know_is_answered_by_a_page_that_lists_them(
    capsys: pytest.CaptureFixture[str]
) -> None:
    _, _, err = run(capsys, "kernels", "report", "--zzzzzz", "x")
    assert "see --help=all" in err
    _, short, _ = run(capsys, "kernels", "--help")
    _, out, _ = run(capsys, "kernels", "report", "--help=all")
    assert all(flag in out for flag in ("--json", "--out DIR", "--max-num-seqs", "--profile FILE"))
    assert "--max-num-seqs" not in short and "scalar spills" in short and "1024 tokens" in short


def test_the_overview_has_every_subcommand_once_in_a_group_and_one_line_for_each(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = run(capsys)
    names = [line.split()[1] for line in out.splitlines() if line.startswith("  engine ")]
    assert sorted(names) == sorted(COMMANDS) and set(GROUPS) <= set(out.splitlines())
    assert all(name in COMMANDS for names in GROUPS.values() for name in names)
    indented = [line for line in out.splitlines() if line.startswith(" ")]
    assert len(indented) == len(COMMANDS)
    monkeypatch.setitem(COMMANDS, "another", "something of a later day")
    assert "More\n  engine another" in run(capsys)[1]
