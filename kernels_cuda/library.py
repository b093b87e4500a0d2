"""Functions of FlashInfer, imported when first called. Importing it starts the driver: only a worker may call this."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

from kernels_cuda.calls import CALLS


def call(target: str, *receiver: Any, **given: Any) -> Any:
    """Call a target of ``CALLS`` with its keywords, a method on ``receiver``. Raises ``RuntimeError`` as ``function``,
    ``TypeError`` for keywords that are not those of the table."""
    if given.keys() != set(CALLS[target]):
        raise TypeError(f"{target} is called with {sorted(given)}, the table has {sorted(CALLS[target])}")
    return function(target)(*receiver, **given)


@cache
def function(target: str) -> Callable[..., Any]:
    """What stands behind a target of ``CALLS``. Raises ``RuntimeError`` where it cannot be imported, does not take one
    of the table's keywords, or wants an argument that is not among them."""
    keywords = CALLS[target]
    asked = f"{target.replace(':', '.')}({', '.join(keywords)})"
    module, _, path = target.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError, OSError, RuntimeError) as error:
        raise RuntimeError(f"{asked} cannot be loaded: {type(error).__name__}: {error}; repair the library") from error
    bound = inspect.isclass(found) or inspect.ismethod(found)
    known = list(inspect.signature(found).parameters.values())[0 if bound else path.count(".") :]
    named = [row for row in known if row.kind not in (row.VAR_POSITIONAL, row.VAR_KEYWORD)]
    unknown = [name for name in keywords if name not in [row.name for row in named]]
    missing = [row.name for row in named if row.default is row.empty and row.name not in keywords]
    if unknown or missing:
        raise RuntimeError(
            f"{asked}: the installed version takes ({', '.join(row.name for row in known)}); unknown there: "
            f"{unknown or 'none'}, not given: {missing or 'none'}. Install a version that this row was written for."
        )
    return found
