"""``engine platforms new``: what it writes, and what it refuses. That the result works: tests/anydevice."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from engine.cli import main
from engine.scaffold import FILES, variables
from tests.throwaway import ROOT

PARTS = ("__init__", "plugin", "kernels", "runtime")


def new(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["platforms", "new", *words])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("name", ["mychip", "my_chip", "x", "a9", "class", "my__chip_", "a" * 40])
def test_every_file_is_whole(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str) -> None:
    folder = tmp_path / "deep/er"
    code, out, err = new(capsys, name, str(folder))
    assert (code, err) == (0, "")
    package = f"{name}_platform"
    wanted = {"pyproject.toml", "README.md", "tests/test_conformance.py", *(f"{package}/{part}.py" for part in PARTS)}
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == wanted
    assert all(str(folder / path) in out for path in wanted)
    assert f"pip install -e {folder}" in out and f"engine conform {name}" in out
    for path in wanted:
        text = (folder / path).read_text()
        assert "$" not in text, path
        if path.endswith(".py"):
            ast.parse(text)
    body = tomllib.loads((folder / "pyproject.toml").read_text())
    (target,) = body["project"]["entry-points"]["engine.platforms"].items()
    assert target == (name, f"{package}.plugin:{variables(name)['title']}Plugin")


def test_the_plugin_names_itself(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: object) -> None:
    assert isinstance(monkeypatch, pytest.MonkeyPatch)
    new(capsys, "sixth", str(tmp_path / "here"))
    monkeypatch.syspath_prepend(tmp_path / "here")
    for variable, devices in (("", 0), ("1", 1)):
        monkeypatch.setenv("SIXTH_DEVICE", variable)
        from sixth_platform.plugin import SixthPlugin  # type: ignore[import-not-found]

        plugin = SixthPlugin()
        assert (plugin.name, len(plugin.probe().profiles)) == ("sixth", devices)
        assert {profile.platform for profile in plugin.targets().values()} == {"sixth"}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "''"),
        ("MyChip", "'MyChip'"),
        ("my-chip", "my_chip"),
        ("9chip", "'9chip'"),
        ("_chip", "'_chip'"),
        ("my chip", "'my chip'"),
        ("chïp", "'chïp'"),
        ("chip\n", "lower-case"),
        ("../chip", "'../chip'"),
        ("a" * 41, "at most 40"),
        ("auto", "meaning of its own"),
    ],
)
def test_a_name_that_cannot_be_one(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, said: str) -> None:
    code, out, err = new(capsys, name, str(tmp_path / "here"))
    assert (code, out) == (2, "") and said in err and err.startswith("engine: error: ")
    assert not (tmp_path / "here").exists()


def test_a_name_that_is_taken(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: object) -> None:
    from platforms.discovery import installed

    assert isinstance(monkeypatch, pytest.MonkeyPatch)
    for point in installed():
        code, _, err = new(capsys, point.name, str(tmp_path / "here"))
        assert code == 2 and f"a platform {point.name} is installed already ({point.value})" in err
    (tmp_path / "seventh_platform").mkdir()
    (tmp_path / "seventh_platform/__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    code, _, err = new(capsys, "seventh", str(tmp_path / "here"))
    assert code == 2 and "a package seventh_platform is installed already" in err
    assert not (tmp_path / "here").exists()


def test_a_folder_that_holds_something_is_left_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"{number}.txt").write_text("mine")
    code, _, err = new(capsys, "mychip", str(tmp_path))
    assert code == 2 and "0.txt, 1.txt, 2.txt, …" in err and "not empty" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{number}.txt" for number in range(5)]
    code, _, err = new(capsys, "mychip", str(tmp_path / "0.txt"))
    assert code == 2 and "0.txt cannot be written" in err and (tmp_path / "0.txt").read_text() == "mine"


def test_a_folder_that_is_empty_will_do(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert new(capsys, "mychip", str(tmp_path))[0] == 0


@pytest.mark.parametrize("words", [(), ("one",), ("one", "two", "three"), ("--json", "x"), ("one", "-f")])
def test_a_name_and_a_folder_are_needed(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    code, out, err = new(capsys, *words)
    assert (code, out) == (2, "") and "engine platforms new NAME DIR" in err


def test_help_tells_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["platforms", "--help"]) == 0
    assert "engine platforms new NAME DIR" in capsys.readouterr().out


def test_the_templates_are_files_of_the_package() -> None:
    found = {path.name for path in (ROOT / "engine/scaffold/files").iterdir()}
    assert found == {f"{template}.in" for template in FILES.values()}
    body = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert body["tool"]["setuptools"]["package-data"]["engine.scaffold"] == ["files/*.in"]


def test_no_template_names_a_platform_of_ours() -> None:
    for path in (ROOT / "engine/scaffold/files").iterdir():
        assert not re.search(r"(?i)cuda|rocm|cpu|nvidia|amd|sm_\d|gfx", path.read_text()), path
