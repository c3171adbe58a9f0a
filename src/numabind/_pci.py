"""PCI functions that can be a worker's device, and which NUMA node each hangs off.

    ls /sys/bus/pci/devices/0000:17:00.0
        class  device  driver  local_cpulist  local_cpus  numa_node  vendor ...

Reading needs no driver, so every accelerator of every vendor is seen, also where no NVML or ROCm is
installed. The rules for the node are in `place`.
"""

from __future__ import annotations

from numabind._address import bus_order, parse_address
from numabind._cpulist import format_list, parse_list, parse_mask
from numabind._errors import MachineError
from numabind._machine import Device, Nic, Node
from numabind._problems import Problem, problem
from numabind._record import record, replace
from numabind._sysfs import PCI, Root, parse_number

# PCI vendor ids (pcisig.com) of those whose devices workers use.
VENDORS = {
    0x10DE: "nvidia",
    0x1002: "amd",
    0x8086: "intel",
    0x1DA3: "habana",
    0x19E5: "huawei",
    0x1AE0: "google",
    0x1D0F: "amazon",
    0x1BCF: "nec",
    0x1E52: "tenstorrent",
    0x1FC1: "qualcomm",
    0x17CB: "qualcomm",
    0x9999: "metax",
    0x1ED5: "mthreads",
    0xCABC: "cambricon",
}
# Accelerators whose class is neither display nor accelerator: NEC calls its cards co-processors
# (0b40), AWS system peripherals (0880), Google's TPUs have none (ff00). By vendor, which devices;
# None is all.
_ODD_CLASSES = ("0x0b40", "0x0880", "0xff00")
_ODD = {
    0x1BCF: None,
    0x1D0F: (0x7064, 0x7164, 0x7264, 0x7364),
    0x1AE0: (0x0027, 0x005E, 0x0062, 0x0063, 0x006F),
}
# Makers of server-board and emulated display adapters: found, shown, never a worker's.
_DISPLAY_ONLY = {
    0x1A03: "aspeed",
    0x102B: "matrox",
    0x1234: "qemu",
    0x1AF4: "virtio",
    0x1B36: "redhat",
    0x1013: "cirrus",
    0x15AD: "vmware",
    0x1414: "microsoft",
    0x80EE: "virtualbox",
    0x126F: "silicon-motion",
    0x19A2: "emulex",
}


def parse_id(text: str) -> int:
    """A vendor, device or class number, "0x10de". ValueError otherwise."""
    number = parse_number(text)
    if not 0 <= number < 1 << 32:
        raise ValueError(f"{text!r:.40} is no PCI id")
    return number


def read_devices(root: Root, online: frozenset[int]) -> tuple[Device, ...]:
    """Every display (03xx) and accelerator (12xx) function, in bus order, not yet placed."""
    found = []
    for name in root.listing(PCI):
        base = f"{PCI}/{name}"
        text = root.text(f"{base}/class")
        if text is None:
            continue
        if text[:2] != "0x":
            raise MachineError(f"{root.path}{base}/class", f"not understood: {text!r:.40}")
        odd = text[:6] in _ODD_CLASSES and _is_odd(root, base)
        if text[2:4] not in ("03", "12") and not odd:
            continue
        try:
            pci = str(parse_address(name))
        except ValueError:
            continue  # not a device: nothing in the kernel makes such a name
        local = root.parse(f"{base}/local_cpulist", parse_list)
        if local is None:
            local = root.parse(f"{base}/local_cpus", parse_mask)
        vendor = root.parse(f"{base}/vendor", parse_id) or 0
        device = root.parse(f"{base}/device", parse_id) or 0
        found.append(
            Device(
                pci=pci,
                vendor=VENDORS.get(vendor) or _DISPLAY_ONLY.get(vendor) or f"0x{vendor:04x}",
                vendor_id=vendor,
                device_id=device,
                pci_class=root.parse(f"{base}/class", parse_id) or 0,
                computes=odd or _computes(vendor, device, text, pci),
                numa_node=root.parse(f"{base}/numa_node", parse_number),
                local_cpus=None if local is None else local & online,
                driver=root.link_name(f"{base}/driver"),
            )
        )
    found.sort(key=lambda device: bus_order(device.pci))
    return tuple(found)


