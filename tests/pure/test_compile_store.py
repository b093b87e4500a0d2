"""The cache of compiled pieces: what is written is read, and whatever else lies there is a miss with one warning."""

from __future__ import annotations

import errno
import json
import logging
import multiprocessing
import os
import shutil
import time
from pathlib import Path

import pytest

from engine.compile import store as module
from engine.compile.store import Store
from engine.errors import UserError
from tests.pure.store_toys import DECLARED, PAYLOAD, below, entry, once, warm


@pytest.fixture
def warnings(caplog):
    caplog.set_level(logging.DEBUG, "engine")
    return lambda: [row.getMessage() for row in caplog.records if row.levelno >= logging.WARNING]


def test_what_is_written_is_read_by_the_next_start(tmp_path, warnings):
    first = Store(tmp_path / "cache")
    assert first.read(DECLARED) is None
    first.write(DECLARED, PAYLOAD)
    assert first.read(DECLARED) == PAYLOAD == Store(tmp_path / "cache").read(dict(reversed(DECLARED.items())))
    assert first.scratch == tmp_path / "cache" and [file.name for file in first.scratch.iterdir()] == [
        entry(first.scratch).name
    ]
    assert not warnings()


@pytest.mark.parametrize(
    "other",
    [
        {**DECLARED, "torch": "2.13.1"},
        {**DECLARED, "range": [1, 2047]},
        {**DECLARED, "more": None},
        {"torch": "2.13.0"},
        {**DECLARED, "calls": [["add", ["float32", "float32"], {"eps": 1e-6}]]},
    ],
)
def test_H_CCH_01_every_declared_input_counts(tmp_path, warnings, other):
    warm(tmp_path)
    assert Store(tmp_path).read(other) is None and not warnings()


def test_what_is_no_plain_value_is_an_error_and_no_entry(tmp_path):
    with pytest.raises(TypeError):
        Store(tmp_path).write({"ops": {"a", "b"}}, b"")
    assert not list(tmp_path.iterdir())


def publish(folder: str, rounds: int) -> None:
    own = Store(Path(folder))
    for _ in range(rounds):
        own.write(DECLARED, PAYLOAD_OF_ALL)
        if own.read(DECLARED) != PAYLOAD_OF_ALL:
            os._exit(3)


PAYLOAD_OF_ALL = bytes(range(256)) * 2000


def test_H_CCH_02_many_processes_write_one_entry_at_once(tmp_path):
    spawn = multiprocessing.get_context("spawn")
    folder = tmp_path / "cold" / "cache"
    writers = [spawn.Process(target=publish, args=(str(folder), 20)) for _ in range(4)]
    for one in writers:
        one.start()
    for one in writers:
        one.join(60)
    assert [one.exitcode for one in writers] == [0] * 4
    assert [file.suffix for file in folder.iterdir()] == [".piece"]
    assert Store(folder, required=True).read(DECLARED) == PAYLOAD_OF_ALL


def head(data: bytes, **changes: object) -> bytes:
    line, _, payload = data.partition(b"\n")
    return json.dumps({**json.loads(line), **changes}).encode() + b"\n" + payload


