"""An API key that guards nothing."""

from __future__ import annotations

import pytest

from engine.config import collect
from engine.errors import UserError


@pytest.mark.parametrize("key", ["", " ", ",", "[]", '[""]'])
def test_an_empty_api_key_is_refused_not_taken_for_none(key: str) -> None:
    with pytest.raises(UserError, match="--api-key"):
        collect(["--api-key", key], {}, "serve")
    with pytest.raises(UserError, match="ENGINE_API_KEY"):
        collect([], {"ENGINE_API_KEY": key}, "serve")
    assert collect([], {"ENGINE_PORT": ""}, "serve").given == {}
