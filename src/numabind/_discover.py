"""Joins the readers into a Machine; what they contradict each other in becomes a problem."""

from __future__ import annotations

import os

from numabind._address import parse_address
from numabind._cpulist import format_list
from numabind._errors import MachineError, UsageError
from numabind._machine import Allowed, Device, Machine, Node, Partition
from numabind._pci import (
    Override,
    parse_map,
    place,
    read_bridges,
    read_devices,
    read_nics,
    read_node_above,
    with_settings,
)
from numabind._problems import Problem, problem
from numabind._record import record, replace
from numabind._sysfs import (
    NODE,
    NVIDIA,
    PCI,
    Root,
    parse_meminfo,
    read_allowed,
    read_allowed_nodes,
    read_cpus,
    read_host,
    read_nodes,
    read_offline,
    read_online,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


@record
class Questions:
    """What the caller wants to know; the rest is not read.

    `caches`: L3 groups. `network`: NICs, disks and the PCI tree. `runtime`: NVML may
    be asked (slow: it loads the driver's library). `settings`: the drivers' versions, the width of
    links, kernel.numa_balancing. `overrides`: the lines of NUMABIND_MAP.
    """

    caches: bool = True
    network: bool = True
    runtime: bool = True
    settings: bool = True
    overrides: tuple[Override, ...] = ()


def discover(root: str | os.PathLike[str] = "/", questions: Questions | None = None) -> Machine:
    """Read a machine: its nodes, CPUs, devices, and what this process may use of them.

    `root` is a directory laid out like / (a captured tree, a container's root); "/" is this
    machine, where NVML is asked too if nvidia-ml-py is installed. `questions` narrows the reading.
    No CUDA, HIP or other compute runtime is initialised and nothing is changed.

    Raises MachineError, naming the file, for what is not as the kernel writes it.
    """
    questions = questions or Questions()
    place_to_read = Root(os.fspath(root))
    online = read_online(place_to_read)
    bare = read_devices(place_to_read, online)
    devices, said = bare, tuple[Problem, ...]()
    driver_nodes, driver_cpus = dict[str, frozenset[int]](), dict[str, frozenset[int]]()
    if bare:
        from numabind._vendors import identify

        known = identify(place_to_read, bare, questions.runtime)
        devices, said = known.devices, known.problems
        driver_nodes, driver_cpus = known.driver_nodes, known.driver_cpus or {}
        if questions.settings:
            devices = with_settings(place_to_read, devices)
    own_memory = frozenset(d.memory_node for d in devices if d.memory_node is not None)
    if not own_memory and place_to_read.exists(NVIDIA):
        from numabind._vendors.nvidia import read_proc

        facts = read_proc(place_to_read).values()
        own_memory = frozenset(f.memory_node for f in facts if f.memory_node is not None)
    nodes, overlaps = without_overlaps(read_nodes(place_to_read, online, own_memory))
    numa = bool(nodes)
    if not numa:
        _check_not_hidden(place_to_read, bare)
        memory = place_to_read.parse("proc/meminfo", parse_meminfo)
        nodes = (Node(0, online, memory, (10,), "cpu"),)
    allowed = read_allowed(place_to_read, online, nodes)
    driver_nodes = nodes_by_driver(driver_nodes, driver_cpus, nodes, allowed.cpus)
    above = {
        device.pci: read_node_above(place_to_read, device.pci)
        for device in devices
        if device.numa_node is None or device.numa_node < 0
    }
    devices, problems = _placed(devices, nodes, online, driver_nodes, questions, above=above)
    if questions.network:
        devices = tuple(
            replace(device, bridges=read_bridges(place_to_read, device.pci)) for device in devices
        )
    return Machine(
        nodes=nodes,
        cpus=read_cpus(place_to_read, online, nodes, questions.caches),
        devices=devices,
        allowed=allowed,
        host=read_host(place_to_read, numa, questions.settings),
        offline_cpus=read_offline(place_to_read, online),
        nics=read_nics(place_to_read, nodes) if questions.network else (),
        problems=said + overlaps + problems,
        disks=read_nics(place_to_read, nodes, "0x0108") if questions.network else (),
    )


def _check_not_hidden(root: Root, devices: tuple[Device, ...]) -> None:
    """MachineError where /sys shows no nodes, though the kernel has several (a masked /sys).

    Taken for a machine of one node, everything would be put on node 0.
    """
    mems = read_allowed_nodes(root) or frozenset()
    named = {d.numa_node for d in devices if d.numa_node is not None}
    several = sorted(node for node in mems | named if node > 0)
    if several:
        raise MachineError(
            root.path + NODE,
            f"is not there, though this kernel has a node {several[0]}",
            "mount /sys into the container, read-only and whole",
        )


def nodes_by_driver(
    told: Mapping[str, frozenset[int]],
    cpus: Mapping[str, frozenset[int]],
    nodes: tuple[Node, ...],
    allowed: frozenset[int],
) -> dict[str, frozenset[int]]:
    """Which nodes the driver thinks near, by PCI address: as it says, else by the CPUs it names.

    NVML leaves out CPUs that this process may not use, so if it names all that are left, that says
    nothing. Pure.
    """
    found = dict(told)
    for pci, near in cpus.items():
        if len(found.get(pci, ())) != 1 and near & allowed < allowed:
            found[pci] = frozenset(node.id for node in nodes if node.cpus & near)
    return found


def without_overlaps(
    nodes: tuple[Node, ...],
) -> tuple[tuple[Node, ...], tuple[Problem, ...]]:
    """Leave out nodes that share some CPUs with an earlier one (broken firmware; hwloc does too).

    Nodes with exactly the same CPUs stay: numa=fake makes them on purpose.
    """
    kept: list[Node] = []
    problems: list[Problem] = []
    owner: dict[int, Node] = {}
    for node in nodes:
        first = next((owner[cpu] for cpu in node.cpus if cpu in owner), None)
        if first is not None and first.cpus != node.cpus:
            cause = (
                f"node {node.id} has CPUs {format_list(node.cpus)}, node {first.id} some of them"
            )
            problems.append(problem("overlapping-nodes", cause))
            continue
        kept.append(node)
        owner.update(dict.fromkeys(node.cpus, node))
    if len(kept) == len(nodes):
        return nodes, ()
    # The kernel's distance lines have a column for every node, the dropped ones too.
    stay = [i for i, node in enumerate(nodes) if node in kept]
    cut = (
        replace(node, distances=tuple(node.distances[i] for i in stay))
        if len(node.distances) == len(nodes)
        else node
        for node in kept
    )
    return tuple(cut), tuple(problems)


def _placed(
    devices: tuple[Device, ...],
    nodes: tuple[Node, ...],
    online: frozenset[int],
    driver_nodes: Mapping[str, frozenset[int]],
    questions: Questions,
    *,
    above: Mapping[str, int | None],
) -> tuple[tuple[Device, ...], tuple[Problem, ...]]:
    placed: list[Device] = []
    problems: list[Problem] = []
    used: list[Override | None] = []
    for device in devices:
        override = find_override(device, questions.overrides)
        used.append(override)
        told, bridge = driver_nodes.get(device.pci), above.get(device.pci)
        found, said = place(device, nodes, online, told, override, above=bridge)
        placed.append(found)
        problems += said
    for override in questions.overrides:
        _check_override(override, nodes, online)
        named = [d.pci for d in devices if find_override(d, (override,)) is not None]
        if len(named) > 1:
            raise UsageError(
                f"NUMABIND_MAP: {override.key} names {len(named)} GPUs: give all of it"
            )
        if override not in used:
            cause = f"NUMABIND_MAP has a line for {override.key}, which no device here answers to"
            problems.append(problem("map-unmatched", cause))
    return tuple(placed), tuple(problems)


def _check_override(override: Override, nodes: tuple[Node, ...], online: frozenset[int]) -> None:
    strangers = set(override.nodes) - {node.id for node in nodes}
    if strangers:
        raise UsageError(
            f"NUMABIND_MAP: {override.key}: there is no node {min(strangers)} here; the nodes are "
            f"{format_list({node.id for node in nodes})}"
        )
    if override.cpus and not override.cpus & online:
        raise UsageError(
            f"NUMABIND_MAP: {override.key}: none of the CPUs {format_list(override.cpus)} is online"
        )


def find_override(device: Device, overrides: tuple[Override, ...]) -> Override | None:
    """The last line of a NUMABIND_MAP file that names this device by PCI address or UUID."""
    found = None
    for override in overrides:
        key = override.key.lower()
        try:
            same = str(parse_address(key)) == device.pci
        except ValueError:
            same = bool(device.uuid) and str(device.uuid).lower().startswith(key)
        if same:
            found = override
    return found


def read_overrides(path: str) -> tuple[Override, ...]:
    """The lines of a NUMABIND_MAP file. UsageError, naming file and line, if it can't be used."""
    from numabind._files import read_text

    try:
        return parse_map(read_text(path))
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or error
        raise UsageError(
            f"NUMABIND_MAP={path}: {cause} (a line reads: 0000:17:00.0 nodes=0)"
        ) from error


def discover_here(environ: Mapping[str, str], questions: Questions) -> Machine:
    """The live machine as the environment has it: NUMABIND_SNAPSHOT and NUMABIND_MAP count.

    A snapshot that is not of this machine and boot is ignored with the problem `snapshot-unfit`.
    What the process may use is always read afresh. Raises as `discover` and `read_overrides` do.
    """
    path = environ.get("NUMABIND_MAP")
    if path:
        questions = replace(questions, overrides=read_overrides(path))
    snapshot = environ.get("NUMABIND_SNAPSHOT")
    if not snapshot:
        return discover("/", questions)
    try:
        machine = Machine.load(snapshot)
    except MachineError as error:
        raise UsageError(f"NUMABIND_SNAPSHOT: {error}") from error
    here = Root("/")
    cause = unfit(machine, here)
    if cause is not None:
        said = problem("snapshot-unfit", f"NUMABIND_SNAPSHOT={snapshot}: {cause}")
        machine = discover("/", questions)
        return replace(machine, problems=(said, *machine.problems))
    online = frozenset(cpu.id for cpu in machine.cpus)
    # The snapshot's places stay, but for what NUMABIND_MAP names.
    again, said_of_map = _placed(machine.devices, machine.nodes, online, {}, questions, above={})
    devices = tuple(
        new if new.node_source == "map" else old
        for old, new in zip(machine.devices, again, strict=True)
    )
    about_map = tuple(p for p in said_of_map if p.name == "map-unmatched")
    if machine.host.boot_id is not None:
        devices = as_shown_here(devices, here)
    return replace(
        machine,
        devices=devices,
        problems=machine.problems + about_map,
        allowed=_allowed_within(here, machine, online),
    )


def as_shown_here(devices: tuple[Device, ...], here: Root) -> tuple[Device, ...]:
    """Devices of a snapshot with the numbers that the driver gives them in this process.

    A device cgroup (Slurm's ConstrainDevices) hides some from a job, and the snapshot may have been
    taken outside of it, or inside another.
    """
    from numabind._vendors import identify

    now = {device.pci: device for device in identify(here, devices, runtime=False).devices}
    return tuple(
        replace(device, index=now[device.pci].index, partitions=_as_now(device, now[device.pci]))
        for device in devices
    )


def _as_now(old: Device, new: Device) -> tuple[Partition, ...]:
    """Partitions as the files have them; MIG instances, which only NVML knows, as they were."""
    return old.partitions if old.vendor == "nvidia" else new.partitions


def _allowed_within(here: Root, machine: Machine, online: frozenset[int]) -> Allowed:
    """What this process may use of the machine in a snapshot.

    A hand-made snapshot may have more nodes than the kernel; those are not the kernel's to refuse,
    so only nodes that the kernel knows are cut by Mems_allowed.
    """
    allowed = read_allowed(here, online, machine.nodes)
    kernels = frozenset(node.id for node in read_nodes(here, read_online(here))) or frozenset({0})
    pretended = frozenset(node.id for node in machine.nodes) - kernels
    return replace(allowed, nodes=allowed.nodes | pretended)


def unfit(machine: Machine, here: Root) -> str | None:
    """Why a snapshot is not of this machine and boot; None if it is.

    A snapshot without a boot id was edited by hand to describe a machine that the hardware does
    not; it is believed as long as its CPUs exist.
    """
    online = read_online(here)
    strangers = frozenset(cpu.id for cpu in machine.cpus) - online
    if strangers:
        return f"it has {len(strangers)} CPUs that are not online here"
    wanted = machine.host.boot_id
    if wanted is None:
        return None
    boot = here.text("proc/sys/kernel/random/boot_id")
    if wanted != boot:
        return f"its boot id is {wanted}, this boot's is {boot}"
    missing = [d.pci for d in machine.devices if not here.exists(f"{PCI}/{d.pci}")]
    if missing:
        return f"its device {missing[0]} is not on this machine"
    present = frozenset(d.pci for d in read_devices(here, online))
    added = present - {d.pci for d in machine.devices}
    if added:
        return f"this machine has {min(added)}, which it lacks"
    from numabind._vendors.nvidia import read_proc

    facts = read_proc(here)
    for device in machine.devices:
        uuid = facts[device.pci].uuid if device.pci in facts else None
        if uuid is not None and device.uuid is not None and uuid != device.uuid:
            return f"{device.pci} is {uuid} here and {device.uuid} in it"
    return None


def anonymous(machine: Machine) -> Machine:
    """The machine without what names it: host name, boot id, UUIDs. Its shape stays."""
    devices = tuple(
        replace(
            device,
            uuid=None,
            partitions=tuple(
                replace(part, uuid=f"MIG-{number}" if part.uuid.startswith("MIG-") else "")
                for number, part in enumerate(device.partitions)
            ),
        )
        for device in machine.devices
    )
    # Not None: a snapshot without a boot id is believed on any machine that has its CPUs. Problems
    # quote paths, UUIDs and boot ids.
    host = replace(machine.host, name=None, boot_id="anonymized")
    return replace(machine, devices=devices, host=host, problems=())
