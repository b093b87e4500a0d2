"""Visibility variables: ordinals, ids, nothing, and two of them at once."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from platforms.rocm.kfd import VARIABLES as ROCM
from platforms.visible import resolve

CUDA = (("CUDA_VISIBLE_DEVICES",),)
IDS = ("GPU-aaaa1111-0000", "GPU-aaaa2222-0000", "GPU-bbbb3333-0000", "GPU-cccc4444-0000")


def cuda(text: str | None, devices=4, hides=True):
    environ = {} if text is None else {"CUDA_VISIBLE_DEVICES": text}
    return resolve(environ, CUDA, devices, duplicate_hides_all=hides)


@pytest.mark.parametrize(
    ("text", "expected", "problems"),
    [
        (None, (0, 1, 2, 3), 0),
        ("", (), 0),
        ("  ", (), 0),
        ("-1", (), 0),
        ("0", (0,), 0),
        ("2,0", (2, 0), 0),
        (" 3 , 1 ", (3, 1), 0),
        ("1,-1,2", (1,), 0),
        ("1,9,2", (1,), 1),
        ("9", (), 1),
        ("0,0", (), 1),
        ("NoDevFiles", (), 1),
        ("0,,1", (0,), 1),
        ("99999999999999999999", (), 1),
        ("1gpu2", (), 1),
    ],
)
def test_a_list_ends_at_its_first_entry_that_names_nothing(text, expected, problems):
    found = cuda(text)
    assert found.devices == expected
    assert len(found.problems) == problems
    assert all("CUDA_VISIBLE_DEVICES" in problem for problem in found.problems)


def test_H_PLT_02_a_device_named_by_id_may_be_a_number_or_text():
    assert cuda("GPU-bbbb3333-0000", IDS).devices == (2,)
    assert cuda("gpu-BBBB", IDS).devices == (2,), "drivers accept the beginning of an id, in any case"
    assert cuda("MIG-12345678-1111-2222-3333-444444444444", IDS).devices == (
        "MIG-12345678-1111-2222-3333-444444444444",
    )
    assert cuda("GPU-00000000-1111-2222-3333-444444444444", 1).devices == ("GPU-00000000-1111-2222-3333-444444444444",)


def test_an_id_that_is_ambiguous_or_unknown_is_a_problem_and_not_a_crash():
    assert cuda("GPU-aaaa", IDS).devices == () and "write it out" in cuda("GPU-aaaa", IDS).problems[0]
    assert cuda("GPU-dead", IDS).devices == () and "GPU-dead" in cuda("GPU-dead", IDS).problems[0]


def test_H_PLT_10_the_second_list_indexes_what_the_first_left():
    both = resolve({"ROCR_VISIBLE_DEVICES": "2,5", "HIP_VISIBLE_DEVICES": "1"}, ROCM, 8)
    assert both.devices == (5,) and not both.problems
    beyond = resolve({"ROCR_VISIBLE_DEVICES": "2,5", "HIP_VISIBLE_DEVICES": "2"}, ROCM, 8)
    assert beyond.devices == ()
    (problem,) = beyond.problems
    assert "HIP_VISIBLE_DEVICES" in problem and "ROCR_VISIBLE_DEVICES" in problem and "\n" not in problem


def test_two_variables_of_one_stage_that_differ_are_reported_and_the_first_counts():
    found = resolve({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}, ROCM, 2)
    assert found.devices == (0,)
    assert "HIP_VISIBLE_DEVICES" in found.problems[0] and "CUDA_VISIBLE_DEVICES" in found.problems[0]
    assert not resolve({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "1"}, ROCM, 2).problems
    assert resolve({"CUDA_VISIBLE_DEVICES": "1"}, ROCM, 2).devices == (1,)


def test_an_empty_first_list_leaves_nothing_to_index():
    found = resolve({"ROCR_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "0"}, ROCM, 2)
    assert found.devices == () and "ROCR_VISIBLE_DEVICES" in found.problems[0]


def test_ten_thousand_entries_and_variables_are_read_at_once():
    environ = {f"UNRELATED_{index}": "x" * 100 for index in range(10_000)}
    environ["CUDA_VISIBLE_DEVICES"] = ",".join(str(index) for index in range(10_000))
    found = resolve(environ, CUDA, 10_000)
    assert len(found.devices) == 10_000
    assert all(len(line) < 200 for line in found.evidence)


def test_nothing_is_written():
    before = dict(os.environ)
    resolve({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}, ROCM, 2)
    assert dict(os.environ) == before


ENTRIES = st.one_of(
    st.integers(-3, 12).map(str),
    st.sampled_from([*IDS, "GPU-aaaa", "MIG-x", "", " 1", "0x1", "²"]),
    st.text(max_size=8),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(ENTRIES, max_size=6).map(",".join), st.lists(ENTRIES, max_size=6).map(",".join), st.integers(0, 4))
def test_any_text_gives_distinct_devices_that_exist(first, second, count):
    found = resolve({"ROCR_VISIBLE_DEVICES": first, "HIP_VISIBLE_DEVICES": second}, ROCM, IDS[:count])
    assert len(set(found.devices)) == len(found.devices)
    assert all(0 <= device < count for device in found.devices if isinstance(device, int))
    assert all("\n" not in line for line in found.problems) or "\n" in first + second
