"""Grammars by the llguidance library."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper, regex_to_lark
from llguidance.gbnf_to_lark import GbnfToLarkError, any_to_lark

from engine.grammar.contract import MAX_BLANKS, GrammarError
from engine.grammar.schema import prepared
from engine.grammar.vocabulary import Vocabulary
from engine.json_kind import json_kind
from engine.structured_outputs import StructuredOutputsParams

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions
    from numpy import int32
    from numpy.typing import NDArray

_BLANKS = rf"[\x20\x0A\x0D\x09]{{1,{MAX_BLANKS}}}"
_ESCAPES = '"\\bfnrt'  # by \u a name could be written that is not taken for that of a property
_MAX_LEXER_STATES = 50_000  # some 2 kB each
_MAX_MESSAGE = 400
_NOTHING = "NoExtensionBias"  # the library's word for a form that no text has
_ONE_OF = "oneOf constraints are not supported"
_PLAIN_JSON = StructuredOutputsParams(json_object=True)
_ANY = r"/(.|\n)*/"
_DIRECTIVE = re.compile(r"%(?:json|llguidance|lark)\b")


class GuidanceCompiler:
    """A ``Compiler``. Making one takes some 0.2 s for 50 000 tokens."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        tokenizer = _Greedy(vocabulary)
        size = len(tokenizer.tokens)
        self.words = (size + 31) // 32
        self._tokenizer = LLTokenizer(TokenizerWrapper(tokenizer), n_vocab=size, eos_token=tokenizer.ends)
        tokenizer.library = self._tokenizer
        self._special = {vocabulary.tokens[token].decode(errors="replace"): token for token in vocabulary.special}
        self._limits = LLParserLimits(max_lexer_states=_MAX_LEXER_STATES, verbose_errors=False)

    def compile(self, params: StructuredOutputsParams) -> GuidanceGrammar:
        if params.whitespace_pattern is not None:
            self._check_blanks(params.whitespace_pattern)
        try:
            grammar = GuidanceGrammar(self._matcher(_source(params) + self._rules(params)))
        except GrammarError:
            for name, schema in (params.schemas or {}).items():
                self._check_part(name, schema)
            raise
        grammar.warm(self._tokenizer.eos_tokens)
        return grammar

    def _rules(self, params: StructuredOutputsParams) -> str:
        """What ``params`` adds to its grammar."""
        lines = [f"{name}: %json {_with_options(schema)}" for name, schema in (params.schemas or {}).items()]
        for name, text in (params.markers or {}).items():
            lines += _marker_rules(name, text, self._special.get(text))
        return "".join(f"\n{line}" for line in lines)

    def _check_part(self, name: str, schema: dict[str, Any]) -> None:
        """Raises ``GrammarError`` for a schema that cannot be compiled alone."""
        try:
            self._matcher(_json_source(schema, _PLAIN_JSON))
        except GrammarError as error:
            raise GrammarError(str(error), name) from None

    def _matcher(self, source: str) -> LLMatcher:
        matcher = LLMatcher(self._tokenizer, source, log_level=0, limits=self._limits)
        _check(matcher)
        return matcher

    def _check_blanks(self, pattern: str) -> None:
        """Refuse what matches more than a few blanks: the library must find nothing that does."""
        blanks = _lark_regex(pattern)
        self._matcher(f"start: {blanks}")
        wide = f"start: WIDE\nWIDE: {blanks} & ~/[ \\t\\r\\n]{{0,{MAX_BLANKS}}}/"
        matcher = LLMatcher(self._tokenizer, wide, log_level=0, limits=self._limits)
        matcher.compute_bitmask()
        if not matcher.get_error().startswith(_NOTHING):
            raise GrammarError(
                f"whitespace_pattern matches more than blanks, or more than {MAX_BLANKS} of them; bound its repetitions"
            )


