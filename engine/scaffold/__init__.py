"""The starting files of a platform plugin, as ``engine platforms new`` writes them. Standard library only.

They are templates of ``string.Template`` in ``files/``; what they make passes the conformance kit on any machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from string import Template

from engine.errors import UserError

FILES: Mapping[str, str] = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "$package/__init__.py": "package.py",
    "$package/plugin.py": "plugin.py",
    "$package/kernels.py": "kernels.py",
    "$package/runtime.py": "runtime.py",
    "tests/test_conformance.py": "test_conformance.py",
}
"""Path in the new folder → template, whose file also ends in ``.in``."""

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_LONGEST = 40
_RESERVED = ("auto",)
_SHOWN = 3


def variables(name: str) -> dict[str, str]:
    """What the templates know of a plugin called ``name``."""
    return {
        "name": name,
        "package": f"{name}_platform",
        "distribution": f"engine-{name.replace('_', '-')}-platform",
        "title": "".join(part.capitalize() for part in name.split("_")),
        "variable": f"{name.upper()}_DEVICE",
    }


def write_plugin(name: str, folder: Path) -> tuple[Path, ...]:
    """Write every file into ``folder``, which is made or is empty; gives their paths. Raises ``UserError`` for a name
    that cannot be one or is taken, and for a folder that holds something or cannot be written."""
    asked = f"engine platforms new {name} {folder}"
    _check_name(asked, name)
    words = variables(name)
    templates = Path(__file__).with_name("files")
    try:
        if folder.is_dir() and (there := sorted(path.name for path in folder.iterdir())):
            more = ", …" if len(there) > _SHOWN else ""
            raise UserError(
                f"{asked}: {folder} is not empty ({', '.join(there[:_SHOWN])}{more}); "
                "give a folder that is empty or not there yet"
            )
        written = []
        for place, template in FILES.items():
            file = folder / Template(place).substitute(words)
            file.parent.mkdir(parents=True, exist_ok=True)
            text = (templates / f"{template}.in").read_text(encoding="utf-8")
            file.write_text(Template(text).substitute(words), encoding="utf-8")
            written.append(file)
    except OSError as error:
        raise UserError(f"{asked}: {folder} cannot be written: {error}; give another folder") from error
    return tuple(written)


def _check_name(asked: str, name: str) -> None:
    from platforms.discovery import installed

    if not _NAME.fullmatch(name) or len(name) > _LONGEST or name in _RESERVED:
        found = f"{name} has a meaning of its own" if name in _RESERVED else f"found {name!r}"
        raise UserError(
            f"{asked}: a platform's name is a lower-case letter followed by lower-case letters, digits or _, at most "
            f"{_LONGEST} in all, {found}; for example my_chip"
        )
    for point in installed():
        if point.name == name:
            raise UserError(f"{asked}: a platform {name} is installed already ({point.value}); pick another name")
    if find_spec(variables(name)["package"]) is not None:
        raise UserError(f"{asked}: a package {variables(name)['package']} is installed already; pick another name")
