"""What ``benchmarks/peers.py`` may be told."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.compare.roster import PEERS
from engine.errors import UserError

PARTS = ("speed", "accuracy", "memory", "starts")


def parse(words: Sequence[str], about: str) -> argparse.Namespace:
    """``only``: parts, ``batches``: numbers, ``rounds`` and ``starts``: how often. Raises ``UserError`` for words that
    fit no part or no batch."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a GGUF file; default: the built-in model")
    parser.add_argument(
        "--peer", action="append", default=[], metavar="NAME=PYTHON", help=f"interpreter of {', '.join(PEERS)}"
    )
    parser.add_argument("--without", action="append", default=[], metavar="NAME", help="leave this peer out")
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {','.join(PARTS)}; default: all")
    parser.add_argument("--batches", default="1,8,16", help="requests at a time, 1 to 16; default 1,8,16")
    parser.add_argument("--level", type=int, default=2, choices=range(4), help="of the engine")
    parser.add_argument("--threads", type=int, help="processors for everyone; default: all that are allowed")
    parser.add_argument("--rounds", type=int, help="how often each case is measured; default 5, with --quick 2")
    parser.add_argument("--quick", action="store_true", help="a quarter of the tokens, a fifth of the texts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured")
    parser.add_argument("--chart", type=Path, metavar="FILE", help="write the chart, as SVG")
    parser.add_argument(
        "--write-readme", action="store_true", help="write benchmarks/README.md, peers.json and peers.svg beside it"
    )
    asked = parser.parse_args(words)
    asked.only = _listed(asked.only, "--only")
    for part in asked.only:
        if part not in PARTS:
            raise UserError(f"--only {part}: there is no such part; known are {', '.join(PARTS)}")
    batches = _listed(asked.batches, "--batches")
    if not all(one.isdecimal() and 1 <= int(one) <= 16 for one in batches):
        raise UserError(f"--batches {asked.batches}: numbers from 1 to 16 are needed, as in 1,8,16")
    asked.batches = [int(one) for one in batches]
    asked.rounds = (2 if asked.quick else 5) if asked.rounds is None else asked.rounds
    if asked.rounds < 1:
        raise UserError(f"--rounds {asked.rounds}: at least one is needed")
    whole = not asked.quick and set(asked.only) == set(PARTS) and {1, 8, 16} <= set(asked.batches)
    if asked.write_readme and not whole:
        raise UserError("--write-readme takes a whole run only: drop --quick, --only and --batches")
    return asked


def _listed(text: str, flag: str) -> list[str]:
    found = [one.strip() for one in text.split(",") if one.strip()]
    if not found:
        raise UserError(f"{flag} names nothing")
    return found
