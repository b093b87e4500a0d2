"""How the vectors of a model are made: what its folder says, or a user. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import RequestError, UserError

MODES = {
    "pooling_mode_lasttoken": "last",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
}
MODULES, FOLDER, FILE = "modules.json", "1_Pooling", "config.json"
"""Of a sentence-transformers folder."""


@dataclass(frozen=True, slots=True)
class Pooling:
    """``type``: last, mean or cls. ``normalize``: to length 1. ``origin``: who says so. ``refusal``: why no vectors can
    be made, or nothing."""

    type: str = "last"
    normalize: bool = True
    origin: str = "default"
    refusal: str = ""

    def check(self) -> None:
        """Raises ``RequestError`` where the model's vectors cannot be made."""
        if self.refusal:
            raise RequestError(f"this model's embeddings cannot be made: {self.refusal}", "model")


def read_pooling(path: Path, asked: Mapping[str, Any] | None) -> Pooling:
    """Of the model at ``path``, a folder or a file. ``asked``: value of ``--pooler-config``, which wins field by field.
    Raises ``UserError`` for files that cannot be read."""
    found = _of_folder(path) if path.is_dir() else Pooling()
    if not asked:
        return found
    kind = asked.get("pooling_type", found.type)
    refusal = "" if "pooling_type" in asked else found.refusal
    return Pooling(kind, asked.get("normalize", found.normalize), "--pooler-config", refusal)


def _of_folder(folder: Path) -> Pooling:
    modules = _json(folder / MODULES)
    rows = modules if isinstance(modules, list) else []
    kinds = [(str(row.get("type", "")).rpartition(".")[2], str(row.get("path", ""))) for row in rows]
    place = next((path for kind, path in kinds if kind == "Pooling"), FOLDER)
    config = _json(folder / place / FILE)
    if not isinstance(config, dict):
        return Pooling()
    origin = f"{place}/{FILE}"
    modes = [name for name, value in config.items() if name.startswith("pooling_mode_") and value is True]
    known = [MODES[name] for name in modes if name in MODES]
    others = [kind for kind, _ in kinds if kind not in ("Transformer", "Pooling", "Normalize")]
    if others:
        refusal = f"{MODULES} has the module {others[0]}, which is not built"
    elif len(modes) != 1 or not known:
        refusal = f"{origin} asks for {', '.join(modes) or 'nothing'}; last, mean and cls are built, one at a time"
    else:
        refusal = ""
    # Without a list of modules nobody says that vectors are not normalised.
    return Pooling(known[0] if known else "last", not rows or "Normalize" in dict(kinds), origin, refusal)


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {error}; correct it, or remove it") from error
