"""The tokenizer that a benchmark counts with."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from engine.errors import UserError

if TYPE_CHECKING:
    from engine.tokenizer import Tokenizer


def tokenizer_of(name: str | None) -> Tokenizer:
    """Of a model by its path or name; ``None``: of the built-in one. Raises ``UserError``."""
    from engine.tokenizer import load_tokenizer
    from engine.weights.checkpoint import find_gguf
    from engine.weights.resolve import resolve_model

    path = resolve_model(name, weights=False).path
    return load_tokenizer(find_gguf(path, weights=False) or path)


def tokenizer_for_server(asked: str | None, root: object, model: str) -> tuple[Tokenizer, str]:
    """(tokenizer, where it is from): what was ``asked`` for, else the files that the server names and that are here,
    else the model of that name. Raises ``UserError`` saying to name one."""
    if asked is not None:
        return tokenizer_of(asked), asked
    name = root if isinstance(root, str) and os.path.exists(root) else model
    try:
        return tokenizer_of(name), name
    except UserError as error:
        raise UserError(f"the tokenizer of {model} is not here ({error}); name one: --tokenizer NAME") from error
