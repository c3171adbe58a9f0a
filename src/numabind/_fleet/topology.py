"""What binding depends on in one machine, as texts that are equal where the machines are. Pure.

A topology has no names, UUIDs or serial numbers, and no sizes of memory: those of equal machines
differ by some pages, so `_fleet.memory` compares them.
"""

from __future__ import annotations

from numabind._cpulist import format_list
from numabind._machine import Device, Machine
from numabind._record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

UNKNOWN = "unknown"
ALL = "all"


@record
class Aspect:
    """One property of a machine, of one of its nodes or of one of its GPUs.

    `subject` is "machine", "node 0" or "gpu 0000:5d:00.0"; `name` one of docs/fleet.md's aspects;
    `value` says it whole, as a kernel list where it is a set.
    """

    subject: str
    name: str
    value: str


@record
class Topology:
    """The aspects of a machine, sorted; two are equal where binding finds no difference."""

    aspects: tuple[Aspect, ...]

    def values(self) -> dict[tuple[str, str], str]:
        """The values by subject and name."""
        return {(each.subject, each.name): each.value for each in self.aspects}

    @property
    def fingerprint(self) -> str:
        """Twelve hexadecimal digits that are the same for the same topology, everywhere."""
        import hashlib

        text = "\n".join(f"{a.subject}\t{a.name}\t{a.value}" for a in self.aspects)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def topology_of(machine: Machine) -> Topology:
    """All that binding depends on, but for the sizes of memory.

    GPUs are the devices that compute, by PCI address. What may be used is "all" where nothing is
    kept back, so that it is no second difference of machines with other CPUs.
    """
    found = [Aspect("machine", name, value) for name, value in _whole(machine).items()]
    order = sorted(range(len(machine.nodes)), key=lambda i: machine.nodes[i].id)
    for i in order:
        node = machine.nodes[i]
        known = len(node.distances) == len(order)
        subject = f"node {node.id}"
        found += (
            Aspect(subject, "kind", node.kind),
            Aspect(subject, "CPUs", format_list(node.cpus)),
            Aspect(
                subject,
                "distances",
                " ".join(str(node.distances[j]) for j in order) if known else UNKNOWN,
            ),
        )
    for device in machine.devices:
        if device.computes:
            subject = f"gpu {device.pci}"
            found += (Aspect(subject, name, value) for name, value in _gpu(device).items())
    return Topology(tuple(sorted(found, key=lambda a: (a.subject, a.name))))


def _whole(machine: Machine) -> dict[str, str]:
    allowed = machine.allowed
    cpus = frozenset(cpu.id for cpu in machine.cpus)
    filled = frozenset(node.id for node in machine.nodes if node.memory_bytes != 0)
    balancing = machine.host.numa_balancing
    quota = allowed.cpu_quota
    return {
        "NUMA": "yes" if machine.host.numa else "no",
        "nodes with CPUs": format_list(frozenset(n.id for n in machine.nodes if n.cpus)),
        "packages": _lists((cpu.id, cpu.package) for cpu in machine.cpus),
        "cores": _lists((cpu.id, cpu.core) for cpu in machine.cpus),
        "L3 groups": _lists((cpu.id, cpu.l3) for cpu in machine.cpus),
        "CPUs": format_list(cpus),
        "offline CPUs": format_list(machine.offline_cpus),
        "allowed CPUs": ALL if allowed.cpus >= cpus else format_list(allowed.cpus),
        "allowed nodes": ALL if allowed.nodes >= filled else format_list(allowed.nodes),
        "CPU quota": "none" if quota is None else str(quota).removesuffix(".0"),
        "numa_balancing": UNKNOWN if balancing is None else str(balancing),
    }


def _lists(pairs: Iterable[tuple[int, int | None]]) -> str:
    """The CPUs by group as kernel lists, lowest first: "0,112 1,113"; "?" marks the unknown."""
    groups: dict[int | None, set[int]] = {}
    for cpu, group in pairs:
        groups.setdefault(group, set()).add(cpu)
    ordered = sorted(groups.items(), key=lambda item: min(item[1]))
    return " ".join(("?" if group is None else "") + format_list(cpus) for group, cpus in ordered)


def _gpu(device: Device) -> dict[str, str]:
    if device.node is not None:
        node = str(device.node)
    else:
        node = format_list(frozenset(device.near_nodes)) or UNKNOWN
    driver = " ".join(word for word in (device.driver, device.driver_version) if word)
    # MIG instances have two numbers, other vendors' parts one.
    parts = [
        f"{part.gpu_instance}/{part.compute_instance}" if part.number is None else str(part.number)
        for part in device.partitions
    ]
    return {
        "model": model_of(device),
        "node": node,
        "driver": driver or "none",
        "link": UNKNOWN if device.link_width is None else f"x{device.link_width}",
        "own memory": "none" if device.memory_node is None else f"node {device.memory_node}",
        "partitions": " ".join(parts) or "none",
        "partitioning": device.partitioning or "none",
        "module": "none" if device.module is None else str(device.module),
    }


def model_of(device: Device) -> str:
    """The PCI numbers of vendor and model: "10de:2330"."""
    return f"{device.vendor_id:04x}:{device.device_id:04x}"
