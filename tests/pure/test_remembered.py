"""What passed once on a machine: remembered as a whole or not at all, and never in anybody's way."""

from __future__ import annotations

import errno
import os
import time

import pytest

from engine.remembered import passed, remember
from tests.pure.store_toys import below, creating, once


def test_what_is_remembered_is_found_and_alone_in_its_folder(tmp_path):
    file = tmp_path / "new" / "folder" / "a.json"
    assert not passed(file)
    remember(file, "rms_norm quick: tokens 3")
    assert passed(file) and [path.name for path in file.parent.iterdir()] == ["a.json"]


@pytest.mark.parametrize(
    "content",
    [b"", b'{"passed"', b"[]", b"{}", b'{"passed": true}', b"[" * 100_000, os.urandom(64), b"\xff\xfe"],
    ids=["empty", "half", "a list", "nothing", "no text", "deep", "random", "no UTF-8"],
)
def test_H_CCH_03_what_cannot_be_read_has_not_passed(tmp_path, content):
    file = tmp_path / "a.json"
    file.write_bytes(content)
    assert not passed(file)
    remember(file, "again")
    assert passed(file)


@pytest.mark.parametrize("failing", ["replace", "open"])
def test_H_CCH_06_a_disk_that_takes_nothing_keeps_no_draft(tmp_path, monkeypatch, failing):
    once(monkeypatch, failing, errno.ENOSPC, below(tmp_path) if failing == "replace" else creating)
    remember(tmp_path / "a.json", "one")
    assert not list(tmp_path.iterdir())
    remember(tmp_path / "a.json", "two")
    assert passed(tmp_path / "a.json")


def test_H_CCH_06_a_busy_draft_is_removed_at_the_second_try(tmp_path, monkeypatch):
    once(monkeypatch, "replace", errno.EBUSY, below(tmp_path))
    once(monkeypatch, "unlink", errno.EBUSY, below(tmp_path))
    remember(tmp_path / "a.json", "one")
    assert not list(tmp_path.iterdir())


def test_H_CCH_02_drafts_of_killed_starts_are_swept_and_those_of_others_are_not(tmp_path):
    old, young = tmp_path / ".7-ab.draft", tmp_path / ".8-cd.draft"
    for draft in (old, young):
        draft.touch()
    os.utime(old, (time.time() - 4000,) * 2)
    remember(tmp_path / "a.json", "one")
    assert sorted(path.name for path in tmp_path.iterdir()) == [young.name, "a.json"]


def test_H_CCH_04_a_folder_that_is_a_file_is_no_error(tmp_path):
    (tmp_path / "file").write_text("mine")
    remember(tmp_path / "file" / "a.json", "one")
    assert not passed(tmp_path / "file" / "a.json") and (tmp_path / "file").read_text() == "mine"
