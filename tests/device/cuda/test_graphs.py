"""Graphs of a device of `cuda`."""

import pytest

from tests.device.graphs import CHECKS


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_graphs(selection, check):
    check(selection)
