"""Which keywords a JSON schema may have. Each is enforced, or says nothing about the answer; any other is refused."""

from __future__ import annotations

from typing import Any

from engine.grammar.contract import GrammarError

MAX_DEPTH = 100

SCHEMAS_BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions"})
LISTS_OF_SCHEMAS = frozenset({"anyOf", "allOf", "oneOf", "prefixItems"})
SCHEMAS = frozenset({"additionalProperties", "additionalItems", "items"})
VALUES = frozenset(
    {"type", "enum", "const", "$ref", "required", "minProperties", "maxProperties", "minItems", "maxItems",
     "minLength", "maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
     "multipleOf"}
)  # fmt: skip
NOTES = frozenset(
    {"title", "description", "default", "example", "examples", "$comment", "$schema", "$id", "deprecated", "readOnly",
     "writeOnly", "discriminator"}
)  # fmt: skip


def check_keywords(schema: Any, path: str = "$", depth: int = 0) -> None:
    """Raises ``GrammarError`` naming the first keyword that is not supported, and where it stands."""
    if depth > MAX_DEPTH:
        raise GrammarError(f"the schema is nested more than {MAX_DEPTH} levels deep")
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise GrammarError(f"a schema must be an object; at {path} there is {type(schema).__name__}")
    for keyword, value in schema.items():
        here = f"{path}.{keyword}"[:200]
        if keyword in SCHEMAS_BY_NAME and isinstance(value, dict):
            for name, inner in value.items():
                check_keywords(inner, f"{here}.{name}"[:200], depth + 1)
        elif keyword in LISTS_OF_SCHEMAS | SCHEMAS and isinstance(value, list):
            for place, inner in enumerate(value):
                check_keywords(inner, f"{here}[{place}]", depth + 1)
        elif keyword in SCHEMAS:
            check_keywords(value, here, depth + 1)
        elif keyword not in SCHEMAS_BY_NAME | LISTS_OF_SCHEMAS | VALUES | NOTES:
            raise GrammarError(f"unsupported keyword {keyword[:100]!r} at {path}; leave it out, or check it afterwards")
