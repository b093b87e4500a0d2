"""Whether a form can be compiled, found out before a request is scheduled and away from everybody else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec

from engine.grammar.contract import GrammarError
from engine.structured_outputs import StructuredOutputsParams

KEPT = 1024
Problem = tuple[str, str | None]
"""Message and part of a ``GrammarError``."""
_HELPER = "engine.grammar.helper"


class Checker:
    """Asks a helper process, started with the first question. Questions are answered one at a time, in order."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="grammar-check")
        self._helper: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._known: OrderedDict[bytes, Problem | None] = OrderedDict()

    def submit(self, params: StructuredOutputsParams) -> Future[None]:
        """Done when ``params``, validated, can be compiled; fails with ``GrammarError`` when it cannot, or not in the
        time there is for it."""
        return self._pool.submit(self._check, params.key)

    def close(self) -> None:
        """End the helper; what was asked fails. May be called again."""
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._drop()

    def _check(self, key: bytes) -> None:
        if key not in self._known:
            self._known[key] = self._ask(key)
        self._known.move_to_end(key)
        while len(self._known) > KEPT:
            self._known.popitem(last=False)
        problem = self._known[key]
        if problem is not None:
            raise GrammarError(*problem)

    def _ask(self, key: bytes) -> Problem | None:
        """Why not, if so. A helper that has ended before the question is replaced once."""
        for _ in range(2):
            if self._closed:
                raise GrammarError("it is not compiled any more; the engine stops")
            helper = self._helper or self._start()
            assert helper.stdin is not None and helper.stdout is not None
            try:
                helper.stdin.write(key + b"\n")
                helper.stdin.flush()
                answer = helper.stdout.readline()
            except OSError:
                answer = b""
            if answer:
                return msgspec.json.decode(answer, type=Problem | None)
            code = helper.wait()
            self._drop()
            if code == -signal.SIGALRM:
                raise GrammarError("compiling it takes too long; make it smaller")
        raise GrammarError("the compiler does not survive it; make it smaller")

    def _start(self) -> subprocess.Popen[bytes]:
        path = os.pathsep.join(filter(None, sys.path))
        self._helper = subprocess.Popen(
            [sys.executable, "-m", _HELPER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
        )
        return self._helper

    def _drop(self) -> None:
        helper, self._helper = self._helper, None
        if helper is not None:
            assert helper.stdin is not None and helper.stdout is not None
            helper.stdin.close()
            helper.kill()
            helper.stdout.close()
