"""Settings in a YAML file: any spelling of a name, nested or dotted; ``null`` is no value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine import compat
from engine.config.assignments import Assignments
from engine.config.names import SHORT, field_named, plain
from engine.config.values import NESTING, TOO_DEEP, boolean, twice
from engine.errors import UserError

MOST_VALUES = 10_000


def read_file(path: str) -> Assignments:
    """Raises ``UserError`` naming the file, and the line or the key that is wrong."""
    if not path.endswith((".yaml", ".yml")):
        raise UserError(f"--config {path}: wants a file that ends in .yaml or .yml")
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--config {path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    values = Assignments("file", f"{path}: ")
    for key, value in _load(text, path).items():
        name = plain(key)
        head, dot, rest = name.partition(".")
        if name in SHORT:
            values.assign(SHORT[name], value, key)
        elif head in compat.SHORT_SECTIONS:
            values.assign_path(f"{compat.SHORT_SECTIONS[head]}{dot}{rest}", value, key)
        elif name.startswith("no_") and (field := field_named(name[3:])) and field.kind.switch and value is not None:
            try:
                values.assign(field, not boolean(value), key)
            except ValueError as error:
                raise UserError(f"{path}: {key} {value}: {error}") from error
        else:
            values.assign_path(key, value, key)
    return values


def _load(text: str, path: str) -> dict[str, Any]:
    import yaml

    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        _check(node, path, yaml)
        loaded = loader.construct_document(node) if node is not None else None
    except RecursionError as error:
        raise UserError(f"{path}: {TOO_DEEP}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        raise UserError(f"{path}: {where}is not YAML: {getattr(error, 'problem', None) or error}") from error
    except ValueError as error:  # a date or a number that looks like one and is none
        raise UserError(f"{path}: holds a value that cannot be read: {error}; quote it") from error
    finally:
        loader.dispose()
    if not isinstance(loaded, dict | None):
        raise UserError(f"{path}: wants settings as `name: value`, found {type(loaded).__name__}")
    return loaded or {}


def _check(root: Any, path: str, yaml: Any) -> None:
    """YAML lets a key stand twice, of which all readers keep the last; lets a value contain itself, or others so often
    that writing it out would never end; and a name must be text. ``-`` and ``_`` are equal in names."""
    queue: list[tuple[Any, tuple[Any, ...]]] = [(root, ())] if root is not None else []
    for _ in range(MOST_VALUES):
        if not queue:
            return
        node, around = queue.pop()
        line = node.start_mark.line + 1
        if node in around:
            raise UserError(f"{path}: line {line}: the value refers to itself; write it out")
        if len(around) > NESTING:
            raise UserError(f"{path}: line {line}: {TOO_DEEP}")
        if isinstance(node, yaml.MappingNode):
            _check_names(node, path, yaml)
            queue += [(value, (*around, node)) for _, value in reversed(node.value)]
        elif isinstance(node, yaml.SequenceNode):
            queue += [(value, (*around, node)) for value in reversed(node.value)]
    if queue:
        raise UserError(f"{path}: holds more than {MOST_VALUES} values, aliases written out; use fewer")


def _check_names(node: Any, path: str, yaml: Any) -> None:
    seen: dict[str, str] = {}
    for key, _ in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
            raise UserError(f"{path}: line {line}: the name of a setting must be text")
        name = key.value.replace("-", "_")
        if name in seen:
            raise UserError(f"{path}: line {line}: {twice(seen[name], key.value)}")
        seen[name] = key.value
