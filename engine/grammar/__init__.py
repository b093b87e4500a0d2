"""Answers held to a form: a schema, a regular expression, a grammar, a list of choices."""

from engine.grammar.contract import Compiler, Grammar, GrammarError
from engine.grammar.vocabulary import Vocabulary, vocabulary_of

__all__ = ["Compiler", "Grammar", "GrammarError", "Vocabulary", "vocabulary_of"]