def with_settings(root: Root, devices: tuple[Device, ...]) -> tuple[Device, ...]:
    """The devices with their kernel module's version and the lanes of their PCI link.

    Sources: Documentation/ABI/stable/sysfs-module; ABI/testing/sysfs-bus-pci, current_link_width,
    where 0 is "no link" and 255 what a device says that has fallen off the bus.
    """
    found = []
    for device in devices:
        lanes = root.parse(f"{PCI}/{device.pci}/current_link_width", _parse_lanes)
        version = root.text(f"sys/module/{device.driver}/version") if device.driver else None
        found.append(replace(device, driver_version=version or None, link_width=lanes))
    return tuple(found)


def _parse_lanes(text: str) -> int | None:
    """Nothing is placed by it, so what is no number of lanes is no error either."""
    return int(text) if text.isdecimal() and 0 < int(text) < 255 else None


def _is_odd(root: Root, base: str) -> bool:
    vendor = root.parse(f"{base}/vendor", parse_id) or 0
    if vendor not in _ODD:
        return False
    devices = _ODD[vendor]
    return devices is None or root.parse(f"{base}/device", parse_id) in devices


# What the kernel calls a function of a class: directories beside it, and those for RDMA.
_NAMED = {
    "0x02": (("infiniband", "net", "cxi"), ("infiniband", "cxi")),
    "0x0108": (("nvme",), ()),
}


def read_nics(root: Root, nodes: tuple[Node, ...], pci_class: str = "0x02") -> tuple[Nic, ...]:
    """Every function of a class, in bus order: network (02), or NVMe ("0x0108").

    On a machine of one node it is on that.
    """
    only = nodes[0].id if len(nodes) == 1 else None
    known = {node.id for node in nodes}
    folders, rdma = _NAMED[pci_class]
    found = []
    for name in root.listing(PCI):
        base = f"{PCI}/{name}"
        if (root.text(f"{base}/class") or "")[: len(pci_class)] != pci_class:
            continue
        try:
            pci = str(parse_address(name))
        except ValueError:
            continue
        node = root.parse(f"{base}/numa_node", parse_number)
        names = [n for folder in folders for n in root.listing(f"{base}/{folder}")]
        if pci_class == "0x0108":
            # nvme0's folder has its namespaces; a partition has a folder of its own below these.
            names += [n for c in tuple(names) for n in root.listing(f"{base}/nvme/{c}") if c in n]
        found.append(
            Nic(
                pci,
                node if node in known else only,
                tuple(names),
                root.parse(f"{base}/vendor", parse_id) or 0,
                root.parse(f"{base}/device", parse_id) or 0,
                any(root.listing(f"{base}/{folder}") for folder in rdma),
                read_bridges(root, pci),
            )
        )
    return tuple(sorted(found, key=lambda nic: bus_order(nic.pci)))


def read_bridges(root: Root, pci: str) -> tuple[str, ...]:
    """The host bridge and the bridges between it and a function, from the link in PCI.

    "../../../devices/pci0000:16/0000:16:01.0/0000:17:00.0" is ("pci0000:16", "0000:16:01.0").
    """
    way = root.link(f"{PCI}/{pci}") or ""
    parts = way.split("/")[:-1]
    first = next((i for i, part in enumerate(parts) if part.startswith("pci")), len(parts))
    return tuple(parts[first:])


def read_node_above(root: Root, pci: str) -> int | None:
    """The numa_node of the nearest bridge above a function that has one; None if none has.

    Firmware may place the root port or a switch, and not what is plugged into it.
    """
    for bridge in reversed(read_bridges(root, pci)[1:]):
        node = root.parse(f"{PCI}/{bridge}/numa_node", parse_number)
        if node is not None and node >= 0:
            return node
    return None


def is_intel_max(device_id: int) -> bool:
    """Whether an Intel GPU is of the Data Center GPU Max series, which has tiles."""
    return 0x0BD0 <= device_id <= 0x0BDB or device_id in (0x0B69, 0x0B6E)


def _computes(vendor: int, device: int, pci_class: str, pci: str) -> bool:
    if vendor == 0x8086:
        # The processor's own graphics and NPU sit on bus 0; a card can, too, within a VM.
        return bus_order(pci)[:2] != (0, 0) or is_intel_max(device)
    return pci_class[:4] == "0x12" or vendor in VENDORS


