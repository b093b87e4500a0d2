"""The compiled kernels of the host: made where they are missing, loaded, and given their threads."""

from __future__ import annotations

import dataclasses
import logging
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from kernels_cpu.build import library_for
from kernels_cpu.library import open_library
from platforms.contract import DeviceError, DeviceProfile
from platforms.machine import Machine

logger = logging.getLogger("engine")

NATIVE = "kernel.cxx"
"""Feature of a host whose kernels are compiled; rows ask for it."""
FOLDER = "kernels_cpu"
FLAGS = "ENGINE_CPU_CXXFLAGS"
"""Variable with more flags for the compiler: sanitizers, debugging."""
TOLD_SECONDS = 1.0


def with_kernels(machine: Machine, profile: DeviceProfile, cpus: Sequence[int] | None) -> DeviceProfile:
    """The profile once kernels are loaded for it, with one thread for each of ``limits.threads``, bound to ``cpus``
    where given; without their feature, and with the reason, where they cannot be had, which is a warning."""
    if NATIVE not in profile.features:
        return profile
    threads = profile.limits["threads"]
    begin = time.monotonic()
    try:
        extra = machine.environ.get(FLAGS, "").split()
        path = library_for(profile, profile.evidence["tool.cxx"], cache_folder(machine.environ), threads, extra)
        open_library(path, threads, cpus)
    except DeviceError as error:
        logger.warning("compiled kernels are not used: %s", error)
        evidence = {**profile.evidence, f"features.{NATIVE}": str(error)}
        return dataclasses.replace(profile, features=profile.features - {NATIVE}, evidence=evidence)
    if (seconds := time.monotonic() - begin) > TOLD_SECONDS:
        logger.info("kernels for %s compiled in %.1f s; the next start takes them from %s", profile.arch, seconds, path)
    return profile


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Below the engine's own cache."""
    root = environ.get("ENGINE_CACHE_ROOT") or environ.get("VLLM_CACHE_ROOT")
    try:
        user = Path(environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
        return (Path(root).expanduser() if root else user / "engine") / FOLDER
    except RuntimeError:
        # A user without a home.
        return Path(tempfile.gettempdir()) / f"cache-{os.getuid()}" / "engine" / FOLDER
