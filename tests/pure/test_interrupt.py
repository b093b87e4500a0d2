"""A signal before there is anything to put away."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

FINALISER = """
import os
from engine.interrupt import exit_at_once

class Dying:
    def __del__(self):
        os.kill(os.getpid(), {number})
        for _ in range(1000):
            pass

with exit_at_once():
    Dying()
    print("survived")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_H_SRV_02_a_stop_signal_is_not_lost_where_exceptions_are(number: signal.Signals) -> None:
    done = subprocess.run([sys.executable, "-c", FINALISER.format(number=int(number))], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (128 + number, "")
    assert done.stderr == f"engine: stopped by {number.name}\n"
