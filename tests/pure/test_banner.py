"""What a server prints at its start."""

from __future__ import annotations

import pytest

from engine.generation import CoreInfo
from engine.server.banner import start_table


@pytest.mark.parametrize("width", [60, 200])
def test_the_table_is_the_core_s_rows_and_the_time_it_took(width: int) -> None:
    rows = [("model", "m", "the built-in one"), ("warning", "", "the flag matched nothing")]
    info = CoreInfo("m", "/m", 10, 100, 7, 16, "abc", "toy", 2, "NONE", rows, [])
    table = " ".join(start_table(info, [("tokenizer", 0.5), ("warm up", 1.0)], width, color=False).split())
    assert table == (
        "model m the built-in one warning the flag matched nothing start-up 1.5 s tokenizer 0.5, warm up 1.0"
    )
