"""Figures of every form on every device, in a file that people review; and what of it is out of date."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import triton

from kernels_triton.build import Unit
from kernels_triton.evidence import problems
from kernels_triton.resources import Resources

FILE = Path(__file__).with_name("budget.json")


@dataclass(slots=True)
class Budget:
    """``triton``: the version that compiled. ``sources``: kernel → hash of its code and that of its helpers.
    ``forms``: a form's name → arch → its figures."""

    triton: str = triton.__version__
    sources: dict[str, str] = field(default_factory=dict)
    forms: dict[str, dict[str, Mapping[str, Any]]] = field(default_factory=dict)

    def changed(self, unit: Unit) -> str:
        """Why the unit must be compiled again, or nothing."""
        if self.triton != triton.__version__:
            return f"the budget is of Triton {self.triton}, here is {triton.__version__}"
        if self.sources.get(unit.form.kernel) != source_hash(unit.form.kernel):
            return f"the code of {unit.form.kernel} is not that of the budget"
        if unit.arch not in self.forms.get(unit.name, {}):
            return f"the budget has no form {unit.name} for {unit.arch}"
        return ""

    def problems(self, unit: Unit) -> tuple[str, ...]:
        """What is wrong with the figures of a unit that has not ``changed``."""
        figures = self.forms[unit.name][unit.arch]
        found = Resources(**{**figures, "matrix": tuple(figures["matrix"])})
        return problems(unit.form, found, unit.arch, unit.shared_memory)


def read(file: Path = FILE) -> Budget:
    """An empty one where there is none."""
    if not file.exists():
        return Budget()
    found = json.loads(file.read_text())
    return Budget(found["triton"], found["sources"], found["forms"])


def write(budget: Budget, file: Path = FILE) -> None:
    """Sorted, a line per form and arch, so that a change is read where it is."""
    lines = ["{", f'"triton": {json.dumps(budget.triton)},', '"sources": {']
    lines += _entries({name: json.dumps(text) for name, text in sorted(budget.sources.items())}, "  ")
    lines += ["},", '"forms": {']
    forms = {}
    for name, archs in sorted(budget.forms.items()):
        figures = _entries({arch: json.dumps(dict(row)) for arch, row in sorted(archs.items())}, "    ")
        forms[name] = "\n".join(["{", *figures, "  }"])
    lines += [*_entries(forms, "  "), "}", "}"]
    file.write_text("\n".join(lines) + "\n")


def _entries(texts: Mapping[str, str], indent: str) -> list[str]:
    last = len(texts) - 1
    return [
        f"{indent}{json.dumps(name)}: {text}{',' if at < last else ''}" for at, (name, text) in enumerate(texts.items())
    ]


def made_of(before: Budget, units: Iterable[Unit], made: Mapping[Unit, Mapping[str, Any]]) -> Budget:
    """The budget of ``units``: figures of those in ``made``, of the rest as ``before`` where they still hold; others
    are left out."""
    found = Budget()
    for unit in units:
        if unit in made:
            figures = made[unit]["figures"]
        elif before.changed(unit):
            continue
        else:
            figures = before.forms[unit.name][unit.arch]
        found.sources[unit.form.kernel] = source_hash(unit.form.kernel)
        found.forms.setdefault(unit.name, {})[unit.arch] = figures
    return found


@cache
def source_hash(kernel: str) -> str:
    """Of the code of ``"module:name"`` and of every kernel helper and constant it names; comments, docstrings and
    places in files do not count."""
    module, name = kernel.split(":")
    texts: dict[str, str] = {}
    _collect(getattr(import_module(module), name), texts)
    return hashlib.sha256("\n".join(f"{name}\n{texts[name]}" for name in sorted(texts)).encode()).hexdigest()[:12]


def _collect(kernel: Any, texts: dict[str, str]) -> None:
    function: FunctionType = kernel.fn
    name = f"{function.__module__}:{function.__qualname__}"
    if name in texts:
        return
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    body = tree.body[0]
    assert isinstance(body, ast.FunctionDef)
    if ast.get_docstring(body) is not None:
        body.body = body.body[1:] or [ast.Pass()]
    texts[name] = ast.unparse(tree)
    names = function.__code__.co_names
    for found in _named(names, function.__globals__):
        if isinstance(getattr(found, "fn", None), FunctionType):
            _collect(found, texts)
        elif isinstance(found, triton.language.constexpr):
            texts[name] += f"\n{found.value!r}"


def _named(names: Iterable[str], scope: Mapping[str, Any]) -> Iterable[Any]:
    """Objects behind global names, those of our own modules one step further."""
    for name in names:
        found = scope.get(name)
        if isinstance(found, ModuleType) and found.__name__.startswith("kernels_"):
            yield from _named(names, vars(found))
        elif found is not None:
            yield found
