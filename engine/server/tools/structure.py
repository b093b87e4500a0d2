"""The form of answers that call tools."""

from __future__ import annotations

import json
from typing import Any

from engine.errors import RequestError
from engine.grammar.contract import GrammarError
from engine.grammar.schema import prepared
from engine.server.structure import Structure
from engine.server.tools.choice import Function, ToolUse
from engine.structured_outputs import MAX_CHARACTERS, StructuredOutputsParams

CONTENT = "content"
_COMBINING = frozenset({"$ref", "anyOf", "allOf", "oneOf"})


def with_tools(use: ToolUse, content: Structure | None, most: int = MAX_CHARACTERS) -> Structure | None:
    """The form of the whole answer, where ``content`` is that of one without calls; ``None`` for any text. A call that
    must come, or is of a strict function, has arguments by its schema; others have any object. ``most``: bytes of the
    form as JSON. Raises ``RequestError`` for a schema that cannot be held to, naming it, and for a form that cannot
    stand beside calls."""
    parser = use.parser
    if parser is None or (content is None and not use.needed and not any(tool.strict for tool in use.functions)):
        return content
    schemas = {
        f"schema_{place}": _arguments(tool) if use.needed or tool.strict else {"type": "object"}
        for place, tool in enumerate(use.functions)
    }
    parts = {f"schema_{place}": f"{tool.where}.parameters" for place, tool in enumerate(use.functions)}
    otherwise, rules = None, ""
    if not use.needed:
        otherwise = "text" if content is None else CONTENT
        if content is not None:
            rules = _content(content, schemas)
            parts[CONTENT] = content.where
    grammar = parser.grammar([tool.name for tool in use.functions], use.several, otherwise)
    params = StructuredOutputsParams(grammar=grammar + rules, schemas=schemas, markers=dict(parser.markers))
    try:
        return Structure(params.validate(most), "tools", parts)
    except RequestError as error:
        raise RequestError(f"tools: {error.message}", "tools") from None


def _arguments(tool: Function) -> dict[str, Any]:
    where, schema = f"{tool.where}.parameters", dict(tool.parameters or {"properties": {}})
    if not schema.keys() & _COMBINING:
        schema.setdefault("type", "object")
    if schema.get("type", "object") != "object":
        raise RequestError(f"{where}.type must be object; arguments are one.", where)
    try:
        prepared(schema)
    except GrammarError as error:
        raise RequestError(f"{where}: {error}", where) from None
    return schema


def _content(content: Structure, schemas: dict[str, dict[str, Any]]) -> str:
    """The rule of answers without calls, if it is not among ``schemas``."""
    params = content.params
    if params.disable_any_whitespace or params.whitespace_pattern or params.form in ("regex", "grammar"):
        raise RequestError(
            f"{content.where} cannot stand beside tools that may be called; a schema can, and so can choices. Or let "
            'tool_choice be "none" or "required".',
            content.where,
        )
    if params.form == "choice":
        return f"\n{CONTENT}: " + " | ".join(json.dumps(choice) for choice in params.choice or ())
    schema = {"type": "object"} if params.form == "json_object" else params.json
    try:
        schema = json.loads(schema) if isinstance(schema, str) else schema
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{content.where}: the schema is not JSON: {error}", content.where) from None
    if not isinstance(schema, dict):
        raise RequestError(f"{content.where}: a schema must be an object", content.where)
    schemas[CONTENT] = schema
    return ""
