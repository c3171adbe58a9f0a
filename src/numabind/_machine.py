"""The model of a machine: frozen, without I/O but for `load` and `save`; unknown is None.

The JSON form is documented field by field in docs/snapshot.md. Sets of CPUs and nodes are kernel
lists there ("0-3,8") and `frozenset[int]` here.
"""

from __future__ import annotations

from numabind._problems import Problem
from numabind._record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from typing import Any


@record
class Cpu:
    """One online logical CPU.

    `core` and `l3` are the lowest CPU of its physical core and of its last-level cache group;
    `package` the socket's number. Each is None where the kernel does not say.
    """

    id: int
    node: int | None = None
    package: int | None = None
    core: int | None = None
    l3: int | None = None


@record
class Node:
    """One NUMA node.

    `cpus` are its online CPUs; `distances` the kernel's, in the order of `Machine.nodes`, or ();
    `kind` is "cpu" (has CPUs), "gpu" (a GPU's own memory) or "memory" (neither: CXL, HBM, a socket
    whose CPUs are offline).
    """

    id: int
    cpus: frozenset[int] = frozenset()
    memory_bytes: int | None = None
    distances: tuple[int, ...] = ()
    kind: str = "cpu"


@record
class Partition:
    """A part of a device that a runtime counts or names: MIG instance, AMD partition, Intel tile.

    `uuid` is "" where it has none of its own; `number` counts within the device, `index` is the
    runtime's among all devices and partitions, `minor` that of its render node.
    """

    uuid: str
    gpu_instance: int | None = None
    compute_instance: int | None = None
    number: int | None = None
    index: int | None = None
    minor: int | None = None


@record
class Device:
    """One display or accelerator function on the PCI bus (class 03xx or 12xx).

    `node` is the NUMA node it hangs off, after the rules of docs/placement.md, `node_source` which
    rule answered; `numa_node` is the firmware's own word (-1 is "unknown"). `memory_node` is the
    GPU's own memory where that is a NUMA node (GB200), never a target for host memory. `index` is
    the driver's (NVML, KFD), never a CUDA ordinal; `module` a Gaudi's place on its board.
    `computes` is False for a display adapter that no worker can use (a BMC's VGA). `bridges` is the
    way from the host bridge down to it, () if not read; `partitioning` AMD's modes ("CPX/NPS4");
    `link_width` the lanes that its PCI link has now.
    """

    pci: str
    vendor: str
    pci_class: int = 0
    device_id: int = 0
    vendor_id: int = 0
    computes: bool = True
    numa_node: int | None = None
    local_cpus: frozenset[int] | None = None
    node: int | None = None
    node_source: str | None = None
    near_nodes: tuple[int, ...] = ()
    uuid: str | None = None
    index: int | None = None
    minor: int | None = None
    name: str | None = None
    driver: str | None = None
    memory_node: int | None = None
    partitions: tuple[Partition, ...] = ()
    module: int | None = None
    partitioning: str | None = None
    bridges: tuple[str, ...] = ()
    driver_version: str | None = None
    link_width: int | None = None


@record
class Nic:
    """One network function (class 02xx) or NVMe controller (0108) on the PCI bus.

    `names` are its RDMA device, network interfaces or disks as the kernel calls them ("mlx5_0",
    "eth0", "nvme0", "nvme0n1"); `rdma` says that it has an RDMA device. `bridges` as a Device's.
    """

    pci: str
    node: int | None = None
    names: tuple[str, ...] = ()
    vendor_id: int = 0
    device_id: int = 0
    rdma: bool = False
    bridges: tuple[str, ...] = ()


@record
class Allowed:
    """What this process may use: born affinity, Mems_allowed, and the cgroup's cpu.max in CPUs."""

    cpus: frozenset[int]
    nodes: frozenset[int]
    cpu_quota: float | None = None


@record
class Host:
    """Which machine, and which boot of it; None where unknown or anonymized.

    `numa_balancing` is the sysctl kernel.numa_balancing.
    """

    name: str | None = None
    kernel: str | None = None
    boot_id: str | None = None
    numa: bool = True
    numa_balancing: int | None = None


@record
class Machine:
    """All that planning needs to know of one machine."""

    nodes: tuple[Node, ...]
    cpus: tuple[Cpu, ...]
    devices: tuple[Device, ...]
    allowed: Allowed
    host: Host = Host()
    offline_cpus: frozenset[int] = frozenset()
    nics: tuple[Nic, ...] = ()
    problems: tuple[Problem, ...] = ()
    disks: tuple[Nic, ...] = ()

    def node(self, number: int) -> Node | None:
        """The node with this number, or None."""
        for node in self.nodes:
            if node.id == number:
                return node
        return None

    def distance(self, start: int, end: int) -> int:
        """The kernel's distance between two nodes; without a table 10 to itself, 20 to others."""
        ids = [node.id for node in self.nodes]
        node = self.node(start)
        if node is not None and len(node.distances) == len(ids) and end in ids:
            return node.distances[ids.index(end)]
        return 10 if start == end else 20

    def as_dict(self) -> dict[str, Any]:
        """The JSON form; `Machine.from_dict` is its inverse."""
        from numabind._snapshot import as_dict

        return as_dict(self)

    @classmethod
    def from_dict(cls, data: object, source: str = "snapshot") -> Machine:
        """Rebuild a machine from its JSON form.

        `source` names the data in errors. Raises MachineError for a newer schema, a missing field
        or a value of the wrong kind; fields that this version does not know are ignored.
        """
        from numabind._snapshot import Reader

        return Reader(source).machine(data)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the machine as JSON. The file appears whole or not at all. OSError as from open."""
        import json
        import os

        from numabind._files import write_text

        write_text(os.fspath(path), json.dumps(self.as_dict(), indent=1) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Machine:
        """Read what `save` wrote; also packed, where the name ends in ".gz".

        MachineError names the file and what is wrong with it.
        """
        import os

        from numabind._snapshot import read_json

        path = os.fspath(path)
        return cls.from_dict(read_json(path), path)
