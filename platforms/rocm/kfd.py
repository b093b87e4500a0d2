"""First rung: the compute topology the kernel driver publishes. Needs no tool and no library."""

from __future__ import annotations

from dataclasses import dataclass

from platforms.accelerator import UNKNOWN, Found, Rung
from platforms.machine import Machine
from platforms.rocm.archs import ARCHS, PRODUCTS, SHARED_DEVICES, arch_of
from platforms.visible import resolve

VARIABLES = (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"))
"""The runtime below filters first; the numbers of the second list index what it left."""

NODES = "sys/class/kfd/kfd/topology/nodes"
_LOCAL_HEAPS = (1, 2)


@dataclass(frozen=True, slots=True)
class Node:
    """A compute device of the topology, hidden or not."""

    number: str
    properties: dict[str, int]

    @property
    def id(self) -> str:
        """As the visibility variable spells it; ``""`` where the device has none."""
        unique = self.properties.get("unique_id", 0)
        return f"GPU-{unique:016x}" if unique else ""


def kfd(machine: Machine) -> Rung:
    """Devices this process may use: listed, readable, and with their nodes under ``/dev``."""
    numbers, control = machine.names(NODES), machine.state("dev/kfd")
    evidence = [f"/{NODES}: {len(numbers)} nodes", f"/dev/kfd {control}"]
    if control != "present":
        problem = "/dev/kfd is there but not permitted: add the user to the group that owns it (render or video)"
        return Rung(evidence=tuple(evidence), problems=(problem,) if control == "not permitted" else ())
    nodes = []
    for number in numbers:
        properties = _properties(machine, f"{NODES}/{number}/properties")
        if not properties:
            evidence.append(f"node {number}: not readable, so not given to this container")
        elif properties.get("simd_count", 0) > 0:
            render = f"dev/dri/renderD{properties.get('drm_render_minor', 0)}"
            if properties.get("drm_render_minor", 0) > 0 and machine.state(render) != "present":
                evidence.append(f"node {number}: /{render} {machine.state(render)}")
            else:
                nodes.append(Node(number, properties))
    seen = resolve(machine.environ, VARIABLES, [node.id for node in nodes])
    evidence += seen.evidence
    devices = [_found(machine, nodes[device]) for device in seen.devices if isinstance(device, int)]
    return Rung(tuple(devices), tuple(evidence), seen.problems)


def _properties(machine: Machine, path: str) -> dict[str, int]:
    rows = (line.split() for line in machine.read(path).splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}


def _found(machine: Machine, node: Node) -> Found:
    properties, path = node.properties, f"{NODES}/{node.number}"
    how = {name: f"/{path}" for name in ("arch", "memory_bytes", "limits.compute_units")}
    version = properties.get("gfx_target_version", 0)
    arch = arch_of(version) if version else UNKNOWN
    forced = machine.environ.get("HSA_OVERRIDE_GFX_VERSION", "").split(".")
    if len(forced) == 3 and all(part.isdigit() for part in forced):
        major, minor, step = map(int, forced)
        arch, how["arch"] = arch_of(major * 10000 + minor * 100 + step), f"HSA_OVERRIDE_GFX_VERSION, really {arch}"
    banks = (_properties(machine, f"{path}/mem_banks/{bank}/properties") for bank in machine.names(f"{path}/mem_banks"))
    memory = sum(bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type") in _LOCAL_HEAPS)
    host = machine.memory().get("MemTotal", 0)
    shared = not memory or bool(properties.get("cpu_cores_count")) or properties.get("device_id") in SHARED_DEVICES
    shared = shared or (arch in ARCHS and "mem.shared_with_host" in ARCHS[arch].features)
    if shared and host > memory:
        memory, how["memory_bytes"] = host, "shared with the host: MemTotal"
    limits = {"compute_units": properties.get("simd_count", 0) // (properties.get("simd_per_cu", 0) or 4)}
    if properties.get("wave_front_size"):
        limits["warp_size"] = properties["wave_front_size"]
    product, how["product"] = _product(machine, properties)
    features = frozenset({"mem.shared_with_host"}) if shared else frozenset[str]()
    return Found(product, arch, memory, features, limits, how)


def _product(machine: Machine, properties: dict[str, int]) -> tuple[str, str]:
    path = f"sys/class/drm/renderD{properties.get('drm_render_minor', 0)}/device/product_name"
    if name := machine.read(path):
        return name, f"/{path}"
    device = properties.get("device_id", 0)
    return PRODUCTS.get(device, UNKNOWN), f"PCI device id {device:#06x}"
