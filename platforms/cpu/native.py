"""The compiled kernels of the host: made where they are missing, loaded, and given their threads."""

from __future__ import annotations

import dataclasses
import logging
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from kernels_cpu.build import Report, compiled_before, drop_unkept, flags_for, library_for
from kernels_cpu.library import load, open_library
from platforms.contract import DeviceError, DeviceProfile
from platforms.cpu.bundle import all_flags, installed
from platforms.cpu.compilers import KERNELS, with_library
from platforms.cpu.threads import Threads
from platforms.cpu.variables import COMPILER_FLAGS
from platforms.machine import Machine, printable
from platforms.telling import tell

logger = logging.getLogger("engine")

FOLDER = "kernels_cpu"
TOLD_SECONDS = 1.0
AGAIN_SECONDS = 2.0
"""Between lines about a compilation."""
MASK_BITS = 64


def with_kernels(machine: Machine, profile: DeviceProfile, threads: Threads) -> DeviceProfile:
    """The profile once kernels are loaded for it, with their threads: out of a bundle that is in use, as they were
    compiled before, or compiled now. Without their feature, and with the reason, where they cannot be had. Raises
    ``DeviceError`` where a bundle must have them and has not."""
    flags, bundle = all_flags(profile, machine), installed()
    place = bundle.take(flags) if bundle is not None else None
    if bundle is not None and place is not None:
        try:
            return _opened(place, machine, with_library(profile, str(place)), threads)
        except DeviceError as error:
            if bundle.required:
                raise
            bundle.misses.append(str(error))
            logger.warning("the kernels of the bundle %s are not used: %s", bundle.folder, error)
    elif bundle is not None and not bundle.problems:
        logger.warning("the bundle %s %s", bundle.folder, bundle.lacks(flags))
    folder = cache_folder(machine.environ)
    try:
        return _made(machine, profile, threads, folder, flags)
    except DeviceError as error:
        more = machine.environ.get(COMPILER_FLAGS, "").strip()
        why = f"{error}" + (f"; {COMPILER_FLAGS}={printable(more)} is among its flags" if more else "")
        # What the probe promised and is not there the engine tells by itself.
        level = logging.INFO if KERNELS in profile.features else logging.WARNING
        logger.log(level, "compiled kernels are not used: %s", why)
        evidence = {**profile.evidence, f"features.{KERNELS}": why}
        return dataclasses.replace(profile, features=profile.features - {KERNELS}, evidence=evidence)


def _made(
    machine: Machine, profile: DeviceProfile, threads: Threads, folder: Path, flags: tuple[str, ...]
) -> DeviceProfile:
    """With kernels of the cache, or compiled into it. Raises ``DeviceError``."""
    if KERNELS not in profile.features:
        place = compiled_before(folder, flags)
        if place is None:
            raise DeviceError(profile.evidence[f"features.{KERNELS}"])
        return _opened(place, machine, with_library(profile, str(place)), threads)
    begin = time.monotonic()
    compiler, extra = profile.evidence["tool.cxx"], flags[len(flags_for(profile)) :]
    path = library_for(profile, compiler, folder, threads.count, extra, reporter(compiler))
    seconds = time.monotonic() - begin
    opened = _opened(path, machine, profile, threads)
    if unkept := drop_unkept(path):
        logger.warning("the kernels compiled in %.1f s are for this start alone: %s cannot be written", seconds, folder)
    if seconds > TOLD_SECONDS and not unkept:
        logger.info("kernels for %s compiled in %.1f s; the next start takes them from %s", profile.arch, seconds, path)
    return opened


def reporter(compiler: str) -> Report:
    """Says that kernels are being compiled, and how far that is."""
    last = 0.0

    def report(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if 0 < done < total and now - last < AGAIN_SECONDS:
            return
        logger.info("compiling kernels with %s, %d of %d files", compiler, done, total)
        tell(f"compiling kernels, {done} of {total} files")
        last = now

    return report


def _opened(path: Path, machine: Machine, profile: DeviceProfile, threads: Threads) -> DeviceProfile:
    near = place_memory(path, machine, threads)
    open_library(path, threads.count, threads.cpus)
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
