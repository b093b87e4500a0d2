"""Addresses of servers as people write them."""

from __future__ import annotations

import pytest

from engine.endpoint import address_of


@pytest.mark.parametrize(
    "written", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/", "h:1", "h:1/v1"]
)
def test_a_server_is_found_by_its_address_or_that_of_its_api(written: str) -> None:
    assert address_of(written) == "http://h:1"


def test_a_path_in_front_of_all_routes_stays() -> None:
    assert address_of("https://h/base/v1") == address_of("https://h/base") == "https://h/base"
