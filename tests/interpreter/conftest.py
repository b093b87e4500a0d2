"""Kernels on the interpreter: a process of its own, since one that interprets can compile nothing."""

import os

import pytest

if os.environ.get("TRITON_INTERPRET") != "1":
    raise pytest.UsageError("tests/interpreter needs TRITON_INTERPRET=1; tests/anydevice/test_triton.py sets it")

from tests.interpreter.repairs import repair

repair()
