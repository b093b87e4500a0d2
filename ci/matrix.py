"""The rows of ``matrix.toml``. Standard library only."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ci.tiers import TIERS
from engine.errors import UserError

ROOT = Path(__file__).parents[1]
MATRIX = ROOT / "ci" / "matrix.toml"
TIER_NAMES = tuple(tier.name for tier in TIERS)

_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_EXTRA = re.compile(r"[a-z0-9-]+")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:/_-]*:(?!latest\b)[A-Za-z0-9_][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class Row:
    """One hardware. ``target``: as in ``engine explain --platform P:T``. ``labels``: those of the runner. ``image`` and
    ``container``: the container image and the options it is started with. ``extras``: of the package. ``tiers``: what
    runs there. ``products``: the device's name holds one of them as words, if any is given. ``archs``: others that this
    hardware may report beside the target's own. ``timeout``: minutes that all tiers together may take, 0 for no end."""

    name: str
    platform: str
    target: str
    labels: tuple[str, ...]
    image: str
    tiers: tuple[str, ...]
    container: str = ""
    extras: tuple[str, ...] = ()
    products: tuple[str, ...] = ()
    archs: tuple[str, ...] = ()
    timeout: int = 0

    def to_json(self) -> dict[str, Any]:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


_LISTS = ("labels", "tiers", "extras", "products", "archs")
_FIELDS = tuple(Row.__slots__)
_REQUIRED = ("name", "platform", "target", "labels", "image", "tiers")


def read_matrix(path: Path = MATRIX) -> tuple[Row, ...]:
    """Every row, in the order of the file. Raises ``UserError`` naming the file, the row and the field."""
    try:
        body = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    _known(str(path), body, ("defaults", "row"))
    defaults, given = body.get("defaults", {}), body.get("row", [])
    if not _tables(given) or not given:
        raise UserError(f"{path}: row must be one or more [[row]] tables, found {given!r}")
    if not isinstance(defaults, Mapping) or not _tables(list(defaults.values())):
        raise UserError(f"{path}: defaults must be [defaults.PLATFORM] tables, found {defaults!r}")
    for platform, fields in defaults.items():
        _known(f"{path}, defaults.{platform}", fields, [name for name in _FIELDS if name not in ("name", "platform")])
    rows = tuple(_row(str(path), number, fields, defaults) for number, fields in enumerate(given, 1))
    names = [row.name for row in rows]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"{path}: more than one row is named {twice[0]}; give each its own name")
    return rows


def find_row(rows: Sequence[Row], name: str) -> Row:
    """Raises ``UserError`` with the nearest names."""
    for row in rows:
        if row.name == name:
            return row
    names = [row.name for row in rows]
    near = get_close_matches(name.lower(), names, n=3, cutoff=0.4)
    advice = f"the nearest are {', '.join(near)}" if near else f"there are {', '.join(names)}"
    raise UserError(f"no row is named {name}; {advice}")


def _tables(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, Mapping) for value in values)


def _known(where: str, fields: Mapping[str, Any], names: Sequence[str]) -> None:
    for field in fields:
        if field not in names:
            near = get_close_matches(field, names, n=1)
            advice = f"did you mean {near[0]}?" if near else f"fields: {', '.join(names)}"
            raise UserError(f"{where}: unknown field {field}; {advice}")


def _row(path: str, number: int, fields: Mapping[str, Any], defaults: Mapping[str, Any]) -> Row:
    where = f"{path}, row {fields.get('name', number)}"
    _known(where, fields, _FIELDS)
    platform = fields.get("platform", "")
    merged = {**(defaults.get(platform, {}) if isinstance(platform, str) else {}), **fields}
    if missing := [name for name in _REQUIRED if name not in merged]:
        raise UserError(f"{where}: missing {', '.join(missing)}")
    for name, value in merged.items():
        _checked(where, name, value)
    values: dict[str, Any] = {name: tuple(value) if name in _LISTS else value for name, value in merged.items()}
    row = Row(**values)
    if not _NAME.fullmatch(row.name):
        raise UserError(f"{where}: name = {row.name!r}; use lower case letters, digits, - and _, a letter first")
    if not _IMAGE.fullmatch(row.image):
        raise UserError(f"{where}: image = {row.image!r}; give NAME:TAG with a tag that stays, so not latest")
    if wrong := [extra for extra in row.extras if not _EXTRA.fullmatch(extra)]:
        raise UserError(f"{where}: extras holds {wrong[0]!r}; give names of pyproject.toml's optional dependencies")
    if not row.tiers or list(row.tiers) != [name for name in TIER_NAMES if name in row.tiers]:
        raise UserError(f"{where}: tiers = {list(row.tiers)}; give some of {', '.join(TIER_NAMES)}, in this order")
    if not row.labels:
        raise UserError(f"{where}: labels is empty; give the labels of the runner")
    return row


def _checked(where: str, name: str, value: Any) -> None:
    if name == "timeout":
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise UserError(f"{where}: timeout = {value!r}; give whole minutes, 0 for no end")
    elif name in _LISTS:
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            raise UserError(f"{where}: {name} = {value!r}; give a list of texts")
    elif not isinstance(value, str) or (name in _REQUIRED and not value):
        raise UserError(f"{where}: {name} = {value!r}; give a text")
