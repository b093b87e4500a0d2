"""What a server prints at its start."""

from __future__ import annotations

import io

import pytest

from engine.generation import CoreInfo
from engine.server.banner import StartLine, ready_lines, start_table, write
from engine.server.listen import Address


@pytest.mark.parametrize("width", [60, 200])
def test_the_table_is_the_core_s_rows_and_the_time_it_took(width: int) -> None:
    rows = [("model", "m", "the built-in one"), ("warning", "", "the flag matched nothing")]
    info = CoreInfo("m", "/m", 10, 100, 7, 16, "abc", "toy", 2, "NONE", "NONE", rows, [])
    table = " ".join(start_table(info, [("tokenizer", 0.5), ("warm up", 1.0)], width, color=False).split())
    assert table == (
        "model m the built-in one warning the flag matched nothing start-up 1.5 s tokenizer 0.5, warm up 1.0"
    )


@pytest.mark.parametrize(
    ("encoding", "errors", "written"),
    [
        ("ascii", "strict", "7 x 16 - ?\n"),
        ("latin-1", "strict", "7 x 16 - ?\n"),
        ("ascii", "backslashreplace", "7 \\xd7 16 \\u2013 \\u4e2d\n"),
        ("utf-8", "strict", "7 × 16 – 中\n"),
    ],
)
def test_a_stream_that_cannot_encode_a_character_gets_another(encoding: str, errors: str, written: str) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding, errors, newline="\n")
    write(stream, "7 × 16 – 中\n")
    assert raw.getvalue().decode(encoding) == written


@pytest.mark.parametrize("key", [True, False])
def test_the_printed_command_says_where_the_key_goes(key: bool) -> None:
    lines = ready_lines(Address("http://h:1"), "m", unnamed=False, chat=True, key=key, color=False).splitlines()
    command = lines.index(next(line for line in lines if line.startswith("curl ")))
    assert any("Bearer $ENGINE_API_KEY" in line for line in lines) == key
    assert lines[command - 1] == ("export ENGINE_API_KEY='<one of the API keys>'" if key else "")


def test_a_phase_that_says_how_far_it_is_goes_on() -> None:
    stream = io.StringIO()
    line = StartLine(stream)
    line.report("open device")
    begun = line.since
    line.report("open device: compiling kernels, 3 of 19 files")
    assert line.since == begun and "starting: open device: compiling kernels, 3 of 19 files (" in stream.getvalue()
    line.report("plan")
    assert line.since > begun


def test_the_address_has_a_line_of_its_own_that_a_narrow_terminal_holds() -> None:
    url = "http://localhost:8000"
    lines = ready_lines(Address(url), "a-model" * 9, unnamed=True, chat=True, key=False, color=False).splitlines()
    assert f"  at {url}" in lines
