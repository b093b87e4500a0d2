"""Rows of `cuda` that prepare each step, those whose library is here."""

import pytest

from platforms.contract import Verdict
from tests.device.prepared import check_replays, check_steps


def test_rows_that_prepare(selection):
    """What is left without the library is every other row, and the verdict says so."""
    runtime = selection.plugin.open(selection.index)
    try:
        rows = [row for row in selection.plugin.kernels() if row.prepare]
        here = [row for row in rows if row.needs(runtime.profile, {})]
        if "flashinfer" not in runtime.profile.libraries:
            assert rows and not here and all("not installed" in row.needs(runtime.profile, {}).reason for row in rows)
        backend = runtime.graphs()
        if isinstance(backend, Verdict):
            pytest.fail(backend.reason)
        for row in here:
            check_steps(row, runtime)
            check_replays(row, runtime, backend)
    finally:
        runtime.close()
