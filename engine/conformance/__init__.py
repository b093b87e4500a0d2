"""The kit that certifies a platform plugin, ours and a stranger's alike: seven chapters of checks."""

from __future__ import annotations

from collections.abc import Sequence

from engine.conformance.check import CHAPTERS, Check, Outcome

__all__ = ["CHAPTERS", "Check", "Outcome", "checks"]


def checks(name: str, chapters: Sequence[str] = CHAPTERS) -> tuple[Check, ...]:
    """Every check of the platform ``name`` (an installed one, or ``module:attribute``), in the order of the chapters.
    Raises ``PlatformError`` where the plugin cannot be found or loaded, ``UserError`` for an unknown chapter; whatever
    it does wrong later is an outcome of a check."""
    from engine.conformance.subject import find
    from engine.errors import UserError

    if unknown := [chapter for chapter in chapters if chapter not in CHAPTERS]:
        raise UserError(f"there is no chapter {unknown[0]!r} of the kit; there are {', '.join(CHAPTERS)}")
    return find(name).checks(tuple(chapters))
