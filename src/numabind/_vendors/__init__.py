"""What drivers know beyond sysfs: UUID, index, name, partitions.

A vendor is a module with `VENDOR` (the name in `numabind._pci.VENDORS`) and
`identify(root, devices, runtime)`, which takes the vendor's devices and returns an `Identified`.
None initialises a compute runtime. A module is imported only when a device of its vendor is there.
"""

from __future__ import annotations

from numabind._machine import Device
from numabind._problems import Problem
from numabind._record import record
from numabind._sysfs import Root


@record
class Identified:
    """A vendor's devices with what its driver knows of them.

    `driver_nodes` holds, by PCI address, the NUMA nodes that the driver thinks near.
    """

    devices: tuple[Device, ...]
    driver_nodes: dict[str, frozenset[int]]
    problems: tuple[Problem, ...] = ()


def identify(root: Root, devices: tuple[Device, ...], runtime: bool) -> Identified:
    """Ask each vendor's driver about its devices; keep the others as they are.

    `runtime` allows management libraries (NVML) on the live machine; without it files alone speak.
    """
    found: dict[str, Device] = {device.pci: device for device in devices}
    nodes: dict[str, frozenset[int]] = {}
    problems: list[Problem] = []
    for vendor in sorted({device.vendor for device in devices}):
        if vendor == "nvidia":
            from numabind._vendors import nvidia as reader
        elif vendor == "amd":
            from numabind._vendors import amd as reader  # type: ignore[no-redef]
        else:
            continue
        own = tuple(device for device in devices if device.vendor == vendor)
        answer = reader.identify(root, own, runtime)
        found.update((device.pci, device) for device in answer.devices)
        nodes.update(answer.driver_nodes)
        problems += answer.problems
    return Identified(tuple(found.values()), nodes, tuple(problems))
