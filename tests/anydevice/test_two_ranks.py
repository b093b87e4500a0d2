"""Two processes compute what one does."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
import torch

from engine.ops import OPS
from tests.rank_toys import logits, one_rank


def test_two_ranks_sum_join_and_say_what_one_says(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    ranks = [spawn.Process(target=one_rank, args=(rank, 2, tmp_path)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(120)
    assert [process.exitcode for process in ranks] == [0, 0]
    whole = {heads: logits(heads, 0, 1) for heads in (2, 1)}
    base = torch.arange(6.0).view(2, 3)
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt")
        assert "not open" in found["closed"] and "one of 2" in found["closed"]
        assert torch.equal(found["sum"], base * 3) and torch.equal(found["strided"], base.t() * 3)
        assert torch.equal(found["join"], torch.cat((base, base * 2), 1))
        assert torch.equal(found["given"], base * (rank + 1))
        for heads, expected in whole.items():
            torch.testing.assert_close(found["logits"][heads], expected, rtol=1e-4, atol=1e-4)


def test_a_process_alone_is_its_own_sum_and_joins_with_nobody() -> None:
    x = torch.randn(2, 3)
    assert torch.equal(OPS["all_reduce"].reference(x, group="tp"), x)
    with pytest.raises(ValueError, match="'tp' has 1 ranks, the call is for 2"):
        OPS["all_gather"].reference(x, group="tp", ranks=2)
