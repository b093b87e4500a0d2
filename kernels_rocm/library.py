"""Functions of AITER, imported when first called. Importing it starts the driver and may compile: only a worker may
call this.

Its decorators hide signatures, and the argument of a wrong call may end the process instead of raising: what the
installed source declares is read and compared before the first call.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any


@cache
def function(module: str, name: str, *keywords: str) -> Callable[..., Any]:
    """The library's function, to be called with exactly ``keywords``. Raises ``RuntimeError`` where it cannot be
    imported, does not take one of them, or wants an argument that is not among them. ``Class.method`` names a method:
    then the class is returned."""
    asked = f"{module}.{name}({', '.join(keywords)})"
    try:
        loaded = importlib.import_module(module)
    except Exception as error:
        # Without a working ROCm the import raises RuntimeError, KeyError or what a compiler raised.
        raise RuntimeError(f"{asked} cannot be loaded: {type(error).__name__}: {error}; repair the library") from error
    declared = _declared(Path(str(loaded.__file__)), name)
    owner, _, method = name.partition(".")
    found: Callable[..., Any] | None = getattr(loaded, owner, None)
    if declared is None or found is None:
        raise RuntimeError(f"{asked}: the installed version has no {name} there. Install one this row was written for.")
    known, wanted = declared
    known, wanted = (known[1:], wanted[1:]) if method else (known, wanted)
    unknown = [one for one in keywords if one not in known]
    missing = [one for one in wanted if one not in keywords]
    if unknown or missing:
        raise RuntimeError(
            f"{asked}: the installed version takes ({', '.join(known)}); unknown there: {unknown or 'none'}, "
            f"not given: {missing or 'none'}. Install a version that this row was written for."
        )
    return found


def _declared(file: Path, name: str) -> tuple[list[str], list[str]] | None:
    """Parameters of a function in a source file, and those of them without a default; ``None`` where it is not."""
    body: list[ast.stmt] = ast.parse(file.read_text()).body
    *owners, last = name.split(".")
    for owner in owners:
        body = next((list(node.body) for node in body if isinstance(node, ast.ClassDef) and node.name == owner), [])
    found = next((node for node in body if isinstance(node, ast.FunctionDef) and node.name == last), None)
    if found is None:
        return None
    plain = [one.arg for one in (*found.args.posonlyargs, *found.args.args)]
    named = [one.arg for one in found.args.kwonlyargs]
    wanted = plain[: len(plain) - len(found.args.defaults)]
    wanted += [one for one, default in zip(named, found.args.kw_defaults, strict=True) if default is None]
    return plain + named, wanted
