"""The rungs that only look at files: what the kernel module lists, the WSL bridge, and Tegra boards.

They tell that a device is there and usable, hardly what it is; the runtime measures the rest when it is opened.
"""

from __future__ import annotations

from platforms.accelerator import UNKNOWN, Found, Rung
from platforms.cuda.archs import arch_by_name
from platforms.cuda.nvml import VARIABLES
from platforms.machine import Machine
from platforms.visible import resolve

_LISTED = "proc/driver/nvidia/gpus"
_WSL_DRIVERS = (
    "usr/lib/wsl/lib/libcuda.so.1",
    "usr/lib/x86_64-linux-gnu/libcuda.so.1",
    "usr/lib/aarch64-linux-gnu/libcuda.so.1",
    "usr/lib64/libcuda.so.1",
)
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
    nodes = [name for name in machine.names("dev") if name.removeprefix("nvidia").isdigit()]
    usable = [node for node in nodes if machine.state(f"dev/{node}") == "present"]
    evidence.append(f"device nodes: {', '.join(usable) or 'none'}")
    by_node = {f"nvidia{row.get('Device Minor', '')}": row for row in listed}
    devices = [by_node.get(node, {}) for node in usable]
    seen = resolve(machine.environ, VARIABLES, [row.get("GPU UUID", "") for row in devices], duplicate_hides_all=True)
    found = [_found(devices[device] if isinstance(device, int) else {}) for device in seen.devices]
    return Rung(tuple(found), (*evidence, *seen.evidence), seen.problems)


def _information(machine: Machine, entry: str) -> dict[str, str]:
    rows = (line.partition(":") for line in machine.read(f"{_LISTED}/{entry}/information").splitlines())
    return {name.strip(): value.strip() for name, _, value in rows}


def _found(row: dict[str, str]) -> Found:
    product = row.get("Model", UNKNOWN)
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
    release = machine.read("etc/nv_tegra_release")
    compatible = machine.read("proc/device-tree/compatible").replace("\0", " ")
    chip = next((chip for chip in _TEGRA_ARCHS if chip in compatible), "")
    if not release and not chip:
        return Rung(evidence=("Tegra: neither /etc/nv_tegra_release nor a Tegra device tree",))
    evidence = (f"Tegra: {chip or 'chip unknown'}; {release.splitlines()[0] if release else 'no release file'}",)
    product = machine.read("proc/device-tree/model") or UNKNOWN
    arch = _TEGRA_ARCHS.get(chip, arch_by_name(product))
    memory = machine.memory().get("MemTotal", 0)
    how = {"product": "device tree", "arch": "device tree", "memory_bytes": "shared with the host: MemTotal"}
    found = Found(product, arch, memory, frozenset({"mem.shared_with_host"}), how=how)
    seen = resolve(machine.environ, VARIABLES, 1, duplicate_hides_all=True)
    return Rung((found,) * len(seen.devices), (*evidence, *seen.evidence), seen.problems)
