"""The jinja2 environment for chat templates: no access to the interpreter, bounded work, bounded text.

Templates come from model files, and from requests where the operator allows it. The sandbox of jinja2 keeps them from
Python's internals; the meter here keeps a hostile one from running on or filling the memory. Imported by the first
rendering, because jinja2 is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sized
from contextvars import ContextVar
from datetime import datetime
from functools import lru_cache, wraps
from typing import Any, NoReturn

from jinja2 import Template, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_STEPS = 1_000_000
MAX_CHARACTERS = 1 << 25
MAX_ITEMS = 1 << 20
_MAX_WIDTH = 99_999
_MAX_INDENT = 64
_MAX_BITS = 4096
_CHARACTERS_PER_STEP = 256
_STEPS_PER_CALL = 10
_WIDENING = frozenset(
    ("center", "ljust", "rjust", "zfill", "expandtabs", "to_bytes", "indent", "batch", "slice", "wordwrap")
)

_steps_left: ContextVar[int] = ContextVar("steps_left", default=MAX_STEPS)


def _spend(steps: int) -> None:
    left = _steps_left.get() - steps
    _steps_left.set(left)
    if left < 0:
        raise SecurityError(f"the template does more than {MAX_STEPS} steps")


def _fits(size: int, limit: int = MAX_CHARACTERS) -> None:
    if size > limit:
        raise SecurityError(f"the template builds a text or list of {size} elements; at most {limit}")


def _measured(value: Any) -> Any:
    if isinstance(value, str | bytes | list | tuple):
        _fits(len(value), _limit(value))
        _spend(len(value) // _CHARACTERS_PER_STEP)
    return value


def _limit(value: object) -> int:
    return MAX_CHARACTERS if isinstance(value, str | bytes) else MAX_ITEMS


def _metered(items: Iterable[Any]) -> Iterable[Any]:
    if isinstance(items, Sized):
        _spend(len(items))
        return items
    return _counted(items)


def _counted(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        _spend(1)
        yield item


def _check(name: str, values: tuple[Any, ...]) -> None:
    """Refuses, before it runs, a call of a string method or filter whose result would be too large."""
    texts = [value for value in values if isinstance(value, str | bytes)]
    numbers = [abs(value) for value in values if type(value) is int]
    if name in _WIDENING:
        _fits(max(map(len, texts[:1]), default=1) * max([*numbers, *map(len, texts[1:])], default=1))
    elif name == "replace" and len(texts) >= 3:
        _fits((len(texts[0]) // max(len(texts[1]), 1) + 1) * len(texts[2]))
    elif name == "join":
        items = next((value for value in values if isinstance(value, list | tuple)), ())
        _fits(sum(len(item) for item in items if isinstance(item, str)) + len(items) * max(map(len, texts), default=0))
    elif name in ("format", "format_map") and texts:
        dynamic = "*" in str(texts[0]) or re.search(r"\{[^}]*\{", str(texts[0]))
        if re.search(r"\d{6}", str(texts[0])) or (dynamic and max(numbers, default=0) > _MAX_WIDTH):
            raise SecurityError(f"the format {texts[0]!r:.60} asks for a field wider than {_MAX_WIDTH}")


def _bounded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        _check(name, (*args, *kwargs.values()))
        return _measured(function(*args, **kwargs))

    return call


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if (len(indent) if isinstance(indent, str) else indent or 0) > _MAX_INDENT:
        raise SecurityError(f"tojson is asked to indent by more than {_MAX_INDENT}")
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return str(_measured(text))


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


class _Generator(CodeGenerator):
    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        metered = nodes.EnvironmentAttribute("metered", lineno=node.lineno)
        node.iter = nodes.Call(metered, [node.iter], [], None, None, lineno=node.lineno)
        super().visit_For(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.measured(")
        super().visit_Concat(node, frame)
        self.write(")")


class _Generation(Extension):
    """``{% generation %}`` marks the model's own words for training; rendering ignores it."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Names(Namespace):
    """``namespace()`` without underscore names, which would reach Python's internals."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise SecurityError(f"a template may not set the attribute {name!r}")
        super().__setitem__(name, value)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Compiles templates with the functions that model authors expect: ``raise_exception``, ``strftime_now``,
    ``tojson`` without HTML escapes, ``break`` and ``continue``."""

    code_generator_class = _Generator
    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        self.filters = {name: _bounded(name, function) for name, function in self.filters.items()}
        self.filters["tojson"] = _tojson
        for name in ("lipsum", "cycler"):
            self.globals.pop(name)
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": lambda form: datetime.now().strftime(form),
            "namespace": _Names,
            "dict": lambda *args, **kwargs: dict(*args, **kwargs),
        }

    metered = staticmethod(_metered)
    measured = staticmethod(_measured)

    def concat(self, parts: Iterable[str]) -> str:
        held = list(parts)
        _fits(sum(map(len, held)))
        return str(_measured("".join(held)))

    def call(__self, __context: Context, __callee: Any, *args: Any, **kwargs: Any) -> Any:
        _spend(_STEPS_PER_CALL)
        if isinstance(__callee, LoopContext):
            args = (_metered(args[0]), *args[1:])
        method = getattr(__callee, "__wrapped__", __callee)
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str | bytes | int):
            _check(method.__name__, (owner, *args, *kwargs.values()))
        return _measured(super().call(__context, __callee, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        sized = [value for value in (left, right) if isinstance(value, str | bytes | list | tuple)]
        counts = [value for value in (left, right) if isinstance(value, int)]
        if operator == "%" and sized and sized[0] is left:
            _check("format", (left, *(right if isinstance(right, tuple) else (right,))))
        elif operator == "*" and sized and counts:
            _fits(len(sized[0]) * counts[0], _limit(sized[0]))
        elif len(counts) == 2 and operator in ("*", "**"):
            bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
            if bits > _MAX_BITS:
                raise SecurityError(f"the template computes a number of {bits} bits; at most {_MAX_BITS}")
        return _measured(super().call_binop(context, operator, left, right))


@lru_cache(maxsize=16)
def _compiled(source: str) -> Template:
    return _environment().from_string(source)


@lru_cache(maxsize=1)
def _environment() -> TemplateEnvironment:
    return TemplateEnvironment()


def check_source(source: str) -> None:
    """Raises ``TemplateSyntaxError`` for what is no template, ``TemplateError`` for one that cannot be compiled."""
    try:
        _compiled(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise TemplateError(f"{type(error).__name__}: {error}") from error


def render_bounded(source: str, variables: dict[str, Any]) -> str:
    """Renders a template. Raises what jinja2 and the template's own code raise, ``SecurityError`` past the bounds."""
    token = _steps_left.set(MAX_STEPS)
    try:
        return _compiled(source).render(variables)
    finally:
        _steps_left.reset(token)
