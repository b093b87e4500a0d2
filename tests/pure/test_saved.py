"""What ``--profile`` makes of whatever a user names."""

from __future__ import annotations

import json
import os
import threading
import time

import pytest

from platforms.cuda.plugin import CudaPlugin
from platforms.discovery import PlatformError, read_profile

PROFILE = CudaPlugin().targets()["sm_90"]


def refused(path) -> str:
    started = time.monotonic()
    with pytest.raises(PlatformError) as error:
        read_profile(str(path))
    assert time.monotonic() - started < 2 and len(str(error.value)) < 600 and str(error.value).isprintable()
    return str(error.value)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_profile_in_the_encodings_that_shells_write(tmp_path, encoding):
    path = tmp_path / "saved.json"
    path.write_bytes(json.dumps({"profile": PROFILE.to_json(), "rows": []}).encode(encoding))
    assert read_profile(str(path)) == PROFILE


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("memory_bytes", 10**400),
        ("memory_bytes", -1),
        ("memory_bytes", True),
        ("memory_bytes", 1.5),
        ("memory_bytes", float("nan")),
        ("memory_bytes", float("inf")),
        ("memory_bytes", None),
        ("memory_bytes", "80 GiB"),
        ("limits", {"threads": -1}),
        ("limits", {"threads": 1 << 62}),
        ("limits", {"threads": False}),
        ("limits", {"threads": float("nan")}),
        ("limits", [1]),
        ("limits", None),
        ("features", "dtype.float32"),
        ("features", [1]),
        ("features", {"dtype.float32": True}),
        ("libraries", {"torch": 2}),
        ("evidence", None),
        ("origin", "guessed"),
        ("platform", None),
        ("arch", ""),
        ("family", "x" * 1000),
        ("product", "\x1b[31mred\n"),
        ("platform", "cpu\ud800"),
        ("libraries", {"triton": "9" * 5000}),
        ("colour", "red"),
    ],
)
def test_a_field_that_no_device_can_have_is_named(tmp_path, field, value):
    path = tmp_path / "saved.json"
    path.write_text(json.dumps({**PROFILE.to_json(), field: value}))
    assert field in refused(path)


def test_unknown_features_are_kept(tmp_path):
    path = tmp_path / "saved.json"
    path.write_text(json.dumps({**PROFILE.to_json(), "features": ["magic.wand"]}))
    assert read_profile(str(path)).features == {"magic.wand"}


@pytest.mark.parametrize(
    "content",
    [b"", b"\x80\x81", b"[" * 100_000, b'{"profile":' * 50_000, b'{"memory_bytes": ' + b"9" * 5000 + b"}", b"1e999"],
)
def test_a_file_of_anything_else(tmp_path, content):
    path = tmp_path / "saved.json"
    path.write_bytes(content)
    refused(path)


def test_a_profile_cut_off_anywhere(tmp_path):
    path, whole = tmp_path / "saved.json", json.dumps(PROFILE.to_json())
    for end in range(0, len(whole), 97):
        path.write_text(whole[:end])
        refused(path)


def test_where_no_device_was_chosen_the_message_says_so(tmp_path):
    path = tmp_path / "saved.json"
    path.write_text(json.dumps({"profile": None, "rows": [], "problem": "two"}))
    assert "no device was chosen" in refused(path)


@pytest.mark.parametrize("path", ["/", "/dev/zero", "/dev/null", "/nonexistent/x", "/proc/self/mem", "\udcff", "a\0b"])
def test_a_path_that_is_no_file(path):
    assert refused(path).startswith("--profile ")


def test_a_pipe_that_nobody_writes_to_is_empty(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe")


def test_a_pipe_is_read_to_its_end():
    reading, writing = os.pipe()

    def write() -> None:
        time.sleep(0.2)
        with os.fdopen(writing, "w") as file:
            json.dump(PROFILE.to_json(), file)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert read_profile(f"/proc/self/fd/{reading}") == PROFILE
    finally:
        writer.join()
        os.close(reading)
