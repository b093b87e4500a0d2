"""The files a plugin is made of, and the words in them."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from platforms.contract import Kernel


def packages(source: str, rows: Iterable[Kernel]) -> tuple[str, ...]:
    """The package of the descriptor, and those of the targets of its rows."""
    module = source.partition(":")[0]
    own = module.rpartition(".")[0] or module
    return tuple(dict.fromkeys((own, *(row.target.partition(":")[0].partition(".")[0] for row in rows))))


def files(names: Iterable[str]) -> Iterator[Path]:
    """Their Python files, tests aside. Raises ``ModuleNotFoundError``."""
    for name in names:
        spec = find_spec(name)
        if spec is None:
            raise ModuleNotFoundError(f"the plugin names the package {name}, which is not there")
        for folder in spec.submodule_search_locations or ():
            found = (file for file in sorted(Path(folder).rglob("*.py")) if "__pycache__" not in file.parts)
            yield from (file for file in found if not file.name.startswith(("test_", "conftest")))
        if not spec.submodule_search_locations and spec.origin:
            yield Path(spec.origin)


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), str(file))


def imported(file: Path) -> set[str]:
    """Modules that a file imports anywhere, relative ones aside."""
    found: set[str] = set()
    for node in ast.walk(_tree(file)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return found


def words(found: Iterable[Path]) -> set[str]:
    """The first word of every string."""
    constants = (node.value for file in found for node in ast.walk(_tree(file)) if isinstance(node, ast.Constant))
    return {value.split()[0] for value in constants if isinstance(value, str) and value.split()}


def foreign(modules: Iterable[str], own: Iterable[str]) -> list[str]:
    """Those that are neither the standard library's, the contract's nor the plugin's own."""
    tops = {name.partition(".")[0] for name in own}
    return [
        name
        for name in modules
        if name.partition(".")[0] not in sys.stdlib_module_names | tops
        and name != "platforms"
        and not f"{name}.".startswith("platforms.contract.")
    ]
