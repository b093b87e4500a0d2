"""Processes that this one starts, and that end with it."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from typing import Any

PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
NAME_BYTES = 15
EXIT_ORPHANED = 1


def start_child(main: Callable[..., None], arguments: Any, name: str) -> SpawnProcess:
    """Start ``main(arguments)``, which calls ``begin_child`` first. Call it in a thread that lives as long as this
    process, best the main one: the system can then tie the child's life to it."""
    child = multiprocessing.get_context("spawn").Process(target=main, args=(arguments,), name=name)
    # The child inherits the mask: what comes before it ignores these signals must not end it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        child.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return child


def begin_child(bound: bool) -> None:
    """In the child: end as soon as the parent has ended, for whatever reason and whatever this process is doing, and
    leave SIGINT and SIGTERM, which a terminal or a supervisor sends to the whole group, to it. The name is one that
    ``ps`` and ``top`` can show.

    A thread waits for the other end of a pipe to close. ``bound`` adds, where the system can, a kill by the kernel,
    which needs no interpreter lock but comes when the *thread* that started this process ends.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(EXIT_ORPHANED)

    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(PR_SET_NAME, multiprocessing.current_process().name.encode()[:NAME_BYTES])
        if bound:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})


def describe_exit(code: int | None) -> str:
    """In words: ``killed by SIGKILL``, ``exit code 1``."""
    if code is None or code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
