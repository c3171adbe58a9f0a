"""Which NIC is nearest to a GPU, and which device a worker without a GPU wants to be near. Pure."""

from __future__ import annotations

from numabind._address import parse_address
from numabind._machine import Device, Machine, Nic
from numabind._pci import place
from numabind._problems import Problem, problem
from numabind._record import record


@record
class Nearest:
    """The nearest RDMA NICs of a device, all equally near; `by` says what they share with it.

    "switch": a PCI bridge below the host bridge; "root": the host bridge only; "node": the NUMA
    node; "machine": nothing nearer.
    """

    nics: tuple[Nic, ...]
    by: str

    @property
    def names(self) -> tuple[str, ...]:
        """What the kernel calls them."""
        return tuple(nic.names[0] if nic.names else nic.pci for nic in self.nics)

    @property
    def text(self) -> str:
        """ "mlx5_0 (switch)"; equals by commas."""
        return f"{','.join(self.names)} ({self.by})"


def nearest_nics(machine: Machine, device: Device) -> Nearest | None:
    """The RDMA NICs nearest to a device: deepest common bridge, then node. None if there is none.

    Without a common bridge and node it is the NICs whose node is nearest by the kernel's distances.
    """
    able = [nic for nic in machine.nics if nic.rdma]
    if not able:
        return None
    shared = {nic.pci: _common(device.bridges, nic.bridges) for nic in able}
    deepest = max(shared.values())
    if deepest > 0:
        best = [nic for nic in able if shared[nic.pci] == deepest]
        same = [nic for nic in best if nic.node == device.node]
        return Nearest(tuple(same or best), "switch" if deepest > 1 else "root")
    if device.node is None:
        return None
    node = device.node
    on_node = tuple(nic for nic in able if nic.node == node)
    if on_node:
        return Nearest(on_node, "node")
    far = {nic.pci: machine.distance(node, nic.node) for nic in able if nic.node is not None}
    if not far:
        return None
    least = min(far.values())
    return Nearest(tuple(nic for nic in able if far.get(nic.pci) == least), "machine")


def _common(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """How many bridges, from the host bridge down, two functions share."""
    count = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        count += 1
    return count


def find_near(machine: Machine, name: str) -> tuple[Device | None, Problem | None]:
    """The function that `--near` names: a PCI address, or a NIC's or disk's name in the kernel.

    It comes as a Device, placed by the same rules as a GPU. The problem says why there is none.
    """
    wanted = name.strip()
    try:
        pci = str(parse_address(wanted))
    except ValueError:
        pci = ""
    for device in machine.devices:
        if device.pci == pci:
            return device, None
    for nic in (*machine.nics, *machine.disks):
        if nic.pci == pci or wanted in nic.names:
            return as_device(machine, nic), None
    known = sorted({n for nic in (*machine.nics, *machine.disks) for n in nic.names})
    there = f"there are {', '.join(known)}" if known else "it has no NIC and no NVMe on the PCI bus"
    cause = f"{wanted}: no PCI function of this machine is called so; {there}"
    return None, problem("near-not-found", cause)


def as_device(machine: Machine, nic: Nic) -> Device:
    """A NIC or disk as a place for a worker."""
    online = frozenset(cpu.id for cpu in machine.cpus)
    bare = Device(
        pci=nic.pci,
        vendor=nic.names[0] if nic.names else "pci",
        vendor_id=nic.vendor_id,
        device_id=nic.device_id,
        computes=False,
        numa_node=-1 if nic.node is None else nic.node,
        name=", ".join(nic.names) or None,
    )
    return place(bare, machine.nodes, online)[0]