class GuidanceGrammar:
    """A ``Grammar``."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    @property
    def ended(self) -> bool:
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def accept(self, tokens: list[int]) -> None:
        if not self._matcher.consume_tokens(tokens):
            _check(self._matcher)

    def rollback(self, count: int) -> None:
        self._matcher.rollback(count)
        _check(self._matcher)

    def fill(self, row: NDArray[int32]) -> None:
        self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        _check(self._matcher)

    def copy(self) -> GuidanceGrammar:
        return GuidanceGrammar(self._matcher.deep_copy())

    def warm(self, ends: list[int]) -> None:
        """Find out what may come first, and after some of it. Raises ``GrammarError`` for nothing, or too much."""
        first = int.from_bytes(self._matcher.compute_bitmask(), "little")
        _check(self._matcher)
        for token in ends:
            first &= ~(1 << token)
        if not first:
            raise GrammarError("only the empty text has this form")
        for token in {first.bit_length() - 1, (first & -first).bit_length() - 1} - {-1}:
            ahead = self._matcher.deep_copy()
            ahead.consume_token(token)
            ahead.compute_bitmask()
            _check(ahead)


class _Greedy:
    """The vocabulary as the library reads it. A text that the form forces is cut into its longest tokens."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens, self.special_token_ids = list(vocabulary.tokens), vocabulary.special
        self.ends = list(vocabulary.ends)
        if not self.ends:  # the library needs one; nobody can draw it
            self.ends = [len(self.tokens)]
            self.tokens.append(b"")
        self.special_token_ids = sorted({*vocabulary.special, *self.ends})
        self.eos_token_id, self.bos_token_id = self.ends[0], None
        self.library: LLTokenizer | None = None

    def __call__(self, text: bytes) -> list[int]:
        return [] if self.library is None else self.library.greedy_tokenize(text.decode())


def _source(params: StructuredOutputsParams) -> str:
    match params.form:
        case "json":
            return _json_source(_read(params.json), params)
        case "json_object":
            return _json_source({"type": "object"}, params)
        case "regex":
            return f"start: {_lark_regex(params.regex or '')}"
        case "choice":
            return "start: CHOICE\nCHOICE: " + " | ".join(json.dumps(choice) for choice in params.choice or ())
        case _:
            return _lark(params.grammar or "")


def _json_source(schema: dict[str, Any], params: StructuredOutputsParams) -> str:
    blanks = None if params.disable_any_whitespace else params.whitespace_pattern or _BLANKS
    options: JsonCompileOptions = {
        "whitespace_flexible": blanks is not None,
        "whitespace_pattern": blanks,
        "lenient": False,
        "json_allowed_escapes": _ESCAPES,
    }
    try:
        return LLMatcher.grammar_from_json_schema(prepared(schema), overrides=options)
    except ValueError as error:
        raise GrammarError(str(error)[:_MAX_MESSAGE]) from None


def _marker_rules(name: str, text: str, token: int | None) -> list[str]:
    """``name`` is the marker, ``to_name`` any text up to and with it, ``NO_NAME`` any text without it. ``token``: of a
    marker that is a special one."""
    inside, capital = re.escape(text).replace("/", r"\/"), name.upper()
    without = f"NO_{capital}: {_ANY} & ~/(.|\\n)*{inside}(.|\\n)*/"
    if token is not None:
        return [without, f"{name}: <[{token}]>", f"to_{name}: NO_{capital} <[{token}]>"]
    mark = json.dumps(text)
    return [without, f"{name}: {mark}", f"to_{name}[lazy]: ANY_{capital} {mark}", f"ANY_{capital}: {_ANY}"]


def _with_options(schema: dict[str, Any]) -> str:
    """A schema as a part of a grammar."""
    source: dict[str, Any] = json.loads(_json_source(schema, _PLAIN_JSON))
    return json.dumps(source["grammars"][0]["json_schema"])


def _read(schema: str | dict[str, Any] | None) -> dict[str, Any]:
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise GrammarError(f"the schema is not JSON: {error}") from None
    if not isinstance(schema, dict):
        raise GrammarError(f"a schema must be an object, not {json_kind(schema)}")
    return schema


def _lark(text: str) -> str:
    found = _DIRECTIVE.search(text)
    if found:
        raise GrammarError(f"{found[0]} is not supported in a grammar; a JSON schema goes into json")
    if "::=" not in text:
        return text
    try:
        return any_to_lark(text)
    except (GbnfToLarkError, ValueError) as error:
        raise GrammarError(str(error)[:_MAX_MESSAGE]) from None


def _lark_regex(pattern: str) -> str:
    r"""``\d`` and ``\w`` are ASCII, as in JSON schemas."""
    return f"/{regex_to_lark(pattern, 'dw')}/"


def _check(matcher: LLMatcher) -> None:
    if matcher.is_error():
        message = matcher.get_error().partition("\n<")[0].strip()
        if _ONE_OF in message:
            message = "oneOf is only taken where its alternatives are seen to exclude each other; use anyOf"
        raise GrammarError("no text has this form" if message == _NOTHING else message[:_MAX_MESSAGE])
