"""Invariant 9: a tier that should have used a device and did not is a failure, never a pass."""

import subprocess
import sys
from pathlib import Path

import pytest

from platforms.discovery import PlatformError, select

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["cuda", "rocm"])
def test_a_device_tier_without_its_device_fails(name: str) -> None:
    try:
        select(name)
        present = True
    except PlatformError:
        present = False
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/device/{name}"]
    command += ["--collect-only"] if present else []
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if present:
        assert done.returncode == 0 and "test_tokens" in done.stdout
    else:
        assert done.returncode == 3
        assert f"the device tier {name} did not run" in done.stdout + done.stderr
        assert "passed" not in done.stdout
