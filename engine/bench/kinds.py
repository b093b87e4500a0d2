"""Types of value that options of benchmarks have. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from engine.config.values import Kind, listing, number, text

LATENCIES = ("ttft", "tpot", "itl", "e2el")
"""Time to first token, time per output token after it, time between two events, whole time of a request."""


def _percentile(raw: Any) -> float:
    value = number(0, 100)(raw)
    return int(value) if value == int(value) else value


def _metric(raw: Any) -> str:
    if raw not in LATENCIES:
        raise ValueError(f"wants some of {', '.join(LATENCIES)}")
    return str(raw)


def _pair(separator: str, wanted: str) -> Callable[[Any], tuple[str, str]]:
    def parse(raw: Any) -> tuple[str, str]:
        name, found, value = str(raw).partition(separator)
        if not found or not name.strip():
            raise ValueError(f"wants {wanted}")
        return name.strip(), value.strip()

    return parse


def _objective(raw: Any) -> tuple[str, float]:
    name, value = _pair(":", "METRIC:MILLISECONDS, as in ttft:200")(raw)
    known = [one for one in LATENCIES if one != "itl"]
    if name not in known:
        raise ValueError(f"wants one of {', '.join(known)} before the colon")
    return name, number(0)(value)


def _object(raw: Any) -> dict[str, Any]:
    try:
        value = json.loads(raw)
    except ValueError as error:
        raise ValueError(f"is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError("wants a JSON object")
    return value


def _varied(raw: Any) -> tuple[str, tuple[str, ...]]:
    name, values = _pair("=", "OPTION=A,B,... without dashes in front, as in max-num-seqs=1,8")(raw)
    found = tuple(value.strip() for value in values.split(",") if value.strip())
    if not found:
        raise ValueError("wants at least one value after =")
    return name.lstrip("-"), found


RATE = Kind("RATE", number(0, above=True))
FACTOR = Kind("X", number(0, above=True))
RATIO = Kind("R", number(0, 0.999999))
VALUE = Kind("X", number(float("-inf")))
PERCENTILES = Kind("P,...", listing(_percentile))
METRICS = Kind("NAME,...", listing(_metric))
HEADER = Kind("NAME=VALUE", _pair("=", "NAME=VALUE"))
OBJECTIVE = Kind("METRIC:MS", _objective)
OBJECT = Kind("JSON", _object)
VARIED = Kind("OPTION=A,B,...", _varied)
WORDS = Kind("TEXT", text)