@record
class Override:
    """One line of a NUMABIND_MAP file: the device named `key` is near `cpus`, on `nodes`."""

    key: str
    nodes: tuple[int, ...] = ()
    cpus: frozenset[int] = frozenset()


def parse_map(text: str) -> tuple[Override, ...]:
    """Read a NUMABIND_MAP file. ValueError names the line at fault.

    One device a line, by PCI address or UUID, then its place; # starts a comment:

        0000:17:00.0   nodes=0
        GPU-5d0c7a10   cpus=0-31,64-95
    """
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if not _is_device_name(words[0]):
            raise ValueError(
                f"line {number}: {words[0]!r:.60} is no PCI address and no UUID (GPU-…)"
            )
        kind, equals, value = words[-1].partition("=")
        if len(words) != 2 or not equals or kind not in ("nodes", "cpus"):
            raise ValueError(
                f"line {number}: expected a GPU and nodes=LIST or cpus=LIST: {line!r:.60}"
            )
        try:
            ids = parse_list(value)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        if not ids:
            raise ValueError(f"line {number}: {kind}= names nothing")
        if kind == "nodes":
            found.append(Override(words[0], nodes=tuple(sorted(ids))))
        else:
            found.append(Override(words[0], cpus=ids))
    return tuple(found)


def _is_device_name(text: str) -> bool:
    try:
        parse_address(text)
    except ValueError:
        return text.lower().startswith("gpu-") and len(text) > len("gpu-")
    return True


def place(
    device: Device,
    nodes: tuple[Node, ...],
    online: frozenset[int],
    driver_nodes: frozenset[int] | None = None,
    override: Override | None = None,
    *,
    above: int | None = None,
) -> tuple[Device, tuple[Problem, ...]]:
    """Say which node a device hangs off, by the first rule that answers.

    1. `override` (NUMABIND_MAP): the person knows better than the firmware.
    2. numa_node, if it is an online node; a contradicting local_cpulist is reported.
    3. local_cpulist, if it is a proper subset of the CPUs (a device at -1 lists all of them).
    4. `above`, the node of the nearest PCI bridge above that has one (`read_node_above`).
    5. `driver_nodes` (NVML's memory or CPU affinity), if it is one node: "0-1" for all says
       nothing.
    6. The only node with CPUs, if there is one only.

    Else `node` stays None: an unknown node is never taken for node 0.
    """
    by_id = {node.id: node for node in nodes}
    local = device.local_cpus
    with_cpus = [node for node in nodes if node.cpus]
    problems: tuple[Problem, ...] = ()
    if override is not None:
        chosen = override.nodes or tuple(n.id for n in nodes if n.cpus & override.cpus)
        cpus = override.cpus or frozenset().union(*(by_id[n].cpus for n in chosen if n in by_id))
        one = chosen[0] if len(chosen) == 1 else None
        return (
            replace(
                device, node=one, node_source="map", near_nodes=chosen, local_cpus=cpus & online
            ),
            (),
        )
    if device.numa_node is not None and device.numa_node in by_id:
        number = device.numa_node
        own = by_id[number].cpus
        if local and local < online and own and not local & own:
            problems = (
                problem(
                    "locality-contradiction",
                    f"{device.pci}: numa_node says {number}, with CPUs {format_list(own)}, but "
                    f"local_cpulist says {format_list(local)}",
                ),
            )
        return (
            replace(device, node=number, node_source="numa_node", near_nodes=(number,)),
            problems,
        )
    if local and local < online and len(with_cpus) > 1:
        near = tuple(node.id for node in with_cpus if node.cpus & local)
        if near and len(near) < len(with_cpus):
            one = near[0] if len(near) == 1 else None
            return (
                replace(device, node=one, node_source="local_cpulist", near_nodes=near),
                (),
            )
    if above is not None and above in by_id:
        return replace(device, node=above, node_source="bridge", near_nodes=(above,)), ()
    if driver_nodes is not None and len(driver_nodes) == 1 and driver_nodes <= by_id.keys():
        (number,) = driver_nodes
        return replace(device, node=number, node_source="nvml", near_nodes=(number,)), ()
    if len(with_cpus) == 1:
        number = with_cpus[0].id
        return replace(device, node=number, node_source="only-node", near_nodes=(number,)), ()
    return device, ()
