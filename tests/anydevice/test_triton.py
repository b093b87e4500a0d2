"""The Triton kernels without a device: on the interpreter, and as machine code. Each needs a process of its own, since
one that interprets can compile nothing, and neither may leave its marks on the other tests."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def passed_in(folder: str, *words: str, **environment: str) -> int:
    """How many tests passed in a process of their own; all of them must."""
    plain = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    made = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--timeout=900", f"tests/{folder}", *words],
        cwd=ROOT,
        env={**plain, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
    )
    text = made.stdout + made.stderr
    assert made.returncode == 0, text[-6000:]
    last = made.stdout.strip().splitlines()[-1]
    found = re.fullmatch(r"=*\s*(\d+) passed(?:, \d+ deselected)? in .*", last)
    assert found, f"not every test ran: {last}"
    return int(found[1])


@pytest.mark.timeout(900)
def test_every_row_gives_the_results_of_its_reference_on_the_interpreter():
    assert passed_in("interpreter", TRITON_INTERPRET="1") > 300


@pytest.mark.timeout(900)
def test_every_kernel_compiles_for_devices_that_are_absent():
    assert passed_in("cross_compile", "-k", "one_of_each") == 8


def test_the_interpreters_tests_refuse_a_process_that_does_not_interpret():
    with pytest.raises(AssertionError, match="needs TRITON_INTERPRET=1"):
        passed_in("interpreter", "-k", "padded_requests")
