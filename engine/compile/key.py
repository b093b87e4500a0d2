"""What a compiled piece is made from, beside its own calls, types, shapes and range. Standard library only.

Opt-out: a decision nobody has thought about counts, so that it can cost a compilation and never a wrong result. Paths
and times of change are in nothing here: a cache may be copied to another home.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import sys
from collections.abc import Iterable, Mapping
from enum import Enum
from fnmatch import fnmatchcase
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

from engine.compat import GENERATOR_VARIABLES
from engine.ops import Op
from engine.plan_values import Plan, digest
from platforms.contract import FusionRule

logger = logging.getLogger("engine")

_ROOM = "how much memory is used; blocks of a cache are counted in a shape that a piece declares"
_ORDER = "which requests make up a step; a piece sees its tokens only"
_GRAPHS = "what is captured; a piece is the same inside a graph, and names the kernels it calls"
_OUTSIDE = "nothing of it reaches a step"
_RANGE = "which ranges there are; a piece declares its own"

HARMLESS: Mapping[str, str] = MappingProxyType(
    {
        "model.name": "where weights come from; they are arguments of a piece",
        "model.served_name": _OUTSIDE,
        "model.chat_template": _OUTSIDE,
        "model.pooler_config": "vectors are made of what pieces leave",
        "model.load_format": "weights are inputs of pieces",
        "model.max_logprobs": _OUTSIDE,
        "model.seed": "sampling follows the pieces",
        "model.weight_bytes": "a sum over weights, each of whose shapes a piece declares",
        "platform": "the device it picks is declared by its facts",
        "profile_file": "explains only; nothing is compiled",
        "optimization_level": "its decisions are here, each by itself",
        "performance_mode": "its decisions are here, each by itself",
        "enforce_eager": "the two modes it decides are here",
        "compilation.graph_mode": _GRAPHS,
        "compilation.capture_sizes": _GRAPHS,
        "compilation.max_capture_size": _GRAPHS,
        "compilation.compile_sizes": _RANGE,
        "compilation.compile_ranges_endpoints": _RANGE,
        "compilation.kernel_bundle": "kernels of the same sources, which a piece names",
        "compilation.debug_dump_path": "copies of what is compiled are written there",
        "*cache_dir": "where entries lie",
        "cache.gpu_memory_utilization": _ROOM,
        "cache.kv_cache_memory_bytes": _ROOM,
        "cache.num_blocks": _ROOM,
        "cache.enable_prefix_caching": _ORDER,
        "scheduler.max_model_len": "how wide a block table is, in a shape that a piece declares; it may follow the "
        "memory that happens to be free",
        "scheduler.max_num_seqs": _ORDER,
        "scheduler.enable_chunked_prefill": _ORDER,
        "scheduler.long_prefill_token_threshold": _ORDER,
        "scheduler.policy": _ORDER,
        "scheduler.fair_scheduling": _ORDER,
        "scheduler.async_scheduling": _ORDER,
        "speculative_config.*": _ORDER,
        "server.*": _OUTSIDE,
    }
)
"""Keys (``*``: any text) that cannot change a compiled piece → why."""

SHAPING: frozenset[str] = frozenset(
    {
        "model.dtype",
        "model.quantization",
        "kernels",
        "kernel_pins",
        "batch_invariant",
        "kernel_config.autotune",
        "kernel_config.rounding",
        "compilation.mode",
        "compilation.backend",
        "compilation.custom_ops",
        "compilation.splitting_ops",
        "compilation.pass_config.*",
        "cache.block_size",
        "cache.kv_cache_dtype",
        "scheduler.max_num_batched_tokens",
        "parallel.*",
    }
)
"""Keys that can. Read by tests alone: what is in neither table counts as well, until somebody decides."""

_PLACES = frozenset(
    {"TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TRITON_HOME", "TRITON_DUMP_DIR", "TORCHINDUCTOR_COMPILE_THREADS"}
)
"""Those of them that only say where files lie, or how many compile at once."""
_COUNTS = frozenset({"threads", "physical_cores", "numa_nodes"})
"""Limits by which a process is given more or less of a device: code asks for them when it runs."""


def counts(key: str) -> bool:
    """Whether a setting is part of the key of a compiled piece."""
    return not any(fnmatchcase(key, pattern) for pattern in HARMLESS)


def settings(plan: Plan) -> dict[str, Any]:
    """Every decision of the plan that counts, by key, as plain values."""
    return {key: _plain(row.value) for key, row in sorted(plan.decisions.items()) if counts(key)}


def environment(plan: Plan, ops: Mapping[str, Op]) -> dict[str, Any]:
    """What the plan does not decide, as plain values: facts of the device that shape code, versions, variables that
    code generators read, and a hash of the sources that pieces are made from. ``ops``: every op a piece may hold.
    Reads the environment and source files."""
    profile = plan.profile.to_json()
    limits = {name: value for name, value in profile["limits"].items() if name not in _COUNTS}
    device = {name: profile[name] for name in ("platform", "arch", "family", "features", "libraries")}
    return {
        "device": {**device, "limits": limits},
        "torch": _version("torch"),
        "triton": _version("triton"),
        "python": sys.implementation.cache_tag,
        "variables": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(GENERATOR_VARIABLES) and name not in _PLACES
        },
        "sources": sources(ops),
        "patterns": digest({name: _patterns(op) for name, op in ops.items()}),
    }


def sources(ops: Mapping[str, Op]) -> dict[str, str]:
    """Package → hash of its Python files, by name in the package and content, for each that references or the
    compiler come from. One that cannot be read has another hash each time, and so is never taken for unchanged."""
    packages = {"engine.compile", "engine.ops", *(_package(op.reference.__module__) for op in ops.values())}
    return {name: content(name) for name in sorted(packages)}


def _package(module: str) -> str:
    """All of a stranger's package, and of ours the part that matters."""
    parts = module.split(".")
    return ".".join(parts[:2] if parts[0] == "engine" else parts[:1])


