"""The chat template that a user asked for."""

from __future__ import annotations

import os
from pathlib import Path

from engine.errors import UserError


def read_template(given: str | None) -> str | None:
    """The text of ``--chat-template``: a file's, or the value itself if it is a template. Raises ``UserError``, also
    for a text that does not compile."""
    if given is None:
        return None
    if os.path.isfile(given):
        try:
            text = Path(given).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"--chat-template {given}: cannot be read: {error}") from error
        _check(text, f"--chat-template {given}")
        return text
    if "{" in given or "\n" in given:
        _check(given, "--chat-template")
        return given
    raise UserError(f"--chat-template {given}: there is no such file, and it is no template (it has no '{{')")


def _check(text: str, name: str) -> None:
    from jinja2.exceptions import TemplateError, TemplateSyntaxError

    from engine.tokenizer.sandbox import check_source

    try:
        check_source(text)
    except TemplateSyntaxError as error:
        raise UserError(f"{name}: line {error.lineno}: {error.message}; correct the template") from error
    except TemplateError as error:
        raise UserError(f"{name}: the template cannot be compiled: {error}") from error
