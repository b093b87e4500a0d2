"""``python -m tests.soak.server serve …``: ``engine`` that on SIGUSR2 says how many tasks its loop has."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from types import FrameType

from engine.cli import main

SAID = "tasks: "


def _say_tasks(number: int, frame: FrameType | None) -> None:
    os.write(2, f"{SAID}{len(asyncio.all_tasks())}\n".encode())


if __name__ == "__main__":
    signal.signal(signal.SIGUSR2, _say_tasks)
    sys.exit(main(sys.argv[1:]))
