"""The C++ compilers of the machine, and what can be made with them."""

from __future__ import annotations

import dataclasses

from platforms.contract import DeviceProfile
from platforms.machine import Machine, printable

COMPILERS = ("g++", "c++", "clang++")
GENERATOR_COMPILER = "g++"
GENERATED = "compile.inductor"
KERNELS = "kernel.cxx"
"""Feature: there are compiled kernels, or a compiler that makes them."""


def find_compiler(machine: Machine) -> tuple[str, str]:
    """Path of the compiler in ``CXX``, else of the first that is found; ``""`` where there is none. And what comes of
    it for the kernels."""
    wanted = machine.environ.get("CXX", "").strip()
    names = (wanted, *COMPILERS) if wanted else COMPILERS
    path = next((path for name in names if (path := machine.which(name))), "")
    if path:
        return path, f"kernels are compiled with {path} on first use"
    return "", f"no kernels are compiled: none of {', '.join(map(printable, names))} found"


def find_generator(machine: Machine) -> tuple[bool, str]:
    """Whether torch.compile can make code for a host, and why: it asks for the compiler in ``CXX``, else for g++."""
    wanted = machine.environ.get("CXX", "").strip()
    name = f"{wanted} (CXX)" if wanted else GENERATOR_COMPILER
    path = machine.which(wanted or GENERATOR_COMPILER)
    return (True, f"it compiles with {path}") if path else (False, f"it compiles with {name}, which is not found")


def with_library(profile: DeviceProfile, path: str) -> DeviceProfile:
    """The profile of a processor for which kernels were compiled before, into ``path``."""
    says = {**profile.evidence, f"features.{KERNELS}": f"compiled before: {path}"}
    return dataclasses.replace(profile, features=profile.features | {KERNELS}, evidence=says)
