"""Every call that rows make of FlashInfer, against the sources of the installed package. Nothing of it is imported:
that needs a device and all that it depends on."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import re
from contextlib import suppress
from pathlib import Path

import pytest

from kernels_cuda.calls import BELOW, CALLS, MINIMUM
from kernels_cuda.manifest import KERNELS

ROOT = Path(__file__).parents[2]
INSTALL = "install it without what it depends on: make install, or pip install --no-deps flashinfer-python==0.7.4"


def sources() -> Path:
    """The installed package's folder. It is there or the test fails: nothing else shows that signatures fit."""
    found = importlib.util.find_spec("flashinfer")
    if found is None or not found.submodule_search_locations:
        pytest.fail(f"flashinfer-python is not installed, so no signature can be compared; {INSTALL}")
    return Path(found.submodule_search_locations[0])


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


def file_of(module: str) -> Path:
    path = sources().parent.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def statements(body: list[ast.stmt]):
    """Those of a module or class, branches and attempts included."""
    for row in body:
        yield row
        for field in ("body", "orelse", "finalbody"):
            if not isinstance(row, ast.FunctionDef | ast.ClassDef):
                yield from statements(getattr(row, field, []))


def exported(rows: list[ast.stmt], name: str) -> bool:
    """Whether ``import *`` gives the name: one without an underscore, unless the module lists what it does."""
    lists = [row.value for row in rows if isinstance(row, ast.Assign) and ast.unparse(row.targets[0]) == "__all__"]
    return name in ast.literal_eval(lists[-1]) if lists else not name.startswith("_")


def definition(module: str, name: str, star: bool = False) -> ast.FunctionDef | ast.ClassDef:
    """Of a name of a module, through the modules that it comes from."""
    file = file_of(module)
    rows = list(statements(ast.parse(file.read_text(encoding="utf-8")).body))
    if star and not exported(rows, name):
        raise LookupError(f"{module} exports no {name}")
    found = [row for row in rows if isinstance(row, ast.FunctionDef | ast.ClassDef) and row.name == name]
    if found:
        return found[-1]
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for row in rows:
        for alias in row.names if isinstance(row, ast.ImportFrom) else ():
            if (alias.asname or alias.name) in (name, "*"):
                parts = package.split(".")
                base = parts[: len(parts) + 1 - row.level] if row.level else []
                place = ".".join([*base, *filter(None, [row.module])])
                if alias.name != "*":
                    return definition(place, alias.name)
                with suppress(LookupError):
                    return definition(place, name, star=True)
    raise LookupError(f"{module} has no {name}")


def signature(target: str) -> ast.arguments:
    module, _, path = target.partition(":")
    found = definition(module, path.partition(".")[0])
    if isinstance(found, ast.ClassDef):
        method = path.partition(".")[2] or "__init__"
        found = [row for row in found.body if isinstance(row, ast.FunctionDef) and row.name == method][-1]
    return found.args


def test_the_installed_version_is_one_that_rows_accept():
    sources()
    assert numbers(MINIMUM) <= numbers(importlib.metadata.version("flashinfer-python")) < numbers(BELOW)


@pytest.mark.parametrize("target", CALLS)
def test_what_a_row_gives_is_what_the_library_takes(target):
    taken = signature(target)
    positional = [row.arg for row in taken.args if row.arg not in ("self", "cls")]
    names = [*positional, *(row.arg for row in taken.kwonlyargs)]
    needed = positional[: len(positional) - len(taken.defaults)]
    needed += [row.arg for row, default in zip(taken.kwonlyargs, taken.kw_defaults, strict=True) if default is None]
    assert not taken.posonlyargs
    assert set(CALLS[target]) <= set(names), f"{target}: unknown {set(CALLS[target]) - set(names)}"
    assert set(needed) <= set(CALLS[target]), f"{target}: not given {set(needed) - set(CALLS[target])}"


def test_a_name_that_is_not_there_is_told():
    with pytest.raises(LookupError, match="no rmsnorm_of_tomorrow"):
        signature("flashinfer.norm:rmsnorm_of_tomorrow")


def test_rows_call_what_the_table_has_and_nothing_else():
    """Every target in the sources of the rows stands in the table, and the other way round."""
    texts = [file.read_text(encoding="utf-8") for file in (ROOT / "kernels_cuda").glob("*.py") if file.stem != "calls"]
    paged = "flashinfer.prefill:BatchPrefillWithPagedKVCacheWrapper"
    latent = "flashinfer.mla:BatchMLAPagedAttentionWrapper"
    texts = [text.replace("{PAGED}", paged).replace("{LATENT}", latent) for text in texts]
    assert set(re.findall(r'"(flashinfer[\w.]*:[\w.]+)"', "\n".join(texts))) == set(CALLS)
    assert not [text for text in texts if re.search(r"^\s*(import|from) flashinfer", text, re.MULTILINE)]


def test_the_versions_that_are_asked_for_are_those_that_were_compared():
    for name, wanted in (
        ("pyproject.toml", f"flashinfer-python>={MINIMUM},<{BELOW}"),
        ("Makefile", f"flashinfer-python=={MINIMUM}"),
    ):
        assert wanted in (ROOT / name).read_text(encoding="utf-8"), f"{name} does not ask for {wanted}"
    assert [row for row in KERNELS if row.name.startswith("flashinfer")]
