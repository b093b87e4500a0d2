"""A Python environment to install a plugin into and to throw away. It sees what is installed here."""

from __future__ import annotations

import os
import subprocess
import sysconfig
import venv
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROGRAMS = {"engine": "engine", "pip": "pip", "pytest": "pytest"}
OFFLINE = {
    "PIP_NO_INDEX": "1",
    "PIP_NO_BUILD_ISOLATION": "0",  # pip reads this one inverted: builds take the setuptools that is here
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_QUIET": "1",
}


class Throwaway:
    """In ``folder``, made there. Its programs are those of ``PROGRAMS`` and ``python``, whatever ``PATH`` holds."""

    def __init__(self, folder: Path) -> None:
        venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
        self.bin = folder / "bin"
        (site,) = folder.glob("lib/python*/site-packages")
        lines = [f"import site; site.addsitedir({path!r})" for path in self._sites()]
        (site / "seen_too.pth").write_text("\n".join([str(ROOT), *lines]) + "\n")
        for name, module in PROGRAMS.items():
            script = self.bin / name
            script.write_text(f'#!/bin/sh\nexec "{self.bin}/python" -m {module} "$@"\n')
            script.chmod(0o755)
        path = f"{self.bin}{os.pathsep}{os.environ['PATH']}"
        strange = ("PYTHONPATH", "PYTHONHOME", "TOY_CHIP", "TOY_KERNELS")
        kept = {name: value for name, value in os.environ.items() if name not in strange}
        self.environment = {**kept, **OFFLINE, "PATH": path, "VIRTUAL_ENV": str(folder), "OMP_NUM_THREADS": "2"}

    @staticmethod
    def _sites() -> list[str]:
        return sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})

    def run(
        self,
        *command: str,
        folder: Path = ROOT,
        environment: Mapping[str, str] | None = None,
        seconds: float = 240,
    ) -> subprocess.CompletedProcess[str]:
        """Run one of its programs, with both outputs as text."""
        program, *rest = command
        return subprocess.run(
            [str(self.bin / program), *rest],
            cwd=folder,
            env={**self.environment, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    def install(self, *words: str) -> None:
        """``pip install`` without a network."""
        done = self.run("pip", "install", *words)
        assert done.returncode == 0, done.stdout + done.stderr
