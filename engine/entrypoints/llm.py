"""``from engine.entrypoints.llm import LLM``, as users know it."""

from engine.llm import LLM

__all__ = ["LLM"]
