"""Tokenizers, chat templates and streaming text, without transformers."""

from engine.tokenizer.detokenizer import Detokenizer
from engine.tokenizer.loading import load_tokenizer
from engine.tokenizer.tokenizer import Tokenizer

__all__ = ["Detokenizer", "Tokenizer", "load_tokenizer"]
