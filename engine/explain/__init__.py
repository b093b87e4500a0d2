"""A plan in words: in full, in short, as flags, against another one, and as a page of all levels and targets."""

from engine.explain.text import Row, render, render_rows, summary

__all__ = ["Row", "render", "render_rows", "summary"]
