"""How a written value becomes a typed one. Standard library only.

A parser takes text (command line, environment) or the value that a file or a Python caller gave, and raises
``ValueError`` whose message says what is wanted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from engine import compat

Parse = Callable[[Any], Any]
TRUE, FALSE = frozenset({"true", "yes", "on", "1"}), frozenset({"false", "no", "off", "0"})
NESTING = 16
"""Values inside values; no setting needs more than three."""
TOO_DEEP = f"is nested too deeply, more than {NESTING} levels"
LONGEST_WRITTEN = 200
"""Characters of a value in a message."""
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKmMgGtT]?)")
_JSON_SIZE = re.compile(r'"(?:\\.|[^"\\])*"|(?<![\w.])\d+(?:\.\d+)?[kKmMgGtT]\b')


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of value. ``metavar``: how help writes it, empty for a switch. ``merge``: what a second source does —
    ``replace``; ``extend`` (a list, where ``+=`` appends); ``update`` (a mapping, entry by entry). ``collect``: giving
    the flag again adds to the list. ``guards``: an empty environment variable is a mistake, not an unset one."""

    metavar: str
    parse: Parse
    merge: Literal["replace", "extend", "update"] = "replace"
    collect: bool = False
    guards: bool = False

    @property
    def switch(self) -> bool:
        return not self.metavar


def boolean(raw: Any) -> bool:
    word = str(raw).strip().lower()
    if word not in TRUE | FALSE:
        raise ValueError("wants true or false")
    return word in TRUE


def text(raw: Any) -> str:
    if not isinstance(raw, str):
        raise ValueError(f"wants text, found {type(raw).__name__}; quote the value")
    if not raw.strip():
        raise ValueError("wants text that is not empty")
    return raw


def integer(low: int, high: int | None = None) -> Parse:
    wanted = f"wants a whole number from {low}" + (f" to {high}" if high is not None else " on")

    def parse(raw: Any) -> int:
        if isinstance(raw, bool) or not re.fullmatch(r"[+-]?\d+", str(raw).strip()):
            raise ValueError(wanted)
        value = int(raw)
        if value < low or (high is not None and value > high):
            raise ValueError(wanted)
        return value

    return parse


def size(low: int = 1, words: Mapping[str, Any] | None = None) -> Parse:
    """A count that may end in k, m, g, t (powers of 1000) or K, M, G, T (powers of 1024). ``words``: other values."""
    known = dict(words or {})
    wanted = f"wants a whole number from {low} on, or one like 8k (8000) or 8K (8192)"
    wanted += "".join(f", or {word}" for word in dict.fromkeys(known.values()))

    def parse(raw: Any) -> Any:
        if str(raw).strip().lower() in known:
            return known[str(raw).strip().lower()]
        found = None if isinstance(raw, bool) else _SIZE.fullmatch(str(raw).strip())
        if not found:
            raise ValueError(wanted)
        number, unit = found.groups()
        factor = (1000 if unit.islower() else 1024) ** (" kmgt".index(unit.lower()) if unit else 0)
        whole, _, part = number.partition(".")
        scaled, rest = divmod(int(whole + part) * factor, 10 ** len(part))
        if rest or scaled < low:
            raise ValueError(wanted)
        return scaled

    return parse


def share(raw: Any) -> float:
    """A part of a whole, in (0, 1]."""
    try:
        value = float(raw)
    except (TypeError, ValueError):
        value = 0.0
    if isinstance(raw, bool) or not 0 < value <= 1:
        raise ValueError("wants a number above 0 and at most 1")
    return value


def mebibytes(raw: Any) -> float:
    try:
        value = float(raw)
    except (TypeError, ValueError):
        value = 0.0
    if isinstance(raw, bool) or not 0 < value < float("inf"):
        raise ValueError("wants a number of MiB above 0")
    return value


def seconds(low: float) -> Parse:
    def parse(raw: Any) -> float:
        try:
            value = float(raw)
        except (TypeError, ValueError):
            value = -1.0
        if isinstance(raw, bool) or not low <= value < float("inf"):
            raise ValueError(f"wants seconds, at least {low:g}")
        return value

    return parse


def number(low: float, high: float = float("inf"), above: bool = False) -> Parse:
    """A number from ``low``, or ``above`` it, up to ``high``."""
    wanted = f"wants a number {'above' if above else 'from'} {low:g}"
    wanted += f" up to {high:g}" if high < float("inf") else ""

    def parse(raw: Any) -> float:
        try:
            value = float(raw)
        except (TypeError, ValueError):
            value = float("nan")
        if not (low < value if above else low <= value) or value > high:
            raise ValueError(wanted)
        return value

    return parse


def choice(*names: str, also: Mapping[str, str] | None = None, numbers: tuple[str, ...] = ()) -> Parse:
    """One of ``names`` in any case; ``also``: other spellings of them; ``numbers``: a position stands for a name."""
    known = {_plain(name): name for name in names} | {_plain(name): value for name, value in (also or {}).items()}
    wanted = f"wants one of {', '.join(names)}"

    def parse(raw: Any) -> str:
        if not isinstance(raw, bool):
            word = str(raw).strip()
            if word.isdecimal() and int(word) < len(numbers):
                return numbers[int(word)]
            if _plain(word) in known:
                return known[_plain(word)]
        raise ValueError(wanted)

    return parse


