"""The Triton kernels without a device: on the interpreter, and as machine code. Each needs a process of its own, since
one that interprets can compile nothing, and neither may leave its marks on the other tests."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


SECONDS = 3000 if os.environ.get("ENGINE_EVERY_KERNEL") == "1" else 900
"""``make test-all`` compiles every kernel for every device, and takes every case to the interpreter."""


def passed_in(folder: str, *words: str, **environment: str) -> int:
    """How many tests passed in a process of their own; all of them must."""
    plain = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    made = subprocess.run(
        [sys.executable, "-m", "pytest", "-sp", "no:cacheprovider", f"--timeout={SECONDS}", f"tests/{folder}", *words],
        cwd=ROOT,
        env={**plain, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
    )
    text = made.stdout + made.stderr
    assert made.returncode == 0, text[-6000:]
    last = made.stdout.strip().splitlines()[-1]
    found = re.fullmatch(r"=*\s*(\d+) passed(?:, \d+ (?:deselected|warnings?))* in .*", last)
    assert found, f"not every test ran: {last}"
    print("\n".join(re.findall(r"^part .*", text, re.MULTILINE)))
    return int(found[1])


@pytest.mark.timeout(SECONDS)
def test_every_row_gives_the_results_of_its_reference_on_the_interpreter():
    assert passed_in("interpreter", TRITON_INTERPRET="1") > 300


@pytest.mark.timeout(SECONDS)
def test_every_kernel_is_clean_on_devices_that_are_absent():
    assert passed_in("cross_compile") > 20


def test_the_interpreters_tests_refuse_a_process_that_does_not_interpret():
    with pytest.raises(AssertionError, match="needs TRITON_INTERPRET=1"):
        passed_in("interpreter", "-k", "padded_requests")
