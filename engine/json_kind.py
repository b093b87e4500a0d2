"""What JSON calls the types of its values."""

from __future__ import annotations

from typing import Any


def json_kind(value: Any) -> str:
    kinds = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "an array"}
    return "null" if value is None else kinds.get(type(value), "an object")
