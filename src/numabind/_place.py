"""Where a device is: the nodes, CPUs and memory around it, before what is allowed. Pure."""

from __future__ import annotations

from numabind._cpulist import format_list
from numabind._machine import Device, Machine, Node
from numabind._problems import Problem, problem
from numabind._record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


@record
class Place:
    """The nodes and CPUs near a device, before what is allowed."""

    nodes: tuple[int, ...]
    cpus: frozenset[int]
    memory: tuple[int, ...]
    reasons: tuple[str, ...]
    problems: tuple[Problem, ...]


class Surroundings:
    """The places of one machine's devices, under one mode."""

    def __init__(self, machine: Machine, mode: str) -> None:
        self.machine = machine
        self.mode = mode
        self.cpu = {cpu.id: cpu for cpu in machine.cpus}
        self.places: dict[str, Place | None] = {}

    def place(self, device: Device) -> Place | None:
        if device.pci not in self.places:
            self.places[device.pci] = self._find(device)
        return self.places[device.pci]

    def _find(self, device: Device) -> Place | None:
        if not device.near_nodes:
            return None
        nodes = [self.machine.node(number) for number in device.near_nodes]
        cpus = frozenset().union(*(node.cpus for node in nodes if node is not None))
        if device.node_source in ("local_cpulist", "map") and device.local_cpus:
            cpus = device.local_cpus
        return self.around(device.near_nodes, cpus)

    def around(self, nodes: tuple[int, ...], cpus: frozenset[int]) -> Place | None:
        """Lend what the nodes lack, then widen to the package if the mode says so."""
        problems: list[Problem] = []
        reasons: list[str] = []
        memory = nodes
        if not cpus:
            lender = self.nearest(nodes[0], lambda node: bool(node.cpus))
            if lender is None:
                return None
            said = f"node {join(nodes)} has no CPUs online; node {lender.id} is nearest"
            problems.append(problem("cpus-lent", said))
            cpus = lender.cpus
            own = self.machine.node(nodes[0])
            if own is not None and own.kind == "gpu":
                memory = (lender.id,)
            nodes = (lender.id,)
        if self.mode == "socket":
            whole = self.package_nodes(cpus)
            if whole:
                cpus = cpus.union(*(node.cpus for node in whole))
                ids = tuple(node.id for node in whole)
                memory = ids if set(memory) <= set(ids) else memory
                nodes = ids
                reasons.append(f"mode socket: nodes {join(ids)} share its package")
            else:
                cause = f"CPUs {format_list(cpus)} have no physical_package_id"
                problems.append(problem("no-package", cause))
        return Place(nodes, cpus, memory, tuple(reasons), tuple(problems))

    def nearest(self, start: int, able: Any) -> Node | None:
        """The nearest node, by distance then number, for which `able` holds."""
        found = [node for node in self.machine.nodes if able(node)]
        return min(
            found, key=lambda node: (self.machine.distance(start, node.id), node.id), default=None
        )

    def package_nodes(self, cpus: frozenset[int]) -> list[Node]:
        """The nodes whose lowest CPU is in the package of the lowest of `cpus`."""
        package = self.cpu[min(cpus)].package
        if package is None:
            return []
        return [
            n for n in self.machine.nodes if n.cpus and self.cpu[min(n.cpus)].package == package
        ]


def join(nodes: tuple[int, ...]) -> str:
    return format_list(nodes)
