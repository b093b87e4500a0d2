"""Reasons of predicates: what a person reads of them."""

from __future__ import annotations

import pytest

from platforms.contract import DeviceProfile, fact, feature
from platforms.discovery import candidates

PLUGIN = next(row.plugin for row in candidates() if row.plugin)
PROFILE: DeviceProfile = next(iter(PLUGIN.targets().values()))


@pytest.mark.parametrize(
    ("value", "passes", "reason"),
    [
        (("float32", "bool"), True, "what is wanted"),
        ((("tokens", 576), (576,)), True, "what is wanted"),
        (True, True, "what is wanted"),
        (False, True, "what is wanted"),
        (2880, True, "name = 2880"),
        ("bfloat16", True, "name = bfloat16"),
        (False, False, "name = False, needs what is wanted"),
        (16, False, "name = 16, needs what is wanted"),
        (("float16",), False, "name = ('float16',), needs what is wanted"),
    ],
)
def test_a_fact_says_what_was_wanted_where_its_value_says_little(value: object, passes: bool, reason: str) -> None:
    verdict = fact("name", lambda found: passes, "what is wanted")(PROFILE, {"name": value})
    assert (verdict.ok, verdict.reason) == (passes, reason)


def test_an_unknown_fact_is_a_no() -> None:
    verdict = fact("name", lambda found: True, "anything")(PROFILE, {})
    assert (verdict.ok, verdict.reason) == (False, "name unknown")


def test_a_feature_says_whether_it_is_there() -> None:
    here = next(iter(sorted(PROFILE.features)))
    assert feature(here)(PROFILE, {}).reason == f"{here} present"
    absent = feature("no.such")(PROFILE, {})
    assert (absent.ok, absent.reason) == (False, "no.such absent")
