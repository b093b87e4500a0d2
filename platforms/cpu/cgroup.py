"""What a container may use of the machine: CPU time and memory, of either control-group version."""

from __future__ import annotations

from collections.abc import Iterator

from platforms.machine import Machine

_ROOT = "sys/fs/cgroup"


def cpu_quota(machine: Machine) -> tuple[int, int, str] | None:
    """The tightest (quota, period, file) in microseconds on the way from this process's group to the root, or ``None``
    where nothing limits it."""
    found = []
    for version, folder in _folders(machine, "cpu"):
        if version == 2:
            path, fields = f"{folder}/cpu.max", machine.read(f"{folder}/cpu.max").split()
        else:
            path = f"{folder}/cpu.cfs_quota_us"
            fields = [machine.read(path), machine.read(f"{folder}/cpu.cfs_period_us")]
        if len(fields) == 2 and all(field.isdigit() and int(field) > 0 for field in fields):
            found.append((int(fields[0]), int(fields[1]), f"/{path}"))
    return min(found, key=lambda limit: limit[0] / limit[1], default=None)


def memory_limit(machine: Machine) -> tuple[int, int, str] | None:
    """The tightest (limit, bytes in use without reclaimable file pages, file), or ``None``. A figure beyond the
    machine's memory is how version 1 says that there is none."""
    total = machine.memory().get("MemTotal", 0)
    found = []
    for version, folder in _folders(machine, "memory"):
        path = f"{folder}/{'memory.max' if version == 2 else 'memory.limit_in_bytes'}"
        limit = machine.integer(path)
        if limit is None or limit <= 0 or (total and limit >= total):
            continue
        used = machine.integer(f"{folder}/{'memory.current' if version == 2 else 'memory.usage_in_bytes'}") or 0
        rows = (line.split() for line in machine.read(f"{folder}/memory.stat").splitlines())
        figures = {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}
        reclaimable = figures.get("inactive_file" if version == 2 else "total_inactive_file", 0)
        found.append((limit, max(used - reclaimable, 0), f"/{path}"))
    return min(found, key=lambda row: row[0], default=None)


def _folders(machine: Machine, controller: str) -> Iterator[tuple[int, str]]:
    """Every group from this process's own up to the root. The path of ``/proc/self/cgroup`` does not exist below the
    mount where a container sees its own group as the root; the root is then what counts."""
    groups = {2: "/", 1: "/"}
    mounts = {2: [_ROOT, f"{_ROOT}/unified"], 1: [f"{_ROOT}/{controller}"]}
    for line in machine.read("proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            groups[2] = path
        elif controller in controllers.split(","):
            groups[1] = path
            mounts[1].append(f"{_ROOT}/{controllers}")
    for version, path in groups.items():
        parts = [part for part in path.split("/") if part not in ("", "..", ".")]
        for mount in dict.fromkeys(mounts[version]):
            for depth in range(len(parts), -1, -1):
                yield version, "/".join((mount, *parts[:depth]))
