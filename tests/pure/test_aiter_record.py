"""What rows pass to AITER beside what a version of it declares: ``kernels_rocm/signatures.json`` is read off its
sources, since the library imports on no machine without its devices."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

import kernels_rocm
from kernels_rocm.calls import CALLS
from kernels_rocm.library import declared, mismatch
from platforms.rocm.targets import TARGETS
from tests.aiter_stand_ins import SOURCES

FOLDER = Path(str(kernels_rocm.__file__)).parent
RECORD = json.loads((FOLDER / "signatures.json").read_text())
FUNCTIONS = {
    path: (found["parameters"], [one for one in found["parameters"] if one not in found["defaults"]])
    for path, found in RECORD["functions"].items()
}


def test_the_record_says_where_it_is_from():
    assert {target.libraries["aiter"] for target in TARGETS.values() if "aiter" in target.libraries} == {
        RECORD["version"]
    }
    assert len(RECORD["commit"]) == 40 and RECORD["library"] == "amd-aiter"


def test_the_record_has_what_is_called_and_nothing_else():
    assert {str(call) for call in CALLS.values()} == set(FUNCTIONS)
    for found in RECORD["functions"].values():
        assert set(found["defaults"]) <= set(found["parameters"])
        assert len(set(found["parameters"])) == len(found["parameters"])


def test_every_call_has_a_release_that_it_was_compared_with():
    assert all(re.fullmatch(r"0\.1\.\d+(\.post\d+)?", call.since) for call in CALLS.values())


@pytest.mark.parametrize("name", CALLS)
def test_a_call_fits_what_is_declared_and_a_change_is_told(name):
    call = CALLS[name]
    known, wanted = FUNCTIONS[str(call)]
    assert mismatch(call, (known, wanted)) == ""
    for one in call.passed:
        renamed = [f"{one}_2" if other == one else other for other in known]
        assert f"unknown there: ['{one}']" in mismatch(call, (renamed, []))
    assert "not given: ['added']" in mismatch(call, ([*known, "added"], [*wanted, "added"]))
    for one in set(known) - call.passed:
        assert f"not given: ['{one}']" in mismatch(call, (known, [*wanted, one]))


def test_what_rows_pass_is_what_the_table_says():
    """Read off the rows: the name in the table and the keywords of each call."""
    passed: dict[str, set[frozenset[str]]] = {}
    for file in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "invoke":
                (name,) = node.args
                assert isinstance(name, ast.Constant), f"{file.name}:{node.lineno}"
                if all(one.arg for one in node.keywords):
                    given = frozenset(str(one.arg) for one in node.keywords)
                    passed.setdefault(str(name.value), set()).add(given)
    assert passed, "no row calls the library"
    for name, found in passed.items():
        assert found == {CALLS[name].passed}, name


@pytest.mark.parametrize("name", CALLS)
def test_the_stand_in_declares_what_the_library_does(name):
    """Otherwise tests of rows would prove nothing about the library."""
    call = CALLS[name]
    source = SOURCES[f"{call.module.removeprefix('aiter.').replace('.', '/')}.py"]
    assert declared(source, call.name) == FUNCTIONS[str(call)]
