"""The rungs that only look at files: what the kernel module lists, the WSL bridge, and Tegra boards.

They tell that a device is there and usable, hardly what it is; the runtime measures the rest when it is opened.
"""

from __future__ import annotations

import re

from platforms.accelerator import UNKNOWN, Found, Rung
from platforms.cuda.archs import arch_by_name
from platforms.cuda.nvml import VARIABLES
from platforms.machine import Machine, printable
from platforms.visible import resolve

_NODE = re.compile(r"nvidia[0-9]{1,4}")
_LISTED = "proc/driver/nvidia/gpus"
_WSL_DRIVERS = (
    "usr/lib/wsl/lib/libcuda.so.1",
    "usr/lib/x86_64-linux-gnu/libcuda.so.1",
    "usr/lib/aarch64-linux-gnu/libcuda.so.1",
    "usr/lib64/libcuda.so.1",
)
_TEGRA_NODES = ("nvgpu", "nvhost-gpu", "nvhost-ctrl-gpu", "nvmap", "nvidia0")
_TEGRA_ARCHS = {"tegra234": "sm_87", "tegra264": "sm_110"}


def kernel_module(machine: Machine) -> Rung:
    """``/proc/driver/nvidia`` names every device of the machine, also inside a container that may use none: only the
    nodes under ``/dev`` say which ones are usable."""
    control = machine.state("dev/nvidiactl")
    listed = [_information(machine, entry) for entry in machine.names(_LISTED)]
    evidence = [f"/dev/nvidiactl {control}", f"/{_LISTED}: {len(listed)} listed"]
    if control != "present":
        problem = "/dev/nvidiactl is there but not permitted: run as a user or container allowed to open it"
        return Rung(evidence=tuple(evidence), problems=(problem,) if control == "not permitted" else ())
    nodes = [name for name in machine.names("dev") if _NODE.fullmatch(name)]
    usable = [node for node in nodes if machine.state(f"dev/{node}") == "present"]
    evidence.append(f"device nodes: {', '.join(usable) or 'none'}")
    if not usable:
        problem = f"/dev/{nodes[0]} is there but not permitted" if nodes else ""
        return Rung(evidence=tuple(evidence), problems=(problem,) if problem else ())
    # CUDA's order, where all devices are alike, is that of the bus, which the listing has.
    by_node = {f"nvidia{row.get('Device Minor', '')}": row for row in listed}
    order = [*(node for node in by_node if node in usable), *(node for node in usable if node not in by_node)]
    devices = [by_node.get(node, {}) for node in order]
    seen = resolve(machine.environ, VARIABLES, [_id(row) for row in devices], duplicate_hides_all=True)
    board = _board(machine)
    found = [_found(devices[device] if isinstance(device, int) else {}, board) for device in seen.devices]
    return Rung(tuple(found), (*evidence, *seen.evidence), seen.problems)


def _id(row: dict[str, str]) -> str:
    """Question marks stand for the id of a device that nobody has woken yet."""
    name = row.get("GPU UUID", "")
    return "" if "?" in name else name


def _information(machine: Machine, entry: str) -> dict[str, str]:
    rows = (line.partition(":") for line in machine.read(f"{_LISTED}/{entry}/information").splitlines())
    return {name.strip(): value.strip() for name, _, value in rows}


def _found(row: dict[str, str], board: Found | None) -> Found:
    if not row and board is not None:
        return board
    product = printable(row.get("Model") or UNKNOWN)
    arch = arch_by_name(product)
    how = {"product": f"/{_LISTED}", "memory_bytes": "unknown until opened"}
    how["arch"] = "unknown until opened" if arch == UNKNOWN else "guessed from the product name"
    return Found(product, arch, how=how)


def wsl(machine: Machine) -> Rung:
    """Under WSL every vendor's device is the same file, so the vendor's driver library has to be there as well."""
    state = machine.state("dev/dxg")
    driver = next((path for path in _WSL_DRIVERS if machine.has(path)), "")
    evidence = (f"/dev/dxg {state}" + (f", /{driver}" if driver else "" if state == "absent" else ", no libcuda.so.1"),)
    if state != "present" or not driver:
        return Rung(evidence=evidence)
    seen = resolve(machine.environ, VARIABLES, 1, duplicate_hides_all=True)
    how = {name: "unknown until opened" for name in ("product", "arch", "memory_bytes")}
    return Rung(tuple(Found(how=how) for _ in seen.devices), (*evidence, *seen.evidence), seen.problems)


def tegra(machine: Machine) -> Rung:
    """Boards whose device shares the host's memory and which often have no management library."""
    found = _board(machine)
    if found is None:
        return Rung(evidence=("Tegra: neither /etc/nv_tegra_release nor a Tegra device tree",))
    release = machine.read("etc/nv_tegra_release").splitlines()
    says = printable(release[0], 100) if release else "no release file"
    evidence = (f"Tegra: {found.product}, {found.arch}; {says}",)
    # A container sees the board's device tree whether or not it was given the device.
    nodes = machine.names("dev")
    if nodes and not set(nodes) & set(_TEGRA_NODES):
        return Rung(evidence=(*evidence, f"Tegra: none of {', '.join(_TEGRA_NODES)} in /dev"))
    seen = resolve(machine.environ, VARIABLES, 1, duplicate_hides_all=True)
    return Rung((found,) * len(seen.devices), (*evidence, *seen.evidence), seen.problems)


def _board(machine: Machine) -> Found | None:
    compatible = machine.read("proc/device-tree/compatible").replace("\0", " ")
    chip = next((chip for chip in _TEGRA_ARCHS if chip in compatible), "")
    if not chip and not machine.read("etc/nv_tegra_release"):
        return None
    product = printable(machine.read("proc/device-tree/model")) or UNKNOWN
    arch = _TEGRA_ARCHS.get(chip, arch_by_name(product))
    memory = machine.memory().get("MemTotal", 0)
    how = {"product": "device tree", "arch": "device tree", "memory_bytes": "shared with the host: MemTotal"}
    return Found(product, arch, memory, frozenset({"mem.shared_with_host"}), how=how)
