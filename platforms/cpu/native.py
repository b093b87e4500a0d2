"""The compiled kernels of the host: made where they are missing, loaded, and given their threads."""

from __future__ import annotations

import dataclasses
import logging
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from kernels_cpu.build import library_for
from kernels_cpu.library import load, open_library
from platforms.contract import DeviceError, DeviceProfile
from platforms.cpu.compilers import KERNELS
from platforms.cpu.threads import Threads
from platforms.cpu.variables import COMPILER_FLAGS
from platforms.machine import Machine

logger = logging.getLogger("engine")

FOLDER = "kernels_cpu"
TOLD_SECONDS = 1.0
MASK_BITS = 64


def with_kernels(machine: Machine, profile: DeviceProfile, threads: Threads) -> DeviceProfile:
    """The profile once kernels are loaded for it, with their threads; without their feature, and with the reason,
    where they cannot be had, which is a warning."""
    if KERNELS not in profile.features:
        return profile
    begin = time.monotonic()
    try:
        extra = machine.environ.get(COMPILER_FLAGS, "").split()
        path = library_for(profile, profile.evidence["tool.cxx"], cache_folder(machine.environ), threads.count, extra)
        near = place_memory(path, machine, threads)
        open_library(path, threads.count, threads.cpus)
    except DeviceError as error:
        logger.warning("compiled kernels are not used: %s", error)
        evidence = {**profile.evidence, f"features.{KERNELS}": str(error)}
        return dataclasses.replace(profile, features=profile.features - {KERNELS}, evidence=evidence)
    if (seconds := time.monotonic() - begin) > TOLD_SECONDS:
        logger.info("kernels for %s compiled in %.1f s; the next start takes them from %s", profile.arch, seconds, path)
    return dataclasses.replace(profile, evidence={**profile.evidence, **near})


def place_memory(path: Path, machine: Machine, threads: Threads) -> dict[str, str]:
    """Ask that weights and caches be made on the nodes of bound threads, where the machine has others; before the
    threads start, which inherit it. Returns evidence of what came of it."""
    names = (name[4:] for name in machine.names("sys/devices/system/node") if name.startswith("node"))
    others = {int(name) for name in names if name.isdigit()} - set(threads.nodes)
    if threads.cpus is None or not others:
        return {}
    error = load(path).handle.engine_nodes(sum(1 << node for node in threads.nodes if node < MASK_BITS))
    nodes = ", ".join(map(str, threads.nodes))
    refused = f": refused ({os.strerror(error)})" if error else ""
    return {"limits.numa_nodes": f"memory comes from node {nodes}{refused}"}


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Below the engine's own cache."""
    root = environ.get("ENGINE_CACHE_ROOT") or environ.get("VLLM_CACHE_ROOT")
    try:
        user = Path(environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
        return (Path(root).expanduser() if root else user / "engine") / FOLDER
    except RuntimeError:
        # A user without a home.
        return Path(tempfile.gettempdir()) / f"cache-{os.getuid()}" / "engine" / FOLDER
