"""The types of value that settings have. Standard library only."""

from __future__ import annotations

from typing import Any

from engine import compat
from engine.config.values import (
    Kind,
    ascending,
    boolean,
    choice,
    drafting,
    integer,
    listing,
    mebibytes,
    once,
    operations,
    pairs,
    pooler,
    seconds,
    share,
    size,
    some,
    splits,
    text,
)
from engine.levels import LEVELS, PERFORMANCE_MODES

DTYPE_NAMES = ("auto", "float32", "bfloat16", "float16")
CACHE_NAMES = (*DTYPE_NAMES, "int8", "fp8")
GRAPH_MODE_NAMES = ("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")
MOST_DRAFTED = 1024  # of each place is told how many came true
MOST_LOOKED_FOR = 16  # of every length there is an index of the whole request
LEVEL_NAMES = ", ".join(str(level.number) for level in LEVELS)


def level(raw: Any) -> int:
    if isinstance(raw, bool) or str(raw).strip() not in LEVEL_NAMES.split(", "):
        raise ValueError(f"wants a level: {LEVEL_NAMES}")
    return int(raw)


def words(names: tuple[str, ...]) -> str:
    """``a, b or c``."""
    return ", ".join(names[:-1]) + f" or {names[-1]}"


SWITCH = Kind("", boolean)
TEXT, FILE, FOLDER, NAME, MODEL = (Kind(metavar, text) for metavar in ("TEXT", "FILE", "FOLDER", "NAME", "MODEL"))
COUNT = Kind("N", integer(1))
SEED = Kind("N", integer(0, 2**63 - 1))
PORT = Kind("N", integer(0, 65535))
CERT_REQS = Kind("0|1|2", integer(0, 2))
SIZE = Kind("N", size())
BYTES = Kind("SIZE", size())
LIMIT = Kind("N", size(0))
LENGTH = Kind("N", size(1, {"auto": "auto", "-1": "auto"}))
POOLER = Kind("JSON", pooler)
SHARE = Kind("SHARE", share)
MEBIBYTES = Kind("MIB", mebibytes)
INTERVAL, PATIENCE = Kind("SECONDS", seconds(0.1)), Kind("SECONDS", seconds(0))
LEVEL = Kind("N", level)
PERFORMANCE_MODE = Kind("WHICH", choice(*PERFORMANCE_MODES))
DTYPE = Kind("TYPE", choice(*DTYPE_NAMES, "half", "float", also={"half": "float16", "float": "float32"}))
_EIGHT_BITS = {
    **dict.fromkeys(("fp8_e4m3", "float8_e4m3fn", "float8_e4m3fnuz"), "fp8"),
    "int8_per_token_head": "int8",
}
CACHE_DTYPE = Kind("TYPE", choice(*CACHE_NAMES, also=_EIGHT_BITS))
KERNELS = Kind("WHICH", choice("auto", "reference"))
POLICY = Kind("WHICH", choice("fcfs", "priority"))
TOOL_PARSERS = ("hermes", "llama3_json")
TOOL_PARSER = Kind("PARSER", choice("auto", *TOOL_PARSERS, also={"qwen": "hermes"}))
REASONING_PARSERS = ("deepseek_r1", "qwen3")
REASONING_PARSER = Kind("FORMAT", choice("none", *REASONING_PARSERS))
DRAFTING, DRAFTED = Kind("METHOD", drafting), Kind("N", integer(1, MOST_DRAFTED))
LOOKED_FOR = Kind("N", integer(1, MOST_LOOKED_FOR))
LOAD_FORMAT = Kind("WHICH", choice("auto", "dummy"))
PINS = Kind("OP=NAME", pairs, "update")
TEXTS = Kind("TEXT,...", listing(text, once))
KEYS = Kind("KEY", listing(text, some), collect=True, guards=True)
MODE = Kind("MODE", choice(*compat.MODE_NUMBERS, also=compat.MODES, numbers=compat.MODE_NUMBERS))
GRAPH_MODE = Kind("MODE", choice(*GRAPH_MODE_NAMES, numbers=compat.GRAPH_MODE_NUMBERS))
OPERATIONS = Kind("OPS", listing(text, operations), "extend")
OPS = Kind("OPS", listing(text, splits), "extend")
SIZES = Kind("N,...", listing(size(), ascending), "extend")
ENDPOINTS = Kind("N,...", listing(size(2), ascending), "extend")
COMPILE_SIZES = Kind(
    "N,...", listing(size(1, {"capture_sizes": "capture_sizes", **compat.COMPILE_SIZE_WORDS}), once), "extend"
)
