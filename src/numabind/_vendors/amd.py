"""AMD: the kernel's KFD topology and the amdgpu driver's files. Never HIP or ROCr.

    cat /sys/class/kfd/kfd/topology/nodes/4/properties
        simd_count 304
        location_id 1280                    bus 05, slot 00, function 0; partition in bits 31:28
        domain 0
        drm_render_minor 128
        unique_id 4424516123432437713
    cat /sys/bus/pci/devices/0000:05:00.0/{unique_id,current_compute_partition,…_memory_partition}
        3d6b1a52b86bd7d1  CPX  NPS4

Each KFD node with SIMDs is one device to ROCm, in the order of the nodes; in DPX, QPX and CPX mode
a GPU has several (kfd_topology.c, kfd_topology_add_device). The kernel refuses the properties of
those that the device cgroup hides, and ROCm then does not count them (kfd_devcgroup_check). ROCm's
name for a GPU is "GPU-" and its unique_id as 16 hexadecimal digits.

Variables, after the sources of ROCr (amd_filter_device.cpp) and of HIP (rocdevice.cpp). Both lists
end at the first entry that names nothing. ROCR_VISIBLE_DEVICES comes first: numbers as C writes
them or UUIDs or unique beginnings; empty hides all; a repeated device ends the list.
HIP_VISIBLE_DEVICES, or CUDA_VISIBLE_DEVICES where that is empty, numbers what is left: plain
numbers without spaces, or UUIDs; empty is not set; a repeated device counts once.
"""

from __future__ import annotations

from numabind._errors import MachineError
from numabind._handle import Handle, Visible, in_driver_order, is_number, listed
from numabind._machine import Device, Partition
from numabind._record import record, replace
from numabind._sysfs import PCI, Root
from numabind._vendors import Identified

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

assigned = "HIP_VISIBLE_DEVICES"
KFD = "sys/class/kfd/kfd/topology/nodes"


@record
class _Agent:
    """One device as ROCm counts them: whose it is, and what KFD knows of it."""

    pci: str
    number: int
    index: int
    uuid: str
    minor: int | None


def identify(root: Root, devices: tuple[Device, ...], _runtime: bool) -> Identified:
    """UUID, index, render minor, name and partitions; from files alone, so no runtime is needed."""
    nodes = [name for name in root.listing("dev/dri") if name.startswith("renderD")]
    agents = read_kfd(root)
    if agents is not None and nodes:
        agents = [a for a in agents if a.minor is None or root.usable(f"dev/dri/renderD{a.minor}")]
        agents = [replace(agent, index=number) for number, agent in enumerate(agents)]
    found = []
    driven = 0
    for device in devices:
        base = f"{PCI}/{device.pci}"
        unique = _unique(root.text(f"{base}/unique_id"))
        own = [agent for agent in agents or () if agent.pci == device.pci]
        minor = own[0].minor if own else _render_minor(root, base)
        index = own[0].index if own else None
        usable = not nodes or minor is None or root.usable(f"dev/dri/renderD{minor}")
        if agents is None and device.driver == "amdgpu" and usable:
            # No KFD (an old capture, a kernel without it): bus order, which KFD follows.
            index, driven = driven, driven + 1
        modes = [root.text(f"{base}/current_{what}_partition") for what in ("compute", "memory")]
        found.append(
            replace(
                device,
                uuid=unique or (own[0].uuid if len(own) == 1 else "") or None,
                minor=minor,
                name=root.text(f"{base}/product_name") or None,
                index=index,
                partitioning="/".join(mode for mode in modes if mode) or None,
                partitions=_partitions(own),
            )
        )
    return Identified(tuple(found), {})


def _partitions(own: list[_Agent]) -> tuple[Partition, ...]:
    if len(own) < 2:
        return ()
    uuids = [agent.uuid for agent in own]
    return tuple(
        Partition(
            agent.uuid if uuids.count(agent.uuid) == 1 else "",
            number=number,
            index=agent.index,
            minor=agent.minor,
        )
        for number, agent in enumerate(own)
    )


def _unique(text: str | None) -> str:
    """ "GPU-3d6b1a52b86bd7d1" of the file's text; "" for none or zero."""
    try:
        number = int(text or "0", 16)
    except ValueError:
        return ""
    return f"GPU-{number:016x}" if number > 0 else ""


def read_kfd(root: Root) -> list[_Agent] | None:
    """The GPUs in KFD's topology that this process may see, in order; None without KFD."""
    numbers = sorted(int(name) for name in root.listing(KFD) if is_number(name))
    if not numbers:
        return None
    found: list[_Agent] = []
    for number in numbers:
        try:
            text = root.text(f"{KFD}/{number}/properties")
        except MachineError:
            continue  # EPERM: the device cgroup hides it, and ROCm does not count it
        facts = parse_properties(text or "")
        if not facts.get("simd_count"):
            continue
        place = facts.get("location_id", 0)
        unique = facts.get("unique_id", 0)
        found.append(
            _Agent(
                _address(facts),
                place >> 28,
                len(found),
                f"GPU-{unique:016x}" if unique else "",
                facts.get("drm_render_minor") or None,
            )
        )
    return found


