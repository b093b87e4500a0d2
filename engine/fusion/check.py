"""Whether rules fit together: those of the catalog, and those that a platform brings beside them."""

from __future__ import annotations

from collections.abc import Iterable

from engine.fusion.catalog import LEVEL_OF
from engine.fusion.fused import fused_op
from engine.levels import LEVELS
from engine.ops import OPS
from platforms.contract import FusionRule

_NUMBERS = (None, *(level.number for level in LEVELS))


def check_rules(rules: Iterable[FusionRule]) -> None:
    """Raises ``ValueError`` naming the first rule that cannot be one. A name is one switch: a level that turned on some
    of its rules and not the others could not be written out as flags."""
    made: set[str] = set(OPS)
    levels = dict(LEVEL_OF)
    for rule in rules:
        problem = _malformed(rule)
        if not problem and rule.op in made:
            problem = f"its op {rule.op} exists already"
        if not problem and levels.setdefault(rule.name, rule.level) != rule.level:
            problem = f"level {rule.level}, but {levels[rule.name]} under the same name; one name is one switch"
        if problem:
            raise ValueError(f"fusion rule {rule.name}: {problem}")
        made.add(rule.op)
        fused_op(rule)


def _malformed(rule: FusionRule) -> str:
    words = (rule.name, rule.op)
    if not all(isinstance(word, str) and word.isidentifier() for word in words):
        return "name and op must be words of letters, digits and _, as a flag takes them"
    for what, lines in (("pattern", rule.pattern), ("outputs", rule.outputs)):
        if not isinstance(lines, tuple) or not all(isinstance(line, str) for line in lines):
            return f"{what} must be a tuple of texts, found {lines!r}"
    if not isinstance(rule.cases, tuple) or not all(map(_is_case, rule.cases)):
        return f"cases must be tuples of (name, value) pairs, found {rule.cases!r}"
    if isinstance(rule.level, bool) or rule.level not in _NUMBERS:
        return f"level {rule.level!r}; the levels are {', '.join(map(str, _NUMBERS[1:]))}, or None"
    return ""


def _is_case(case: object) -> bool:
    """Pairs of a name and a value, a number for a size; of what a cache can be asked for."""
    try:
        hash(case)
    except TypeError:
        return False
    pairs = case if isinstance(case, tuple) else ("",)
    return all(isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs)
