"""What is asked of the bench, looked at before anything is measured: all that is wrong ends with status 2 and a
sentence."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from benchmarks.device.decode import LENGTH, PROMPT, SHAPES
from engine.levels import LEVELS

DTYPES = ("bfloat16", "float16", "float32")
MIB = 1 << 20
MOST_MIB, MOST_BATCH = 1 << 20, 4096


def parse(words: list[str] | None, about: str | None) -> argparse.Namespace:
    """``batches`` and ``levels`` as tuples. ``--json`` can be written: an empty file is made where there is none."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.device", description=about)
    parser.add_argument("--platform", default="auto")
    parser.add_argument("--dtype", choices=DTYPES, default=DTYPES[0])
    parser.add_argument("--mib", type=number(1, MOST_MIB), default=128, help="activations of one kernel's call")
    parser.add_argument(
        "--copy-mib", type=number(1, MOST_MIB), default=1024, help="what the copy moves that shares are of"
    )
    parser.add_argument("--shape", choices=SHAPES, default="8b")
    parser.add_argument("--batches", type=numbers(1, MOST_BATCH), default="1,32,256")
    parser.add_argument("--steps", type=number(2, LENGTH - PROMPT), default=64)
    known = [level.number for level in LEVELS]
    parser.add_argument("--levels", type=numbers(min(known), max(known)), default="0,2")
    parser.add_argument("--json", type=writable, help="write everything here")
    return parser.parse_args(words)


def number(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        try:
            found = int(text)
        except ValueError:
            found = least - 1
        if not least <= found <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} to {most}")
        return found

    return read


def numbers(least: int, most: int) -> Callable[[str], tuple[int, ...]]:
    """Of a list with commas."""
    one = number(least, most)
    return lambda text: tuple(one(part) for part in text.split(","))


def writable(text: str) -> Path:
    path = Path(text)
    try:
        path.open("a").close()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written: {error.strerror}") from error
    return path
