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
from types import ModuleType
from typing import Any

from kernels_rocm.calls import CALLS, LibraryCall

Declared = tuple[list[str], list[str]]
"""Parameters of a function in order, without ``self``, and those of them that have no default."""


def invoke(name: str, **given: Any) -> Any:
    """The result of the library's function of this name in ``CALLS``. Raises as ``function`` does."""
    assert given.keys() == CALLS[name].passed, f"{name} passes {sorted(given.keys() ^ CALLS[name].passed)} otherwise"
    return function(name)(**given)


def require(*names: str) -> None:
    """Raises as ``function`` does for the first of ``names`` that is not as expected: a row that picks among several
    calls is refused whole, when it is first touched, and not later by the call that it lacks."""
    for name in names:
        function(name)


@cache
def function(name: str) -> Callable[..., Any]:
    """The library's function of this name in ``CALLS``; for a method its class. Raises ``RuntimeError`` where it
    cannot be imported, does not take an argument that is passed, or wants one that is not."""
    call = CALLS[name]
    asked = f"{call}({', '.join(sorted(call.passed))})"
    try:
        loaded = importlib.import_module(call.module)
    except Exception as error:
        # Without a working ROCm the import raises RuntimeError, KeyError or what a compiler raised.
        raise RuntimeError(f"{asked} cannot be loaded: {type(error).__name__}: {error}; repair the library") from error
    found: Callable[..., Any] | None = getattr(loaded, call.name.partition(".")[0], None)
    declares = declared(_source(loaded), call.name) if found else None
    if declares is None or found is None:
        raise RuntimeError(
            f"{asked}: the installed version has no {call.name} there. Install one this row was written for."
        )
    if problem := mismatch(call, declares):
        raise RuntimeError(f"{asked}: {problem}. Install a version that this row was written for.")
    return found


def _source(module: ModuleType) -> str:
    """Raises ``RuntimeError`` where there is none, so that nothing says what a call would do."""
    try:
        return Path(str(module.__file__)).read_text()
    except (OSError, AttributeError, UnicodeDecodeError) as error:
        raise RuntimeError(f"{module.__name__} has no source to compare with: {error}; repair the library") from error


def mismatch(call: LibraryCall, declares: Declared) -> str:
    """Why a function that ``declares`` this cannot be called so, or nothing."""
    known, wanted = declares
    unknown = sorted(call.passed.difference(known))
    missing = [one for one in wanted if one not in call.passed]
    if not unknown and not missing:
        return ""
    return (
        f"the installed version takes ({', '.join(known)}); unknown there: {unknown or 'none'}, "
        f"not given: {missing or 'none'}"
    )


def declared(source: str, name: str) -> Declared | None:
    """What the function or ``Class.method`` declares in ``source``; ``None`` where it is not."""
    body: list[ast.stmt] = ast.parse(source).body
    *owners, last = name.split(".")
    for owner in owners:
        body = next((list(node.body) for node in body if isinstance(node, ast.ClassDef) and node.name == owner), [])
    found = next((node for node in body if isinstance(node, ast.FunctionDef) and node.name == last), None)
    if found is None:
        return None
    plain = [one.arg for one in (*found.args.posonlyargs, *found.args.args)]
    wanted = plain[: len(plain) - len(found.args.defaults)]
    if owners:
        plain, wanted = plain[1:], wanted[1:]
    named = [one.arg for one in found.args.kwonlyargs]
    wanted += [one for one, default in zip(named, found.args.kw_defaults, strict=True) if default is None]
    return plain + named, wanted
