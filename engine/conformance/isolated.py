"""Run as a script, in a process of its own: loads a descriptor, asks it everything, and reports what that did to the
process. Standard library only, and nothing of the engine. Reads one JSON object from stdin, prints one."""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from importlib import import_module
from typing import Any

HARMLESS = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/pts", "/dev/ptmx")


def main() -> None:
    order = json.load(sys.stdin)
    sys.path[:] = order["paths"]
    before, files = set(sys.modules), set(_open_devices())
    if "environ" in order:
        os.environ.clear()
        os.environ.update(order["environ"])
    environ = dict(os.environ)
    module, _, attributes = order["source"].partition(":")
    answer: dict[str, Any] = {}
    try:
        found: Any = import_module(module)
        for attribute in attributes.split("."):
            found = getattr(found, attribute)
        plugin = found() if isinstance(found, type) else found
        answer["imported"] = sorted(set(sys.modules) - before)
        if order["tables"]:
            _ask(plugin)
        answer["asked"] = sorted(set(sys.modules) - before)
        started = time.monotonic()
        probe = plugin.probe()
        answer["seconds"] = time.monotonic() - started
        answer["probe"] = probe.to_json()
    except (Exception, SystemExit) as error:
        answer["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
    answer["probed"] = sorted(set(sys.modules) - before)
    answer["written"] = sorted({*environ.items()} ^ {*os.environ.items()})
    answer["devices"] = sorted(set(_open_devices()) - files)
    print("\n" + json.dumps(answer), flush=True)
    # A thread that hangs in a driver must not keep this process.
    os._exit(0)


def _ask(plugin: Any) -> None:
    profiles = list(plugin.targets().values())
    rows, offers = plugin.kernels(), plugin.fusions()
    plugin.aliases()
    for profile in profiles:
        for row in rows:
            row.needs(profile, {})
        for offer in offers:
            if hasattr(offer, "when"):
                offer.when(profile, {})
        for level in range(4):
            plugin.settings(profile, {}, level)


def _open_devices() -> list[str]:
    """Device files this process holds open, where the system can say so."""
    found = []
    for number in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        path = f"/proc/self/fd/{number}"
        try:
            name, mode = os.readlink(path), os.stat(path).st_mode
        except OSError:
            continue
        if stat.S_ISCHR(mode) and not name.startswith(HARMLESS):
            found.append(name)
    return found


if __name__ == "__main__":
    main()
