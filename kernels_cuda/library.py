"""Functions of FlashInfer, imported when first called. Importing it starts the driver: only a worker may call this."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from functools import cache
from typing import Any


@cache
def function(module: str, name: str, *keywords: str) -> Callable[..., Any]:
    """The library's function, to be called with exactly ``keywords``. Raises ``RuntimeError`` where it cannot be
    imported, does not take one of them, or wants an argument that is not among them."""
    asked = f"{module}.{name}({', '.join(keywords)})"
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, OSError, RuntimeError) as error:
        raise RuntimeError(f"{asked} cannot be loaded: {type(error).__name__}: {error}; repair the library") from error
    known = inspect.signature(found).parameters
    wanted = [
        row.name
        for row in known.values()
        if row.default is row.empty and row.kind not in (row.VAR_POSITIONAL, row.VAR_KEYWORD)
    ]
    unknown = [name for name in keywords if name not in known]
    missing = [name for name in wanted if name not in keywords]
    if unknown or missing:
        raise RuntimeError(
            f"{asked}: the installed version takes ({', '.join(known)}); unknown there: {unknown or 'none'}, "
            f"not given: {missing or 'none'}. Install a version that this row was written for."
        )
    return found
