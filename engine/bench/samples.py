"""The requests of a benchmark, the same for the same seed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.bench import lengths
from engine.bench.kinds import RATIO
from engine.bench.texts import Texts
from engine.cli.options import Option
from engine.config import kinds as k
from engine.config.values import Kind, choice
from engine.errors import UserError

if TYPE_CHECKING:
    from engine.tokenizer import Tokenizer

DATASETS = ("random", "sharegpt", "custom")


@dataclass(frozen=True, slots=True)
class Sample:
    """``prompt_len``: tokens of the prompt by our own count; ``output_len``: tokens of the answer that are wanted."""

    prompt: str
    prompt_len: int
    output_len: int


OPTIONS = (
    Option("--dataset-name", Kind("NAME", choice(*DATASETS)), "random: words without meaning, of given lengths; "
           "sharegpt: lengths as in conversations, from --dataset-path if there is one; custom: prompts of "
           "--dataset-path", "random"),
    Option("--dataset-path", k.FILE, "of sharegpt: a JSON list of conversations; of custom: a line "
           '{"prompt": TEXT, "output_tokens": N} each', unset="no file"),
    Option("--num-prompts", k.COUNT, "requests in all", 1000),
    Option("--seed", k.SEED, "of everything that is drawn", 0),
    Option("--input-len", k.COUNT, "the same as --random-input-len", unset="that"),
    Option("--output-len", k.COUNT, "tokens of every answer, whatever the dataset says", unset="as the dataset says"),
    Option("--random-input-len", k.COUNT, "tokens of a prompt", 1024),
    Option("--random-output-len", k.COUNT, "tokens of an answer", 128),
    Option("--random-range-ratio", RATIO, "0.2: lengths between 0.8 and 1.2 of these", 0.0),
    Option("--random-prefix-len", k.LIMIT, "more tokens in front, the same in all prompts", 0),
    Option("--sharegpt-output-len", k.COUNT, "--output-len for this dataset", unset="as the dataset says"),
    Option("--custom-output-len", k.COUNT, "tokens of an answer where the file names none", 256),
    Option("--disable-shuffle", k.SWITCH, "take requests of a file in its order"),
    Option("--no-oversample", k.SWITCH, "where a file holds too few, ask fewer instead of asking again"),
)  # fmt: skip


def make_samples(asked: Any, tokenizer: Tokenizer) -> list[Sample]:
    """Raises ``UserError`` for a file that cannot be read or holds nothing that fits."""
    if asked.dataset_path is None and asked.dataset_name == "custom":
        raise UserError("--dataset-name custom needs --dataset-path FILE")
    if asked.dataset_path is not None and asked.dataset_name == "random":
        raise UserError("--dataset-path needs --dataset-name sharegpt or custom; random ones come from no file")
    texts = Texts(tokenizer, asked.seed)
    if asked.dataset_path is None:
        return list(_made(asked, texts))
    found = list(_shared(asked, texts) if asked.dataset_name == "sharegpt" else _custom(asked, texts))
    if not found:
        raise UserError(f"--dataset-path {asked.dataset_path}: holds no request that fits")
    if len(found) < asked.num_prompts and not asked.no_oversample:
        found += random.Random(asked.seed).choices(found, k=asked.num_prompts - len(found))
    return found


def _made(asked: Any, texts: Texts) -> Iterator[Sample]:
    if asked.dataset_name == "sharegpt":
        drawn = lengths.conversational(asked.num_prompts, asked.seed)
    else:
        sizes = asked.input_len or asked.random_input_len, asked.output_len or asked.random_output_len
        drawn = lengths.uniform(asked.num_prompts, *sizes, asked.random_range_ratio, asked.seed)
    prefix = texts.make(asked.random_prefix_len)
    fixed = asked.output_len or (asked.dataset_name == "sharegpt" and asked.sharegpt_output_len)
    for prompt, answer in drawn:
        text = texts.make(max(1, prompt - texts.special), prefix)
        yield Sample(text, texts.count(text), fixed or answer)


def _shared(asked: Any, texts: Texts) -> Iterator[Sample]:
    rows = _loaded(asked.dataset_path)
    if not isinstance(rows, list):
        raise UserError(f"--dataset-path {asked.dataset_path}: a JSON list of conversations is needed")
    if not asked.disable_shuffle:
        random.Random(asked.seed).shuffle(rows)
    fixed, count = asked.output_len or asked.sharegpt_output_len, 0
    for row in rows:
        turns = row.get("conversations") if isinstance(row, dict) else None
        if count == asked.num_prompts:
            return
        if not isinstance(turns, list) or len(turns) < 2:
            continue
        prompt, answer = (str(turn.get("value", "")) if isinstance(turn, dict) else "" for turn in turns[:2])
        sizes = texts.count(prompt), fixed or (texts.count(answer) if answer else 0)
        if lengths.is_usable(sizes[0], max(sizes[1], lengths.LEAST_TOKENS) if fixed else sizes[1]):
            count += 1
            yield Sample(prompt, *sizes)


def _custom(asked: Any, texts: Texts) -> Iterator[Sample]:
    rows = list(enumerate(_lines(asked.dataset_path), 1))
    if not asked.disable_shuffle:
        random.Random(asked.seed).shuffle(rows)
    for number, line in rows[: asked.num_prompts]:
        try:
            row = json.loads(line)
            prompt, answer = row["prompt"], row.get("output_tokens") or asked.custom_output_len
            if not isinstance(prompt, str) or not prompt or type(answer) is not int or answer < 1:
                raise ValueError("prompt must be text and output_tokens a number from 1 on")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            wanted = 'a line is {"prompt": TEXT, "output_tokens": N}'
            raise UserError(f"--dataset-path {asked.dataset_path}, line {number}: {wanted}; {error!r}") from error
        yield Sample(prompt, texts.count(prompt), asked.output_len or answer)


def _lines(path: str) -> list[str]:
    return [line for line in _read(path).splitlines() if line.strip()]


def _loaded(path: str) -> Any:
    try:
        return json.loads(_read(path))
    except ValueError as error:
        raise UserError(f"--dataset-path {path}: is not JSON: {error}") from error


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"--dataset-path {path}: cannot be read: {reason}") from error
