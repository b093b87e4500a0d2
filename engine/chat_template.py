"""The chat template that a user asked for."""

from __future__ import annotations

import os
from pathlib import Path

from engine.errors import UserError


def read_template(given: str | None) -> str | None:
    """The text of ``--chat-template``: a file's, or the value itself if it is a template. Raises ``UserError``."""
    if given is None:
        return None
    if os.path.isfile(given):
        try:
            return Path(given).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"--chat-template {given}: cannot be read: {error}") from error
    if "{" in given or "\n" in given:
        return given
    raise UserError(f"--chat-template {given}: there is no such file, and it is no template (it has no '{{')")
