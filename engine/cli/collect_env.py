"""``engine collect-env``."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from engine.cli.output import print_json, say
from engine.errors import UserError

if TYPE_CHECKING:
    from platforms.discovery import Candidate, Selection

USAGE = "[--json]"
DETAILS = """
  --json            the same for machines

  For reports of faults: the system, torch and how it was built, packages,
  platforms with what they found, kernels of the one that would be chosen, and
  variables that anything here reads. Values of keys and tokens are left out.
"""
OWN = re.compile(r"(ENGINE|VLLM|TORCH|TORCHINDUCTOR|PYTORCH|TRITON|OMP|GOMP|KMP|MKL|LD|HF)_.*|.*VISIBLE_DEVICES|CC|CXX")
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL")
HIDDEN = "(set)"
EXTRAS = re.compile(r"^[A-Za-z0-9._-]+")


def run(words: Sequence[str]) -> int:
    """Print what a report of a fault should hold."""
    unknown = [word for word in words if word != "--json"]
    if unknown:
        raise UserError(f"engine collect-env: unknown word {unknown[0]}; it takes --json")
    from engine import __version__
    from platforms.discovery import PlatformError, candidates, choose

    rows = candidates()
    try:
        chosen, problem = choose(rows), ""
    except PlatformError as error:
        chosen, problem = None, str(error)
    found = {
        "engine": {"version": __version__, "cache": _cache()},
        "packages": _packages(),
        "kernels": _kernels(chosen),
        "environment": _environment(rows),
    }
    if "--json" in words:
        from torch.utils.collect_env import get_env_info

        platforms = {"rows": [row.to_json() for row in rows], "problem": problem}
        system = get_env_info()._asdict()  # type: ignore[no-untyped-call]
        return print_json({"system": system, **found, "platforms": platforms})
    say(_text(found, rows, chosen, problem))
    return 0


def _text(found: dict[str, Any], rows: Sequence[Candidate], chosen: Selection | None, problem: str) -> str:
    from torch.utils.collect_env import get_pretty_env_info

    from engine.platform_table import render_platforms
    from engine.table import lay_out, terminal

    width, _ = terminal(sys.stdout)
    parts = [("System and torch", get_pretty_env_info().strip())]  # type: ignore[no-untyped-call]
    parts.append(("Engine", "\n".join(lay_out(list(found["engine"].items()), width, indent=0))))
    parts.append(("Packages", "\n".join(f"{name} {version}" for name, version in found["packages"].items())))
    parts.append(("Platforms", render_platforms(rows, chosen, problem, width, False)))
    kernels = [(op, name, said) for op, names in found["kernels"].items() for name, said in names.items()]
    parts.append(("Kernels of the device", "\n".join(lay_out(kernels, width, indent=0)) if kernels else "none"))
    lines = [f"{name}={value}" for name, value in found["environment"].items()]
    parts.append(("Environment", "\n".join(lines) or "nothing that is read here"))
    return "\n\n".join(f"{title}\n{'=' * len(title)}\n{text}" for title, text in parts) + "\n"


def _packages() -> dict[str, str]:
    """Versions of what the engine asks for, extras included, as far as it is installed."""
    from importlib.metadata import PackageNotFoundError, requires, version

    found = {}
    try:
        wanted = requires("engine") or []
    except PackageNotFoundError:
        wanted = []
    for name in sorted({named[0].lower() for text in wanted if (named := EXTRAS.match(text))}):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _cache() -> str:
    from engine.weights.resolve import cache_root

    root = cache_root()
    sizes = [file.stat().st_size for file in root.rglob("*") if file.is_file()] if root.is_dir() else []
    return f"{root}: {len(sizes)} files, {sum(sizes) / 2**20:.0f} MiB"


def _kernels(chosen: Selection | None) -> dict[str, dict[str, str]]:
    """Op → row → what its needs say of the device that would be chosen."""
    if chosen is None:
        return {}
    from engine.plan.kernels import ask

    found: dict[str, dict[str, str]] = {}
    for row in sorted(chosen.plugin.kernels(), key=lambda row: (row.op, row.name)):
        verdict = ask(row.needs, chosen.profile, {})
        found.setdefault(row.op, {})[row.name] = "ready" if verdict.ok else f"no: {verdict.reason}"
    return found


def _environment(rows: Sequence[Candidate]) -> dict[str, str]:
    known = set(_aliases(rows))
    names = sorted(name for name in os.environ if name in known or OWN.fullmatch(name))
    return {name: HIDDEN if SECRET.search(name) else os.environ[name] for name in names}


def _aliases(rows: Sequence[Candidate]) -> Iterator[str]:
    for row in rows:
        # Strangers' code may raise anything; `engine platforms` says so, and this report goes on.
        try:
            yield from row.plugin.aliases() if row.plugin is not None else ()
        except Exception:
            continue
