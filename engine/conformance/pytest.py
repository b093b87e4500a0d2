"""The kit as tests of a plugin's author: ``test_conformance = conformance("NAME")``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from engine.conformance import CHAPTERS, Check, checks


def conformance(name: str, chapters: Sequence[str] = CHAPTERS) -> Callable[..., Any]:
    """One test per check. What is not supported is a skip with its reason, never a pass. Raises as ``checks`` does."""
    import pytest

    @pytest.mark.parametrize("check", checks(name, chapters), ids=str)
    def test(check: Check) -> None:
        outcome = check.run()
        if outcome.state == "not supported":
            pytest.skip(outcome.detail)
        if outcome.state == "failed":
            pytest.fail(f"{check}: {outcome.detail}", pytrace=False)

    return test
