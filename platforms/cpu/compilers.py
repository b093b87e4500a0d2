"""The C++ compilers of the machine, and what can be made with them."""

from __future__ import annotations

import dataclasses

from platforms.contract import DeviceProfile
from platforms.cpu.isa import family_of
from platforms.machine import Machine, printable

COMPILERS = ("g++", "c++", "clang++")
CROSS = {"x86-64": "x86_64-linux-gnu-g++", "arm64": "aarch64-linux-gnu-g++"}
"""What makes code for processors of another family, as distributions name it."""
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


def absent_compiler(machine: Machine) -> str:
    """What a user should know of a ``CXX`` that names no program; ``""`` where all is well."""
    wanted = machine.environ.get("CXX", "").strip()
    if not wanted or machine.which(wanted):
        return ""
    instead = find_compiler(machine)[0]
    does = f"kernels are compiled with {instead}" if instead else "no other compiler is found"
    more = "; flags of a compiler go into ENGINE_CPU_CXXFLAGS" if " " in wanted else ""
    return f"CXX={printable(wanted)} is no program that is found here: {does}. Correct it, or unset it{more}"


def find_cross(machine: Machine, family: str) -> tuple[str, str]:
    """As ``find_compiler``, of what makes kernels for processors of ``family``."""
    if family == family_of(machine.processor()):
        return find_compiler(machine)
    name = CROSS.get(family)
    if name is None:
        return "", f"no compiler is known that makes code for {family} here"
    path = machine.which(name)
    return (path, f"kernels are compiled with {path}") if path else ("", f"{name} is not found")


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
