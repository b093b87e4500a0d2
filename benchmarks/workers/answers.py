"""Questions over pipes, one JSON object a line, in whatever interpreter an engine lives in. Standard library only."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from typing import Any


def resident() -> int:
    """Bytes of this process that lie in memory."""
    with open("/proc/self/statm") as stream:
        return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def serve(engine: Any) -> None:
    """Answer by the methods of ``engine`` until standard input ends. What libraries print goes to standard error."""
    if sys.platform == "linux":  # a stopped child would outlive a parent that was killed
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        asked = json.loads(line)
        answer = getattr(engine, asked.pop("ask"))(**asked)
        print(json.dumps(answer), file=answers, flush=True)