DAMAGES = {
    "empty": (lambda data: b"", "no entry"),
    "half": (lambda data: data[: len(data) // 2], "truncated"),
    "half a header": (lambda data: data[:40], "the beginning of one"),
    "one byte short": (lambda data: data[:-1], "truncated: 4999 of 5000"),
    "longer": (lambda data: data + b"x", "5001 of 5000"),
    "one bit": (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "damaged"),
    "random": (lambda data: b"\xff" + os.urandom(len(data)), "no entry"),
    "a list": (lambda data: b"[1]\n", "no entry"),
    "a deep list": (lambda data: b"[" * 100000, "no entry"),
    "another version": (lambda data: head(data, format=2), "format 2, and this version reads 1"),
    "no size": (lambda data: head(data, size=None), "truncated"),
    "no sum": (lambda data: head(data, sha256=None), "damaged"),
    "other inputs": (lambda data: head(data, declared={**DECLARED, "torch": "2.12.0"}), "other inputs"),
    "no inputs": (lambda data: head(data, declared=None), "other inputs"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_H_CCH_03_damaged_entries_are_one_warning_and_made_again(tmp_path, warnings, damage):
    change, why = DAMAGES[damage]
    file = warm(tmp_path)
    file.write_bytes(change(file.read_bytes()))
    own = Store(tmp_path)
    assert own.read(DECLARED) is None and own.read(DECLARED) is None
    (said,) = warnings()
    assert str(file) in said and why in said
    own.write(DECLARED, PAYLOAD)
    assert own.read(DECLARED) == PAYLOAD == Store(tmp_path).read(DECLARED) and len(warnings()) == 1


def make_pipe(file: Path) -> None:
    os.mkfifo(file)


@pytest.mark.parametrize("make", [make_pipe, Path.mkdir], ids=["pipe", "folder"])
def test_H_CCH_03_what_is_no_file_is_a_miss(tmp_path, warnings, make):
    file = warm(tmp_path)
    file.unlink()
    make(file)
    assert Store(tmp_path).read(DECLARED) is None
    (said,) = warnings()
    assert str(file) in said and "no regular file" in said


def test_two_inputs_of_one_name_are_told_apart(tmp_path, warnings, monkeypatch):
    monkeypatch.setattr(module, "_name", lambda text: "0" * 32 + ".piece")
    warm(tmp_path)
    own, other = Store(tmp_path), {**DECLARED, "torch": "2.14.0"}
    assert own.read(other) is None and "other inputs" in warnings()[0]
    own.write(other, b"new")
    assert own.read(other) == b"new" and Store(tmp_path).read(DECLARED) is None


def test_an_entry_that_does_not_load_is_taken_back(tmp_path, warnings):
    file = warm(tmp_path)
    own = Store(tmp_path)
    assert own.read(DECLARED) == PAYLOAD
    own.discard(DECLARED, "AttributeError: no such kernel")
    (said,) = warnings()
    assert str(file) in said and "no such kernel" in said
    assert not file.exists() and own.read(DECLARED) is None
    own.write(DECLARED, b"again")
    assert own.read(DECLARED) == b"again"


def test_H_CCH_05_a_copied_cache_hits(tmp_path, warnings):
    warm(tmp_path / "image" / "cache")
    shutil.copytree(tmp_path / "image" / "cache", tmp_path / "else where" / "home")
    shutil.rmtree(tmp_path / "image")
    assert Store(tmp_path / "else where" / "home").read(DECLARED) == PAYLOAD and not warnings()


def test_H_CCH_06_a_busy_remove_after_publishing_is_ignored(tmp_path, warnings, monkeypatch):
    failed = once(monkeypatch, "unlink", errno.EBUSY)
    warm(tmp_path)
    assert len(failed) == 1 and Store(tmp_path).read(DECLARED) == PAYLOAD and not warnings()
    assert [file.suffix for file in tmp_path.iterdir()] == [".piece"]


def test_H_CCH_06_a_remove_that_stays_busy_is_ignored(tmp_path, warnings, monkeypatch, caplog):
    once(monkeypatch, "unlink", errno.EBUSY, times=99)
    own = Store(tmp_path)
    own.write(DECLARED, PAYLOAD)
    assert own.read(DECLARED) == PAYLOAD and not warnings()
    assert any("is not removed" in row.getMessage() and row.levelno == logging.DEBUG for row in caplog.records)


def test_H_CCH_06_reading_what_one_just_wrote_tries_again(tmp_path, warnings, monkeypatch):
    own = Store(tmp_path)
    own.write(DECLARED, PAYLOAD)
    failed = once(monkeypatch, "open", errno.ENOENT, below(tmp_path))
    assert own.read(DECLARED) == PAYLOAD and len(failed) == 1 and not warnings()


def test_H_CCH_06_the_first_open_fails(tmp_path, warnings, monkeypatch):
    failed = once(monkeypatch, "open", errno.ENOENT, below(tmp_path))
    own = Store(tmp_path, explicit=True)
    own.write(DECLARED, PAYLOAD)
    assert own.read(DECLARED) == PAYLOAD and len(failed) == 1 and not warnings()


def test_drafts_of_killed_processes_are_no_entries_and_are_swept(tmp_path, warnings):
    draft, young = (tmp_path / f".{name}-0123.draft" for name in (1, 2))
    for file in (draft, young):
        file.write_bytes(warm(tmp_path / "whole").read_bytes()[:100])
    os.utime(draft, (time.time() - 2 * 3600,) * 2)
    assert Store(tmp_path).read(DECLARED) is None
    assert not draft.exists() and young.exists() and not warnings()


def test_a_required_entry_that_is_missing_ends_the_start(tmp_path):
    own = Store(tmp_path, required=True)
    with pytest.raises(UserError, match=r"ENGINE_FORCE_AOT_LOAD: .* is not in .*, which holds no entry at all"):
        own.read(DECLARED)
    Store(tmp_path).write({**DECLARED, "torch": "2.12.0"}, b"")
    Store(tmp_path).write({"torch": "2.13.0"}, b"")
    (tmp_path / "rubbish.piece").write_bytes(b"\xff")
    with pytest.raises(UserError) as caught:
        own.read(DECLARED)
    said, digest = str(caught.value), module._name(module._canonical(DECLARED)).removesuffix(".piece")
    assert f"piece {digest} is not in {tmp_path}" in said and "differs in torch: 2.13.0 was 2.12.0." in said
    assert "Unset ENGINE_FORCE_AOT_LOAD" in said and "warm the cache" in said
    own.write(DECLARED, PAYLOAD)
    assert own.read(DECLARED) == PAYLOAD


def test_one_more_name_in_a_set_is_one_difference(tmp_path):
    Store(tmp_path).write({"features": ["b", "c", "d"], "shape": [3, 4]}, b"")
    with pytest.raises(UserError, match=r"differs in features\.a: present was absent, shape\.1: 5 was 4\. Unset"):
        Store(tmp_path, required=True).read({"features": ["a", "b", "c", "d"], "shape": [3, 5]})


def test_a_required_entry_that_is_damaged_or_does_not_load_ends_the_start(tmp_path):
    file = warm(tmp_path)
    own = Store(tmp_path, required=True)
    assert own.read(DECLARED) == PAYLOAD
    with pytest.raises(UserError, match=r"does not load: no such symbol\. Unset ENGINE_FORCE_AOT_LOAD"):
        own.discard(DECLARED, "no such symbol")
    assert file.exists()
    file.write_bytes(b"")
    with pytest.raises(UserError, match=r"cannot be used: it is no entry.*Unset ENGINE_FORCE_AOT_LOAD"):
        own.read(DECLARED)


def test_a_difference_of_many_values_is_cut_short(tmp_path):
    Store(tmp_path).write({"values": ["x" * 500] * 9}, b"")
    with pytest.raises(UserError, match=r"values\.0: 0 was x{80}…, .* and 4 more"):
        Store(tmp_path, required=True).read({"values": [0] * 9})
