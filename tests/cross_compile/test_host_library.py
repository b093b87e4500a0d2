"""The host's kernels compile for every processor that is described, where there is a compiler for its family."""

import pytest

from kernels_cpu.bundle import build
from platforms.cpu.compilers import find_cross
from platforms.machine import Machine
from tests.described_plans import PLUGINS

TARGETS = PLUGINS["cpu"].targets()


@pytest.mark.parametrize("target", TARGETS)
def test_the_library_compiles(target: str) -> None:
    profile = TARGETS[target]
    compiler, why = find_cross(Machine(), profile.family)
    if not compiler:
        pytest.skip(f"{target}: {why}")
    (unit,) = build(profile, "", (), {})
    made = unit.make()
    assert not made["problems"], made["problems"]
    assert made["figures"]["bytes"] > 100_000
