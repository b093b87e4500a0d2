"""First rung: the compute topology the kernel driver publishes. Needs no tool and no library."""

from __future__ import annotations

import re
from dataclasses import dataclass

from platforms.accelerator import UNKNOWN, Found, Rung
from platforms.machine import Machine, figures, printable
from platforms.rocm.archs import ARCHS, PRODUCTS, SHARED_DEVICES, arch_of
from platforms.visible import resolve

VARIABLES = (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"))
"""The runtime below filters first; the numbers of the second list index what it left."""

NODES = "sys/class/kfd/kfd/topology/nodes"
_LOCAL_HEAPS = (1, 2)
_SHARED = "mem.shared_with_host"
_FORCED = re.compile(r"([0-9]{1,2})\.([0-9]{1,2})\.([0-9]{1,2})")


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

    @property
    def render(self) -> str:
        """Its node under ``/dev/dri``; ``""`` where it has none."""
        minor = self.properties.get("drm_render_minor", 0)
        return f"renderD{minor}" if minor else ""


def kfd(machine: Machine) -> Rung:
    """Devices this process may use: listed, readable, and with their nodes under ``/dev``."""
    numbers, control = machine.names(NODES), machine.state("dev/kfd")
    evidence = [f"/{NODES}: {len(numbers)} nodes", f"/dev/kfd {control}"]
    if control != "present":
        problem = "/dev/kfd is there but not permitted: add the user to the group that owns it (render or video)"
        return Rung(evidence=tuple(evidence), problems=(problem,) if control == "not permitted" else ())
    nodes, refused = [], {}
    for number in numbers:
        node = Node(number, figures(machine.read(f"{NODES}/{number}/properties")))
        state = machine.state(f"dev/dri/{node.render}") if node.render else "present"
        if not node.properties:
            evidence.append(f"node {number}: not readable, so not given to this container")
        elif node.properties.get("simd_count", 0) > 0 and state == "present":
            nodes.append(node)
        elif node.properties.get("simd_count", 0) > 0:
            evidence.append(f"node {number}: /dev/dri/{node.render} {state}")
            refused[node.render] = state
    if not nodes:
        return Rung(evidence=tuple(evidence), problems=_refused(refused))
    seen = resolve(machine.environ, VARIABLES, [node.id for node in nodes])
    named = tuple(f"no device here is called {printable(name)}" for name in seen.devices if isinstance(name, str))
    devices = tuple(_found(machine, nodes[device]) for device in seen.devices if isinstance(device, int))
    return Rung(devices, (*evidence, *seen.evidence), (*seen.problems, *named, *_mixed(devices)))


def _refused(render: dict[str, str]) -> tuple[str, ...]:
    """Without its render node a device is no other rung's to find either."""
    for name, state in render.items():
        if state == "not permitted":
            advice = "add the user to the group that owns it (render or video)"
            return (f"/dev/dri/{name} is there but not permitted: {advice}",)
    names = ", ".join(f"/dev/dri/{name}" for name in render)
    return (f"{names} absent: start the container with --device /dev/dri",) if render else ()


def _mixed(devices: tuple[Found, ...]) -> tuple[str, ...]:
    """The processor's own graphics may come first, and are seldom what is meant."""
    if not devices or _SHARED not in devices[0].features:
        return ()
    better = [index for index, found in enumerate(devices) if _SHARED not in found.features]
    if not better:
        return ()
    names = f"index 0 is {devices[0].product} ({devices[0].arch}), which shares the host's memory"
    return (f"{names}; HIP_VISIBLE_DEVICES={better[0]} picks {devices[better[0]].product} alone",)


def _found(machine: Machine, node: Node) -> Found:
    properties, path = node.properties, f"{NODES}/{node.number}"
    how = {"limits.compute_units": f"/{path}", "limits.warp_size": f"/{path}"}
    arch, how["arch"] = _arch(machine, properties, f"/{path}")
    memory, shared, how["memory_bytes"] = _memory(machine, node, arch, path)
    units = properties["simd_count"] // properties["simd_per_cu"] if properties.get("simd_per_cu") else 0
    reported = {"compute_units": units, "warp_size": properties.get("wave_front_size", 0)}
    limits = {name: value for name, value in reported.items() if value}
    product, how["product"] = _product(machine, node)
    return Found(product, arch, memory, frozenset({_SHARED}) if shared else frozenset(), limits, how)


def _arch(machine: Machine, properties: dict[str, int], path: str) -> tuple[str, str]:
    version = properties.get("gfx_target_version", 0)
    arch = arch_of(version) if version else UNKNOWN
    forced = _FORCED.fullmatch(machine.environ.get("HSA_OVERRIDE_GFX_VERSION", "").strip())
    if forced is None:
        return arch, path
    major, minor, step = map(int, forced.groups())
    return arch_of(major * 10000 + minor * 100 + step), f"HSA_OVERRIDE_GFX_VERSION, really {arch}"


def _memory(machine: Machine, node: Node, arch: str, path: str) -> tuple[int, bool, str]:
    """Bytes, whether the host shares them, and how that is known."""
    properties, how, folder = node.properties, f"/{path}", f"{path}/mem_banks"
    banks = [figures(machine.read(f"{folder}/{bank}/properties")) for bank in machine.names(folder)]
    memory = sum(bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type") in _LOCAL_HEAPS)
    total = f"sys/class/drm/{node.render}/device/mem_info_vram_total"
    if not memory and node.render and (memory := machine.integer(total) or 0):
        how = f"/{total}"
    shared = bool(properties.get("cpu_cores_count")) or properties.get("device_id") in SHARED_DEVICES
    shared = shared or (arch in ARCHS and _SHARED in ARCHS[arch].features)
    shared = shared or (not memory and arch not in ARCHS and properties.get("mem_banks_count") == 0)
    host = machine.memory().get("MemTotal", 0)
    if shared and host > memory:
        return host, True, "shared with the host: MemTotal"
    return memory, shared, how if memory else "unknown until opened"


def _product(machine: Machine, node: Node) -> tuple[str, str]:
    path = f"sys/class/drm/{node.render}/device/product_name"
    if node.render and (name := machine.read(path)):
        return printable(name), f"/{path}"
    device = node.properties.get("device_id", 0)
    return PRODUCTS.get(device, UNKNOWN), f"PCI device id {device:#06x}"