def read_processes(root: Root) -> dict[int, frozenset[str]]:
    """The PCI addresses of the GPUs on which each process has memory, of all users.

        cat /sys/class/kfd/kfd/proc/4711/vram_51115          (kfd_process.c, kfd_procfs_show)
            1073741824

    The kernel numbers processes here as the host does. {} without KFD.
    """
    listed = "sys/class/kfd/kfd/proc"
    numbers = [int(name) for name in root.listing(listed) if is_number(name)]
    if not numbers:
        return {}
    pci_of = {}
    for node in root.listing(KFD):
        try:
            name = root.text(f"{KFD}/{node}/gpu_id")
            facts = parse_properties(root.text(f"{KFD}/{node}/properties") or "")
        except MachineError:
            continue
        if name and facts.get("simd_count"):
            pci_of[name] = _address(facts)
    found = {}
    for number in numbers:
        held = {
            pci
            for name, pci in pci_of.items()
            if (root.text(f"{listed}/{number}/vram_{name}") or "0").strip("0")
        }
        if held:
            found[number] = frozenset(held)
    return found


def _address(facts: dict[str, int]) -> str:
    place = facts.get("location_id", 0)
    bus = f"{facts.get('domain', 0):04x}:{place >> 8 & 255:02x}:{place >> 3 & 31:02x}"
    return f"{bus}.{place & 7:x}"


def parse_properties(text: str) -> dict[str, int]:
    """The "name number" lines of a KFD node's properties; other lines are left out."""
    pairs = (line.split() for line in text.splitlines())
    return {
        words[0]: int(words[1])
        for words in pairs
        if len(words) == 2 and words[1].isascii() and words[1].isdigit() and len(words[1]) < 21
    }


def _render_minor(root: Root, base: str) -> int | None:
    for name in root.listing(f"{base}/drm"):
        tail = name.removeprefix("renderD")
        if tail != name and is_number(tail):
            return int(tail)
    return None


def handles(devices: tuple[Device, ...], _environ: Mapping[str, str]) -> tuple[Handle, ...]:
    """The devices, or the partitions of those that are divided, in ROCm's order."""
    found: list[Handle] = []
    for device in devices:
        found += [Handle(device, part) for part in device.partitions] or [Handle(device)]
    return in_driver_order(tuple(found))


def visible(devices: tuple[Device, ...], environ: Mapping[str, str]) -> Visible:
    """What ROCr leaves, then what HIP leaves of that."""
    left = handles(devices, environ)
    source = None
    rocr = environ.get("ROCR_VISIBLE_DEVICES")
    if rocr is not None:
        left, source = _rocr(rocr, left), "ROCR_VISIBLE_DEVICES"
    for variable in (assigned, "CUDA_VISIBLE_DEVICES"):
        value = environ.get(variable, "")
        if value:
            every = left
            left = listed_by_hip(value, every)
            source = variable
            break
    return Visible(left, source)


def _rocr(value: str, every: tuple[Handle, ...]) -> tuple[Handle, ...]:
    chosen: list[Handle] = []
    for entry in value.split(",")[: len(every)]:
        handle = _rocr_entry(entry.strip().upper(), every)
        if handle is None or handle in chosen:
            break
        chosen.append(handle)
    return tuple(chosen)


def _rocr_entry(entry: str, every: tuple[Handle, ...]) -> Handle | None:
    if entry[:1] == "G":
        known = [handle for handle in every if (handle.uuid or "").upper().startswith(entry)]
        return known[0] if 5 <= len(entry) <= 20 and len(known) == 1 else None
    try:
        # strtol's base 0: 0x1 is hexadecimal, 010 octal.
        octal = len(entry) > 1 and entry[0] == "0" and entry[1] not in "xX"
        number = int(entry, 8 if octal else 0) if entry.isascii() and len(entry) < 12 else -1
    except ValueError:
        return None
    return every[number] if 0 <= number < len(every) else None


def listed_by_hip(value: str, every: tuple[Handle, ...]) -> tuple[Handle, ...]:
    """What HIP_VISIBLE_DEVICES chooses of the devices that ROCr left."""

    def find(entry: str) -> Handle | None:
        if "GPU-" in entry:
            return next((h for h in every if entry in (h.uuid or "")), None)
        plain = is_number(entry) and str(int(entry)) == entry
        return every[int(entry)] if plain and int(entry) < len(every) else None

    # HIP takes no spaces: an entry with one names nothing.
    cut = next((i for i, entry in enumerate(value.split(",")) if entry != entry.strip()), None)
    entries = value.split(",")[:cut]
    return listed(",".join(entries), every, find) if entries else ()
