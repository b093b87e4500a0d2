"""A device tier runs on its device or fails: nothing here skips."""

from __future__ import annotations

from pathlib import Path

import pytest

from platforms.discovery import PlatformError, Selection, select

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Before anything else: each platform whose folder was asked for has a device here."""
    asked = sorted({item.path.relative_to(HERE).parts[0] for item in items if HERE in item.path.parents})
    for name in asked:
        try:
            select(name)
        except PlatformError as error:
            pytest.exit(f"the device tier {name} did not run: {error}", returncode=3)


@pytest.fixture(scope="session")
def selection(request: pytest.FixtureRequest) -> Selection:
    """The device of the folder that the test lies in."""
    return select(request.path.relative_to(HERE).parts[0])