def content(package: str) -> str:
    """Hash of the Python files of a package or module, wherever it lies; another one each time where it cannot be
    read."""
    try:
        files = sorted(_files(package))
        if not files:
            raise FileNotFoundError(f"no Python file of {package}")
        total = hashlib.sha256()
        for name, file in files:
            total.update(hashlib.sha256(name.encode()).digest() + hashlib.sha256(file.read_bytes()).digest())
    except (OSError, ImportError, ValueError) as error:
        logger.debug("compiled pieces are not kept over runs, as sources of %s cannot be read: %s", package, error)
        return f"unread {secrets.token_hex(8)}"
    return total.hexdigest()[:16]


def _files(package: str) -> Iterable[tuple[str, Path]]:
    spec = find_spec(package)
    if spec is not None and spec.submodule_search_locations:
        for folder in map(Path, spec.submodule_search_locations):
            yield from ((file.relative_to(folder).as_posix(), file) for file in folder.rglob("*.py"))
    elif spec is not None and spec.has_location and spec.origin:
        yield package, Path(spec.origin)


def _patterns(op: Op) -> list[Any]:
    """What a fused op computes: its reference is one function for all of them, over the rule it was made for."""
    cells = [cell.cell_contents for cell in getattr(op.reference, "__closure__", None) or ()]
    return [[rule.pattern, rule.outputs] for rule in cells if isinstance(rule, FusionRule)]


def _version(module: str) -> str:
    try:
        return version(module)
    except PackageNotFoundError:
        if find_spec(module) is None:
            return "absent"
        names = packages_distributions().get(module, ())
        return " ".join(f"{name} {version(name)}" for name in sorted(names)) or "unknown"


def _plain(value: Any) -> Any:
    """As JSON would give it back."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(part) for part in value), key=repr)
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else repr(value)
