"""What is a vendor's own: what its driver knows beyond sysfs, and which variable hides devices.

A reader is a module, or a class of `others`, with

    assigned                            the variable that a scheduler writes, "" if none
    identify(root, devices, runtime)    the vendor's devices with UUID, index, name, partitions
    handles(devices, environ)           what the runtime counts: devices, or their parts
    visible(devices, environ)           those of them that this environment shows, in its order

None initialises a compute runtime. A reader is imported only when a device of its vendor is there.
"""

from __future__ import annotations

from numabind._handle import Handle, Visible
from numabind._machine import Device
from numabind._problems import Problem
from numabind._record import record
from numabind._sysfs import Root

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Protocol

    class Reader(Protocol):
        """What each vendor has."""

        @property
        def assigned(self) -> str: ...

        def identify(
            self, root: Root, devices: tuple[Device, ...], runtime: bool, /
        ) -> Identified: ...

        def handles(
            self, devices: tuple[Device, ...], environ: Mapping[str, str], /
        ) -> tuple[Handle, ...]: ...

        def visible(
            self, devices: tuple[Device, ...], environ: Mapping[str, str], /
        ) -> Visible: ...


@record
class Identified:
    """A vendor's devices with what its driver knows of them.

    `driver_nodes` and `driver_cpus` hold, by PCI address, the NUMA nodes and the CPUs that the
    driver thinks near.
    """

    devices: tuple[Device, ...]
    driver_nodes: dict[str, frozenset[int]]
    problems: tuple[Problem, ...] = ()
    driver_cpus: dict[str, frozenset[int]] | None = None


def reader(vendor: str) -> Reader:
    """The reader of a vendor's devices; a plain one, by PCI address, for those that have none."""
    if vendor == "nvidia":
        from numabind._vendors import nvidia

        return nvidia
    if vendor == "amd":
        from numabind._vendors import amd

        return amd
    if vendor == "intel":
        from numabind._vendors import intel

        return intel
    from numabind._vendors.others import BY_NAME, Plain

    return BY_NAME.get(vendor) or Plain()


def identify(root: Root, devices: tuple[Device, ...], runtime: bool) -> Identified:
    """Ask each vendor's driver about its devices; keep display adapters as they are.

    `runtime` allows management libraries (NVML) on the live machine; without it files alone speak.
    """
    found: dict[str, Device] = {device.pci: device for device in devices}
    nodes: dict[str, frozenset[int]] = {}
    cpus: dict[str, frozenset[int]] = {}
    problems: list[Problem] = []
    for vendor in sorted({device.vendor for device in devices if device.computes}):
        own = tuple(device for device in devices if device.vendor == vendor)
        answer = reader(vendor).identify(root, own, runtime)
        found.update((device.pci, device) for device in answer.devices)
        nodes.update(answer.driver_nodes)
        cpus.update(answer.driver_cpus or {})
        problems += answer.problems
    return Identified(tuple(found.values()), nodes, tuple(problems), cpus)
