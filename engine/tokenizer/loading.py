"""Tokenizers out of files: a GGUF file, or a folder with tokenizer.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import UserError
from engine.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    import tokenizers


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of ``path``: a .gguf file, or a folder with tokenizer.json. Raises ``UserError`` naming the file
    and what in it is missing, damaged or not supported."""
    path = Path(path)
    if path.is_dir():
        return _from_folder(path)
    return _from_gguf(path)


def _from_gguf(path: Path) -> Tokenizer:
    from engine.tokenizer.gguf_bpe import build_bpe, pre_tokenizer_of
    from engine.tokenizer.gguf_sentencepiece import build_sentencepiece
    from engine.tokenizer.gguf_vocabulary import read_vocabulary
    from engine.weights.gguf_file import open_gguf

    with open_gguf(path) as file:
        vocabulary = read_vocabulary(file.metadata, str(path))
    if vocabulary.kind == "gpt2":
        backend, add_bos = build_bpe(vocabulary), pre_tokenizer_of(vocabulary).add_bos
    elif vocabulary.kind == "llama":
        backend, add_bos = build_sentencepiece(vocabulary), True
    else:
        raise UserError(
            f"{path}: 'tokenizer.ggml.model' is {vocabulary.kind!r}; this engine builds 'gpt2' (byte-level BPE) and "
            "'llama' (SentencePiece BPE). Use the model's own folder with its tokenizer.json instead."
        )
    if vocabulary.add_bos is not None:
        add_bos = vocabulary.add_bos
    return Tokenizer(
        backend,
        source=str(path),
        vocab_size=len(vocabulary.tokens),
        bos_id=vocabulary.bos_id,
        eos_ids=vocabulary.eos_ids,
        prefix=[vocabulary.bos_id] if add_bos and vocabulary.bos_id is not None else [],
        suffix=[vocabulary.eos_id] if vocabulary.add_eos and vocabulary.eos_id is not None else [],
        templates=vocabulary.templates,
        names=vocabulary.names,
    )


def _from_folder(folder: Path) -> Tokenizer:
    import tokenizers

    from engine.weights.json_file import refuse_pointer

    file = folder / "tokenizer.json"
    if not file.is_file():
        found = ", ".join(sorted(entry.name for entry in folder.glob("*token*"))) or "no tokenizer file"
        raise UserError(
            f"{folder}: tokenizer.json is needed, found {found}; save the tokenizer in the 'fast' format, or serve a "
            ".gguf file"
        )
    with file.open("rb") as raw:
        refuse_pointer(raw.read(64), str(file))
    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing more specific
        raise UserError(f"{file}: not a tokenizer this engine can read: {error}") from error
    backend.no_truncation()
    backend.no_padding()
    config = _read_json(folder / "tokenizer_config.json")
    names = _special_names(_read_json(folder / "special_tokens_map.json")) | _special_names(config)
    ids = {name: backend.token_to_id(text) for name, text in names.items()}
    size = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    ends = [*_end_ids(folder, size), ids.get("eos_token")]
    prefix, suffix = _around(backend)
    return Tokenizer(
        backend,
        source=str(folder),
        vocab_size=size,
        bos_id=ids.get("bos_token"),
        eos_ids=frozenset(i for i in ends if i is not None),
        prefix=prefix,
        suffix=suffix,
        templates=_templates(folder, config),
        names=names,
    )


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        value = json.loads(_read_text(file))
    except ValueError as error:
        raise UserError(f"{file}: not readable as JSON: {error}; fetch the file again") from error
    if not isinstance(value, dict):
        raise UserError(f"{file}: a JSON object is expected, found {type(value).__name__}")
    return value


def _read_text(file: Path) -> str:
    """Without the mark that some editors write in front of UTF-8."""
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: cannot be read as UTF-8: {error}; save it as UTF-8") from error


def _special_names(config: Mapping[str, Any]) -> dict[str, str]:
    """``bos_token`` and the like, given as text or as an object with ``content``."""
    found = {}
    for name, value in config.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            found[name] = text
    return found


def _end_ids(folder: Path, size: int) -> frozenset[int]:
    """``eos_token_id`` of generation_config.json, or of config.json where the former says nothing. An id outside the
    vocabulary of ``size`` tokens, often -1, is how some checkpoints say that there is none."""
    for name in ("generation_config.json", "config.json"):
        value = _read_json(folder / name).get("eos_token_id")
        ids = value if isinstance(value, list) else [value]
        if not all(i is None or (isinstance(i, int) and not isinstance(i, bool)) for i in ids):
            raise UserError(f"{folder / name}: 'eos_token_id' is {value!r}; a token id or a list of them is expected")
        if any(i is not None for i in ids):
            return frozenset(i for i in ids if i is not None and 0 <= i < size)
    return frozenset()


def _around(backend: tokenizers.Tokenizer) -> tuple[list[int], list[int]]:
    """Ids that the post-processor puts before and after a text."""
    if backend.post_processor is None:
        return [], []
    before: list[int] = []
    after: list[int] = []
    for row in _flat(json.loads(backend.post_processor.__getstate__())):
        if row["type"] == "TemplateProcessing":
            into = before
            for part in row["single"]:
                if "SpecialToken" in part:
                    into.extend(row["special_tokens"][part["SpecialToken"]["id"]]["ids"])
                else:
                    into = after
        elif row["type"] in ("BertProcessing", "RobertaProcessing"):
            before.append(row["cls"][1])
            after.append(row["sep"][1])
    return before, after


def _flat(row: dict[str, Any]) -> list[dict[str, Any]]:
    if row["type"] == "Sequence":
        return [inner for part in row["processors"] for inner in _flat(part)]
    return [row]


def _templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """By name. Files of their own win over tokenizer_config.json, as for the tools that write them."""
    found: dict[str, str] = {}
    for given in (_read_json(folder / "chat_template.json").get("chat_template"), config.get("chat_template")):
        if isinstance(given, str):
            found["default"] = given
        elif isinstance(given, list):
            rows = [(row.get("name"), row.get("template")) for row in given if isinstance(row, dict)]
            found |= {name: text for name, text in rows if isinstance(name, str) and isinstance(text, str)}
    files = {"default": folder / "chat_template.jinja"}
    files |= {file.stem: file for file in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    return found | {name: _read_text(file) for name, file in files.items() if file.is_file()}
