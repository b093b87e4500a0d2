"""Files of requests and of answers: what is read, what is refused, and what a run that was killed leaves."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.batch_files.answers import Answers
from engine.batch_files.requests import BadLine, Requests
from engine.errors import UserError

LINE = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}


def written(path: Path, *lines: Any) -> Path:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def test_lines_are_found_again_by_number_and_name(tmp_path: Path) -> None:
    found = Requests(written(tmp_path / "in", LINE, "", "  ", {**LINE, "custom_id": "b", "url": "/v1/embeddings"}))
    assert [(entry.id, entry.name) for entry in found.entries] == [("batch_req_1", "a"), ("batch_req_4", "b")]
    assert found.read(found.entries[1]) == ("/v1/embeddings", {"prompt": "x"})
    assert found.read(found.entries[0]) == ("/v1/completions", {"prompt": "x"})


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("not json", "is no request"),
        ("[1]", "is no request"),
        ({**LINE, "custom_id": 5}, "custom_id"),
        ({name: value for name, value in LINE.items() if name != "body"}, "body"),
        ({**LINE, "body": "x"}, "body"),
        ({**LINE, "method": "GET"}, "method is 'GET'"),
        ({**LINE, "url": "/v1/models"}, "it can be /v1/chat/completions, /v1/completions, /v1/embeddings"),
        ({**LINE, "body": {"prompt": "x", "stream": True}}, "stream"),
    ],
)
def test_a_bad_line_says_what_is_wrong_with_it(tmp_path: Path, line: Any, said: str) -> None:
    found = Requests(written(tmp_path / "in", line))
    with pytest.raises(BadLine, match=said) as error:
        found.read(found.entries[0])
    assert "line 1" in str(error.value)


def test_two_requests_of_one_name_are_refused_with_their_lines(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="lines 1 and 3 have the same custom_id 'a'"):
        Requests(written(tmp_path / "in", LINE, {**LINE, "custom_id": "b"}, LINE))


def test_files_that_are_not_there_or_empty(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere: cannot be read"):
        Requests(tmp_path / "nowhere")
    with pytest.raises(UserError, match="holds no requests"):
        Requests(written(tmp_path / "in", ""))


@pytest.fixture
def requests(tmp_path: Path) -> Requests:
    return Requests(written(tmp_path / "in", *({**LINE, "custom_id": f"r{i}"} for i in range(4)), "bad"))


ANSWER: dict[str, Any] = {"response": {"status_code": 200, "body": {"text": "é"}}, "error": None}


def test_answers_get_their_name_when_all_are_there(tmp_path: Path, requests: Requests) -> None:
    out = tmp_path / "out"
    with Answers(out, requests.entries) as answers:
        for entry in reversed(requests.entries):
            assert not out.exists() and (tmp_path / "out.part").exists()
            answers.add(entry, ANSWER)
        answers.finish()
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["custom_id"] for row in rows] == [None, "r3", "r2", "r1", "r0"] and not (tmp_path / "out.part").exists()
    assert rows[0] == {"id": "batch_req_5", "custom_id": None, **ANSWER}
    with Answers(out, requests.entries) as again:
        assert again.done == {entry.id for entry in requests.entries}
        again.finish()
    assert len(out.read_text().splitlines()) == 5


@given(cut=st.integers(0, 10_000))
def test_wherever_a_run_was_killed_what_was_whole_is_kept_and_the_rest_follows(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    wanted = Requests(written(folder / "in", *({**LINE, "custom_id": f"r{i}"} for i in range(4)))).entries
    with Answers(folder / "out", wanted) as answers:
        for entry in wanted:
            answers.add(entry, ANSWER)
    part = folder / "out.part"
    whole = part.read_bytes()
    part.write_bytes(whole[: cut % (len(whole) + 1)])
    with Answers(folder / "out", wanted) as answers:
        assert len(answers.done) == part.read_bytes().count(b"\n"), "half a line is gone at once"
        for entry in wanted:
            if entry.id not in answers.done:
                answers.add(entry, ANSWER)
        answers.finish()
    assert (folder / "out").read_bytes() == whole


def test_requests_that_are_added_later_are_answered_later(tmp_path: Path, requests: Requests) -> None:
    out = tmp_path / "out"
    with Answers(out, requests.entries) as answers:
        for entry in requests.entries:
            answers.add(entry, ANSWER)
        answers.finish()
    with open(requests.path, "a") as file:
        file.write(json.dumps({**LINE, "custom_id": "new"}) + "\n")
    more = Requests(requests.path)
    with Answers(out, more.entries) as answers:
        (left,) = (entry for entry in more.entries if entry.id not in answers.done)
        assert left.name == "new" and not out.exists()
        answers.add(left, ANSWER)
        answers.finish()
    assert len(out.read_text().splitlines()) == 6


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"id": "batch_req_1", "custom_id": "other"}', "answers 'other', which is no request of this file"),
        ('{"id": "batch_req_9", "custom_id": "r1"}', "no request of this file"),
        ('{"some": "thing"}', "line 1 is no answer of a batch"),
    ],
)
def test_another_file_is_not_written_over(tmp_path: Path, requests: Requests, line: str, said: str) -> None:
    written(tmp_path / "out", line)
    with pytest.raises(UserError, match=said):
        Answers(tmp_path / "out", requests.entries)
    assert (tmp_path / "out").read_text() == line + "\n"


def test_one_run_at_a_time_writes_a_file(tmp_path: Path, requests: Requests) -> None:
    with Answers(tmp_path / "out", requests.entries), pytest.raises(UserError, match="another run"):
        Answers(tmp_path / "out", requests.entries)
    written(tmp_path / "out")
    with pytest.raises(UserError, match="both there"):
        Answers(tmp_path / "out", requests.entries)


def test_a_full_disk_leaves_whole_lines_and_is_said(
    tmp_path: Path, requests: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    room, write = [150], os.pwrite

    def pwrite(file: int, data: memoryview, at: int) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = min(room[0], len(data))
        room[0] -= count
        return write(file, data[:count], at)

    monkeypatch.setattr(os, "pwrite", pwrite)
    with Answers(tmp_path / "out", requests.entries) as answers:
        answers.add(requests.entries[0], ANSWER)
        with pytest.raises(UserError, match=r"out\.part: cannot be written: No space left on device"):
            answers.add(requests.entries[1], ANSWER)
        kept = (tmp_path / "out.part").read_text()
        assert kept.count("\n") == 1 and kept.endswith("\n") and answers.done == {"batch_req_1"}
        room[0] = 10**6
        answers.add(requests.entries[1], ANSWER)
    assert [json.loads(line)["id"] for line in (tmp_path / "out.part").read_text().splitlines()] == [
        "batch_req_1", "batch_req_2",
    ]  # fmt: skip


def test_a_folder_that_is_not_there_is_named(tmp_path: Path, requests: Requests) -> None:
    with pytest.raises(UserError, match="cannot be written: No such file"):
        Answers(tmp_path / "no" / "out", requests.entries)
