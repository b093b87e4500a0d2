"""Where the opened device is not what the probe had said."""

from __future__ import annotations

import dataclasses

from platforms.changes import contradictions
from platforms.cuda.plugin import CudaPlugin

PROBED = dataclasses.replace(CudaPlugin().targets()["sm_90"], origin="probed")
SAME = dataclasses.replace(PROBED, origin="measured")


def test_a_device_that_is_what_it_seemed_has_none():
    assert contradictions(PROBED, SAME) == ()
    near = dataclasses.replace(SAME, memory_bytes=int(PROBED.memory_bytes * 0.97), libraries={"torch": "2.14"})
    assert contradictions(PROBED, near) == ()


def test_what_the_probe_did_not_know_is_none():
    blank = {"arch": "unknown", "family": "unknown", "product": "unknown", "memory_bytes": 0, "limits": {}}
    assert contradictions(dataclasses.replace(PROBED, features=frozenset(), **blank), SAME) == ()


def test_each_fact_that_differs_is_a_line_with_both_sources():
    other = dataclasses.replace(
        SAME,
        arch="sm_100",
        family="blackwell",
        memory_bytes=10 << 30,
        limits={**SAME.limits, "compute_units": 16},
        evidence={"arch": "CUDA runtime", "limits.compute_units": "CUDA runtime"},
    )
    lines = contradictions(PROBED, other)
    assert [line.split()[1] for line in lines] == ["arch", "family", "memory_bytes", "compute_units"]
    assert lines[0].startswith("cuda: arch is sm_100 (CUDA runtime), and planned for so; the probe had said sm_90 (")
    assert PROBED.evidence["limits.compute_units"] in lines[3]


def test_a_feature_that_appeared_or_went_on_the_same_architecture():
    less = dataclasses.replace(SAME, features=SAME.features - {"copy.tma"} | {"mem.shared_with_host"})
    gone, came = contradictions(PROBED, less)
    assert gone.startswith("cuda: copy.tma is not there: ") and ". The plan does without it; expected was: " in gone
    assert came.startswith("cuda: mem.shared_with_host is there (measured), and the plan may use it; the probe had not")


def test_kernels_that_were_made_before_are_no_surprise():
    made = dataclasses.replace(SAME, features=SAME.features | {"kernel.cxx"})
    assert contradictions(PROBED, made) == ()
    (line,) = contradictions(dataclasses.replace(made, origin="probed"), SAME)
    assert "kernel.cxx is not there" in line
