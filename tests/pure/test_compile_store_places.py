"""Where compiled pieces are kept: folders that cannot be written, and folders of others."""

from __future__ import annotations

import errno
import logging
import os
import resource
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from engine.compile import store as module
from engine.compile.store import Store
from engine.errors import UserError
from engine.weights.resolve import cache_root
from tests.pure.store_toys import DECLARED, PAYLOAD, below, creating, once, warm

ROOT = Path(__file__).parents[2]


@pytest.fixture
def warnings(caplog):
    caplog.set_level(logging.DEBUG, "engine")
    return lambda: [row.getMessage() for row in caplog.records if row.levelno >= logging.WARNING]


def test_what_another_user_may_have_put_there_is_not_read(tmp_path, warnings, monkeypatch):
    file = warm(tmp_path)
    tmp_path.chmod(0o777)
    own = Store(tmp_path)
    assert own.read(DECLARED) == PAYLOAD
    if os.geteuid() == 0:
        os.chown(file, 4343, -1)
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    assert own.read(DECLARED) is None
    (said,) = warnings()
    assert str(file) in said and f"belongs to user {file.stat().st_uid}, in a folder that others" in said


def test_a_folder_of_another_user_is_his_to_write(tmp_path, warnings, monkeypatch):
    file = warm(tmp_path)
    if os.geteuid() == 0:
        os.chown(file, 4343, -1)
        os.chown(tmp_path, 4343, -1)
    tmp_path.chmod(0o755)
    own = Store(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    assert own.read(DECLARED) is None and "belongs to user" in warnings()[0]


def test_an_unreadable_entry_of_another_user_is_a_miss(tmp_path, warnings, monkeypatch):
    """Permission bits stop no root, so the system's answer is made here."""
    file = warm(tmp_path)
    failed = once(monkeypatch, "open", errno.EACCES, lambda path, *_: path == file)
    assert Store(tmp_path).read(DECLARED) is None and failed == [str(file)]
    (said,) = warnings()
    assert str(file) in said and "Permission denied" in said


def in_the_way(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("mine")
    return tmp_path / "file"


PLACES = {"is a file": in_the_way, "lies below a file": lambda tmp_path: in_the_way(tmp_path) / "engine" / "pieces"}


@pytest.mark.parametrize("place", PLACES)
def test_H_CCH_04_a_file_in_the_way_is_one_warning(tmp_path, warnings, place):
    folder = PLACES[place](tmp_path)
    own = Store(folder)
    (said,) = warnings()
    assert str(folder) in said and f"{tmp_path / 'file'} is not a folder" in said and str(own.scratch) in said
    own.write(DECLARED, PAYLOAD)
    assert own.read(DECLARED) == PAYLOAD and own.read({}) is None
    assert own.scratch.is_dir() and stat.S_IMODE(own.scratch.stat().st_mode) == 0o700
    assert (tmp_path / "file").read_text() == "mine" and len(warnings()) == 1
    with pytest.raises(UserError, match=r"--cache-dir=.*cannot be used: .*file is not a folder.*Name a folder"):
        Store(folder, explicit=True)


def test_H_CCH_04_a_home_that_is_not_there(tmp_path, warnings, monkeypatch):
    for name in ("ENGINE_CACHE_ROOT", "VLLM_CACHE_ROOT", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(in_the_way(tmp_path)))
    own = Store(cache_root() / "pieces")
    own.write(DECLARED, PAYLOAD)
    assert own.read(DECLARED) == PAYLOAD and len(warnings()) == 1


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
def test_H_CCH_04_a_read_only_folder_is_still_read(tmp_path, warnings, monkeypatch, code):
    """Permission bits stop no root, so the system's answer is made here."""
    file = warm(tmp_path)
    monkeypatch.setattr(module, "_remove", lambda path: None)
    once(monkeypatch, "open", code, lambda path, flags=0, *_: creating(path, flags) and below(tmp_path)(path), 99)
    own = Store(tmp_path)
    (said,) = warnings()
    assert str(tmp_path) in said and os.strerror(code) in said
    assert own.read(DECLARED) == PAYLOAD and own.scratch != tmp_path
    own.discard(DECLARED, "made for another device")
    assert own.read(DECLARED) is None and file.exists()
    own.write(DECLARED, b"mine")
    assert own.read(DECLARED) == b"mine" and len(warnings()) == 2
    with pytest.raises(UserError, match=rf"--cache-dir=.*cannot be used: {os.strerror(code)}\. Name a folder"):
        Store(tmp_path, explicit=True)


def test_H_CCH_04_a_folder_that_cannot_be_made(tmp_path, warnings, monkeypatch):
    once(monkeypatch, "mkdir", errno.EACCES, below(tmp_path), 99)
    own = Store(tmp_path / "new")
    own.write(DECLARED, PAYLOAD)
    assert own.read(DECLARED) == PAYLOAD and len(warnings()) == 1 and "Permission denied" in warnings()[0]


def test_H_CCH_04_the_private_folder_goes_with_the_process(tmp_path):
    code = (
        "import sys; from pathlib import Path; from engine.compile.store import Store\n"
        f"own = Store(Path({str(in_the_way(tmp_path))!r})); own.write({{}}, b'x'); print(own.scratch)\n"
        "assert own.read({}) == b'x'"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(str(tmp_path)) and not Path(done.stdout.strip()).exists()


def test_H_CCH_04_no_room_at_all_is_said(tmp_path, monkeypatch):
    def refuse(**_):
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(module.tempfile, "mkdtemp", refuse)
    with pytest.raises(UserError, match="--cache-dir or TMPDIR"):
        Store(in_the_way(tmp_path))


def test_code_generators_keep_their_caches_where_nobody_else_writes(tmp_path, warnings):
    assert Store(tmp_path).scratch == tmp_path
    tmp_path.chmod(0o777)
    own = Store(tmp_path).scratch
    assert own == tmp_path / f"user-{os.geteuid()}" == Store(tmp_path).scratch
    assert stat.S_IMODE(own.stat().st_mode) == 0o700 and not warnings()
    Store(tmp_path).write(DECLARED, PAYLOAD)
    assert Store(tmp_path).read(DECLARED) == PAYLOAD


def a_link(path: Path) -> None:
    (path.parent / "elsewhere").mkdir(mode=0o700)
    path.symlink_to("elsewhere")


def an_open_folder(path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


@pytest.mark.parametrize("take", [a_link, an_open_folder, Path.touch])
def test_a_name_that_somebody_took_is_not_used(tmp_path, warnings, take):
    tmp_path.chmod(0o777)
    take(tmp_path / f"user-{os.geteuid()}")
    own = Store(tmp_path)
    (said,) = warnings()
    assert f"user-{os.geteuid()} is not used" in said and not own.scratch.is_relative_to(tmp_path)


def test_a_file_too_large_for_its_disk_leaves_no_draft(tmp_path, warnings):
    own, (soft, hard) = Store(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        own.write(DECLARED, PAYLOAD)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(warnings()) == 1 and not list(tmp_path.iterdir()) and own.read(DECLARED) is None


@pytest.mark.parametrize("failing", ["replace", "open"])
def test_a_disk_that_fills_up_is_one_warning_and_no_draft(tmp_path, warnings, monkeypatch, failing):
    own = Store(tmp_path)
    once(monkeypatch, failing, errno.ENOSPC, below(tmp_path) if failing == "replace" else creating, 2)
    own.write(DECLARED, PAYLOAD)
    own.write({}, b"")
    (said,) = warnings()
    assert "No space left" in said and str(tmp_path) in said
    assert not list(tmp_path.iterdir()) and own.read({}) is None
    own.write({}, b"room again")
    assert own.read({}) == b"room again"


def test_a_folder_removed_meanwhile_is_made_again(tmp_path, warnings):
    own = Store(tmp_path / "cache")
    shutil.rmtree(tmp_path / "cache")
    assert own.read(DECLARED) is None
    own.write(DECLARED, PAYLOAD)
    assert own.read(DECLARED) == PAYLOAD and not warnings()


def test_folders_and_entries_are_for_their_user_alone(tmp_path):
    before = os.umask(0o022)
    try:
        file = warm(tmp_path / "one" / "two")
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "one", tmp_path / "one" / "two", file)]
    assert modes == [0o700, 0o700, 0o600]
