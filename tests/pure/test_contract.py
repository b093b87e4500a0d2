"""The contract does not change by accident.

After a change on purpose (and, if a member changed, a raised ``API_VERSION``): ``python tests/pure/test_contract.py``
writes the golden file again.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests/golden/contract.json"
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

import platforms.contract as contract  # noqa: E402

MOST_LINES, MOST_MEMBERS, MOST_MANDATORY = 500, 20, 10
PLAIN = (int, str, float, bool, type(None), tuple, list, dict)


def default(value: Any) -> str:
    return repr(value) if isinstance(value, PLAIN) else f"<{type(value).__name__}>"


def signature(function: Any) -> str:
    parts = []
    found = inspect.signature(function)
    for parameter in found.parameters.values():
        star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        said = "" if parameter.annotation is parameter.empty else f": {parameter.annotation}"
        given = "" if parameter.default is parameter.empty else f" = {default(parameter.default)}"
        parts.append(f"{star}{parameter.name}{said}{given}")
    result = "" if found.return_annotation is found.empty else f" -> {found.return_annotation}"
    return f"({', '.join(parts)}){result}"


def members(cls: type) -> dict[str, str]:
    rows = {}
    abstract = getattr(cls, "__abstractmethods__", frozenset())
    for name, kind in inspect.get_annotations(cls).items():
        given = (
            f" = {default(vars(cls)[name])}" if name in vars(cls) and not hasattr(vars(cls)[name], "__get__") else ""
        )
        rows[name] = f"{kind}{given}"
    if dataclasses.is_dataclass(cls):
        rows |= {
            field.name: f"{field.type}"
            + ("" if field.default is dataclasses.MISSING else f" = {default(field.default)}")
            + ("" if field.default_factory is dataclasses.MISSING else f" = {field.default_factory.__name__}()")
            for field in dataclasses.fields(cls)
        }
    for name, member in vars(cls).items():
        must = "abstract " if name in abstract else ""
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            rows[name] = f"{must}property{signature(member.fget)}"
        elif isinstance(member, classmethod):
            rows[name] = f"classmethod{signature(member.__func__)}"
        elif inspect.isfunction(member):
            rows[name] = f"{must}{signature(member)}"
    return dict(sorted(rows.items()))


def surface() -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for name in sorted(contract.__all__):
        value = getattr(contract, name)
        if isinstance(value, ModuleType):
            continue
        if inspect.isclass(value):
            rows[name] = {"bases": [base.__name__ for base in value.__bases__], "members": members(value)}
        elif inspect.isfunction(value):
            rows[name] = signature(value)
        else:
            rows[name] = repr(value) if isinstance(value, PLAIN) else str(value)
    return rows


def test_signatures_are_frozen():
    assert surface() == json.loads(GOLDEN.read_text()), "on purpose? python tests/pure/test_contract.py"


def test_a_changed_member_is_noticed():
    class Changed(contract.PlatformPlugin):
        def probe(self, again: bool = False) -> contract.Probe: ...

    assert members(Changed)["probe"] != members(contract.PlatformPlugin)["probe"]


PROFILE = {
    "platform": "toy",
    "arch": "toy_1",
    "family": "toys",
    "product": "Toy",
    "memory_bytes": 1,
    "origin": "probed",
    "features": ["dtype.float32"],
    "limits": {"threads": 2},
    "libraries": {"torch": "2.13.0"},
    "evidence": {"arch": "a label"},
}


def test_a_profile_survives_json():
    assert contract.DeviceProfile.from_json(PROFILE).to_json() == PROFILE


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("arch", 90),
        ("memory_bytes", "80 GB"),
        ("origin", "guessed"),
        ("features", "dtype.float32"),
        ("features", 3),
        ("features", [1]),
        ("limits", {"threads": "2"}),
        ("limits", [1]),
        ("libraries", {"torch": None}),
        ("evidence", "none"),
        ("extra", 1),
    ],
)
def test_a_profile_with_a_mistyped_field_names_it(field, value):
    with pytest.raises(ValueError, match=field):
        contract.DeviceProfile.from_json({**PROFILE, field: value})
    missing = {name: PROFILE[name] for name in PROFILE if name != "family"}
    with pytest.raises(ValueError, match="family"):
        contract.DeviceProfile.from_json(missing)


def test_it_stays_small():
    files = sorted((ROOT / "platforms/contract").glob("*.py"))
    assert sum(len(file.read_text().splitlines()) for file in files) <= MOST_LINES
    plugin, runtime = (surface()[name]["members"] for name in ("PlatformPlugin", "Runtime"))
    found = [*plugin, *runtime]
    assert len(found) <= MOST_MEMBERS, f"design section 3 allows {MOST_MEMBERS} members, found {len(found)}: {found}"
    mandatory = [name for rows in (plugin, runtime) for name, said in rows.items() if said.startswith("abstract")]
    assert len(mandatory) <= MOST_MANDATORY


def test_every_member_says_what_it_is_for():
    for cls in (contract.PlatformPlugin, contract.Runtime):
        for name, member in vars(cls).items():
            if not name.startswith("_") and callable(getattr(member, "fget", member)):
                assert inspect.getdoc(getattr(member, "fget", member)), f"{cls.__name__}.{name}"


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(surface(), indent=1, sort_keys=True) + "\n")
    print(f"wrote {GOLDEN}")