def listing(item: Parse, check: Callable[[tuple[Any, ...]], tuple[Any, ...]] = lambda items: items) -> Parse:
    """A list, ``a,b``, or JSON text. ``check`` sees all items and returns them."""

    def parse(raw: Any) -> tuple[Any, ...]:
        if isinstance(raw, str):
            raw = parse_json(raw) if raw.lstrip().startswith("[") else [part for part in raw.split(",") if part.strip()]
        items = raw if isinstance(raw, list | tuple) else [raw]
        return check(tuple(item(part.strip() if isinstance(part, str) else part) for part in items))

    return parse


def pairs(raw: Any) -> dict[str, str]:
    """``op=name``, several with commas, or a mapping."""
    if isinstance(raw, str):
        raw = parse_json(raw) if raw.lstrip().startswith(("{", "[")) else raw.split(",")
    if isinstance(raw, list | tuple):
        if not all(isinstance(part, str) and "=" in part for part in raw):
            raise ValueError("wants OP=NAME")
        parts = [tuple(word.strip() for word in part.split("=", 1)) for part in raw]
        raw = dict(parts)
        for op, name in parts:
            if raw[op] != name:
                raise ValueError(f"has both {op}={name} and {op}={raw[op]}; keep one")
    if not isinstance(raw, Mapping) or not all(isinstance(part, str) and part for pair in raw.items() for part in pair):
        raise ValueError("wants OP=NAME")
    return {op.strip(): name.strip() for op, name in raw.items()}


def pooler(raw: Any) -> dict[str, Any]:
    """``pooling_type`` and ``normalize``, of which either may be missing."""
    if isinstance(raw, str):
        raw = parse_json(raw)
    if not isinstance(raw, Mapping):
        raise ValueError('wants a JSON object, as in {"pooling_type": "MEAN"}')
    found: dict[str, Any] = {}
    for name, value in raw.items():
        if name in compat.POOLER and value is not None:
            key = compat.POOLER[name]
            found[key] = boolean(value) if key == "normalize" else choice("last", "mean", "cls")(value)
        elif value is not None:
            raise ValueError(f"has {name}; it takes pooling_type and normalize")
    return found


def drafting(raw: Any) -> str:
    """How tokens are guessed."""
    method = text(raw).strip().lower().replace("-", "_")
    if method in compat.DRAFTING:
        raise ValueError("is not built; ngram is, which drafts from the request's own tokens")
    return choice("ngram")(method)


def parse_json(raw: str) -> Any:
    """JSON in which a bare number may carry a unit, as in ``{"max_capture_size": 1K}``."""
    quoted = _JSON_SIZE.sub(lambda found: found[0] if found[0].startswith('"') else f'"{found[0]}"', raw)
    try:
        value = json.loads(quoted, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error.msg} at character {error.pos + 1}") from error
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error
    level = [value]
    for _ in range(NESTING + 1):
        level = [
            inner
            for one in level
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
    if level:
        raise ValueError(TOO_DEEP)
    return value


def _object(entries: list[tuple[str, Any]]) -> dict[str, Any]:
    seen: dict[str, str] = {}
    for name, _ in entries:
        plain = name.replace("-", "_")
        if plain in seen:
            raise ValueError(twice(seen[plain], name))
        seen[plain] = name
    return dict(entries)


def twice(first: str, second: str) -> str:
    """The message about two entries of one mapping whose names are equal, ``-`` being ``_``."""
    if first == second:
        return f"{first} stands there twice; keep one"
    return f"{first} and {second} are the same setting; keep one"


def written_value(value: Any) -> str:
    """A value as messages repeat it: how a command line takes it, lists as ``a,b``, mappings as ``a=b``, cut where it
    is long."""
    if isinstance(value, bool):
        return str(value).lower()
    items: list[Any] = [value]
    if isinstance(value, Mapping) and value:
        items = [f"{name}={entry}" for name, entry in value.items()]
    elif isinstance(value, list | tuple) and value:
        items = list(value)
    text = ",".join(map(str, items))
    return text if len(text) <= LONGEST_WRITTEN else f"{text[:LONGEST_WRITTEN]}…"


def operations(items: tuple[str, ...]) -> tuple[str, ...]:
    """The grammar of ``custom_ops``: ``all`` or ``none``, then ``+op`` and ``-op``, of which one may be several ops."""
    said: dict[str, str] = {}
    for item in items:
        if item in ("all", "none"):
            continue
        if not re.fullmatch(r"[+-]\w+", item):
            raise ValueError(f"wants all, none, +op or -op, found {item!r}")
        for op in compat.OPERATIONS.get(item[1:], (item[1:],)):
            before = said.setdefault(op, item)
            if before[0] != item[0]:
                raise ValueError(f"has both {before} and {item}; keep one")
    if "all" in items and "none" in items:
        raise ValueError("has both all and none; keep one")
    return tuple(dict.fromkeys(items))


def once(items: tuple[Any, ...]) -> tuple[Any, ...]:
    """Without repetition, in order."""
    return tuple(dict.fromkeys(items))


def splits(items: tuple[str, ...]) -> tuple[str, ...]:
    """Ops between pieces, under our names."""
    return once(tuple(op for item in items for op in compat.SPLITS.get(item, (item,))))


def some(items: tuple[Any, ...]) -> tuple[Any, ...]:
    """At least one item."""
    if not items:
        raise ValueError("wants text that is not empty")
    return items


def ascending(items: tuple[int, ...]) -> tuple[int, ...]:
    """At least one size; sorted, without repetition."""
    if not items:
        raise ValueError("wants at least one size; to capture no graph use -cc.graph_mode=NONE")
    return tuple(sorted(set(items)))


def _plain(word: str) -> str:
    return word.upper().replace("-", "_")
