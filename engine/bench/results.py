"""Results as files and as text."""

from __future__ import annotations

import json
import os
from typing import Any

from engine.errors import UserError


def save(path: str, result: dict[str, Any], flag: str, append: bool = False) -> None:
    """JSON on one line. Raises ``UserError`` naming ``flag`` where it cannot be written."""
    try:
        if folder := os.path.dirname(path):
            os.makedirs(folder, exist_ok=True)
        with open(path, "a" if append else "w", encoding="utf-8") as file:
            file.write(("\n" if append and file.tell() else "") + json.dumps(result))
    except OSError as error:
        raise UserError(f"{flag}: {path} cannot be written: {error.strerror or error}") from error


def facts(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Rows about the engine that was measured, as far as it is known."""
    rows = []
    for key, title in (("peak_memory_bytes", "Peak memory"), ("peak_device_memory_bytes", "Peak device memory")):
        if result.get(key):
            rows.append((title, f"{result[key] / 2**30:.2f} GiB"))
    if result.get("plan_hash"):
        rows.append(("Plan", f"-O{result['level']}, {result['plan_hash'][:12]}"))
    return rows
