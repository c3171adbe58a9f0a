"""Every path of the system that numabind reads, relative to a root.

`read_*` touches files, `parse_*` never does. A missing file is None (unknown); a file whose text is
not what the kernel writes is a MachineError that names it. Sources: Documentation/ABI/stable/
sysfs-devices-node, ABI/stable/sysfs-devices-system-cpu, ABI/testing/sysfs-bus-pci, cgroup-v2.rst,
proc_pid_status(5).

Each fact is read once for the set that shares it: one sibling list for a core, one package list for
a package, one cache directory for an L3 group. That keeps 384 CPUs at some 700 small reads.
"""

from __future__ import annotations

import os
import sys

from numabind._cpulist import parse_list, parse_mask
from numabind._errors import MachineError
from numabind._machine import Allowed, Cpu, Host, Node

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")

CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"
PCI = "sys/bus/pci/devices"
NVIDIA = "proc/driver/nvidia/gpus"
# Files of sysfs never exceed one page, cpulists of pathological machines a few.
LONGEST = 1 << 16
_GONE = (2, 6, 19, 20, 40)  # ENOENT, ENXIO, ENODEV, ENOTDIR, ELOOP: not there (any more)


class Root:
    """A directory that looks like / of a Linux machine; "/" is this machine."""

    def __init__(self, path: str = "/") -> None:
        self.path = path.rstrip("/") + "/"
        self.live = os.path.realpath(path) == "/"

    def text(self, path: str, most: int = LONGEST) -> str | None:
        """The text of a file, stripped; None if it is not there. MachineError if unreadable.

        `most` bytes are read at once: the kernel makes some files piece by piece, at a price.
        """
        full = self.path + path
        try:
            handle = os.open(full, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                data = os.read(handle, most)
            finally:
                os.close(handle)
        except OSError as error:
            if error.errno in _GONE:
                return None
            raise MachineError(full, f"can't be read: {error.strerror}") from error
        # Process, host and cgroup names may hold any bytes; the parsers refuse them elsewhere.
        return data.decode("utf-8", "surrogateescape").strip("\0 \t\n")

    def parse(self, path: str, parser: Callable[[str], T]) -> T | None:
        """`parser` applied to the file's text; None if not there; MachineError if it can't."""
        text = self.text(path)
        if text is None:
            return None
        if not text.isascii():
            raise MachineError(self.path + path, "holds bytes that no kernel writes there")
        try:
            return parser(text)
        except ValueError as error:
            raise MachineError(self.path + path, f"not understood: {error}") from None

    def listing(self, path: str) -> list[str]:
        """The names in a directory, sorted; [] if it is not there."""
        try:
            return sorted(os.listdir(self.path + path))
        except OSError as error:
            if error.errno in _GONE:
                return []
            raise MachineError(self.path + path, f"can't be listed: {error.strerror}") from error

    def exists(self, path: str) -> bool:
        """Whether a path is there."""
        return os.path.exists(self.path + path)

    def usable(self, path: str) -> bool:
        """Whether this process may open a device file for reading and writing."""
        return os.access(self.path + path, os.R_OK | os.W_OK)

    def link_name(self, path: str) -> str | None:
        """The last part of a symbolic link's target, or None."""
        target = self.link(path)
        return None if target is None else os.path.basename(target)

    def link(self, path: str) -> str | None:
        """A symbolic link's target as it is written, or None."""
        try:
            return os.readlink(self.path + path)
        except OSError:
            return None


def parse_number(text: str) -> int:
    """A decimal or 0x number as sysfs writes one. ValueError otherwise."""
    number = int(text, 16) if text[:2] == "0x" else int(text)
    if not -1 <= number < 1 << 63:
        _no(f"{text!r:.40} is no number that the kernel writes")
    return number


def parse_size(text: str) -> int:
    """A cache size, "32768K", in bytes. ValueError otherwise."""
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 0)
    return int(text[:-1]) * unit if unit else int(text)


def parse_distances(text: str) -> tuple[int, ...]:
    """A node's distance line, "10 21". ValueError for anything but numbers."""
    distances = tuple(parse_number(word) for word in text.split())
    return distances if min(distances, default=0) >= 0 else (_no("a negative distance"),)


def parse_meminfo(text: str) -> int:
    """The bytes of "Node 0 MemTotal:  263796304 kB" in a node's meminfo. ValueError without it."""
    for line in text.splitlines():
        _, found, after = line.partition("MemTotal:")
        if found:
            kibibytes = parse_number(after.split()[0]) if after.split() else -1
            if not 0 <= kibibytes < 1 << 50:
                _no("MemTotal is no size")
            return kibibytes * 1024
    return _no("no MemTotal line")


def parse_status(text: str) -> dict[str, str]:
    """/proc/PID/status as a table of its "Name:\tvalue" lines."""
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, colon, value in pairs if colon}


def parse_cpu_max(text: str) -> float | None:
    """The CPUs of cgroup v2's cpu.max, "max 100000" or "400000 100000"; None is no limit."""
    words = text.split()
    if not 1 <= len(words) <= 2:
        return _no("expected QUOTA PERIOD")
    if words[0] == "max":
        return None
    period = parse_number(words[1]) if len(words) == 2 else 100000
    quota = parse_number(words[0])
    if quota <= 0 or period <= 0:
        return _no("quota and period must be positive")
    return quota / period


def _no(cause: str) -> int:
    raise ValueError(cause)


def _numbered(names: list[str], stem: str) -> list[int]:
    """The numbers N of the names stemN, sorted."""
    cut = len(stem)
    tails = (name[cut:] for name in names if name.startswith(stem))
    return sorted(int(tail) for tail in tails if tail.isascii() and tail.isdigit())


def read_online(root: Root) -> frozenset[int]:
    """The online CPUs. MachineError if the root shows no CPUs at all."""
    online = root.parse(f"{CPU}/online", parse_list)
    if online:
        return online
    found = frozenset(
        number
        for number in _numbered(root.listing(CPU), "cpu")
        if root.text(f"{CPU}/cpu{number}/online") != "0"
    )
    if not found:
        raise MachineError(
            root.path + CPU, "shows no CPU", "is this the root of a Linux machine, with /sys?"
        )
    return found


def read_offline(root: Root, online: frozenset[int]) -> frozenset[int]:
    """The CPUs that are present but offline."""
    present = root.parse(f"{CPU}/present", parse_list)
    if present is None:
        present = frozenset(_numbered(root.listing(CPU), "cpu"))
    return present - online


def read_isolated(root: Root) -> frozenset[int]:
    """The CPUs that the scheduler leaves alone (isolcpus=); a process is born without them."""
    return root.parse(f"{CPU}/isolated", parse_list) or frozenset()


def read_nodes(
    root: Root, online: frozenset[int], gpu_nodes: frozenset[int] = frozenset()
) -> tuple[Node, ...]:
    """The online NUMA nodes, by number. () for a kernel without NUMA.

    `gpu_nodes` are those that drivers name as a GPU's own memory.
    """
    numbers = root.parse(f"{NODE}/online", parse_list)
    there = _numbered(root.listing(NODE), "node")
    wanted = there if numbers is None else [number for number in there if number in numbers]
    nodes = []
    for number in wanted:
        base = f"{NODE}/node{number}"
        cpus = root.parse(f"{base}/cpulist", parse_list)
        if cpus is None:
            cpus = root.parse(f"{base}/cpumap", parse_mask)
        if cpus is None:
            if not root.exists(base):
                continue  # unplugged since the listing
            raise MachineError(root.path + base, "has neither cpulist nor cpumap")
        cpus &= online
        kind = "cpu" if cpus else "gpu" if number in gpu_nodes else "memory"
        nodes.append(
            Node(
                number,
                cpus,
                root.parse(f"{base}/meminfo", parse_meminfo),
                root.parse(f"{base}/distance", parse_distances) or (),
                kind,
            )
        )
    return tuple(nodes)


def read_cpus(
    root: Root, online: frozenset[int], nodes: tuple[Node, ...], caches: bool
) -> tuple[Cpu, ...]:
    """The online CPUs with node, package, core and, if `caches`, last-level cache group."""
    node_of = {cpu: node.id for node in reversed(nodes) for cpu in node.cpus}
    core_of: dict[int, int | None] = {}
    package_of: dict[int, int | None] = {}
    l3_of: dict[int, int | None] = {}
    cpus = []
    for cpu in sorted(online):
        topology = f"{CPU}/cpu{cpu}/topology"
        if cpu not in core_of:
            core = _shared(root, topology, ("thread_siblings_list", "thread_siblings"), cpu)
            for sibling in core & online:
                core_of[sibling] = min(core & online)
            core_of.setdefault(cpu, None)
        if cpu not in package_of:
            package = root.parse(f"{topology}/physical_package_id", parse_number)
            package = None if package is None or package < 0 else package
            package_of[cpu] = package
            # Without the list (very old kernels) each CPU is asked for itself.
            names = ("package_cpus_list", "core_siblings_list", "core_siblings")
            if package is not None:
                for sibling in _shared(root, topology, names, cpu) & online:
                    package_of[sibling] = package
        if caches and cpu not in l3_of:
            group = read_last_level_group(root, cpu) & online
            for sibling in group:
                l3_of[sibling] = min(group)
        cpus.append(Cpu(cpu, node_of.get(cpu), package_of[cpu], core_of[cpu], l3_of.get(cpu)))
    return tuple(cpus)


def _shared(root: Root, base: str, names: tuple[str, ...], cpu: int) -> frozenset[int]:
    """The set in the first of these files that is there and holds `cpu`; else the empty set."""
    for name in names:
        parser = parse_list if name.endswith("_list") else parse_mask
        found = root.parse(f"{base}/{name}", parser)
        if found and cpu in found:
            return found
    return frozenset()


def read_last_level_group(root: Root, cpu: int) -> frozenset[int]:
    """The CPUs that share this one's last data or unified cache; the empty set if unknown.

    ls /sys/devices/system/cpu/cpu0/cache/index3:
        id  level  shared_cpu_list  shared_cpu_map  size  type  ways_of_associativity ...
    """
    base = f"{CPU}/cpu{cpu}/cache"
    best = -1
    group: frozenset[int] = frozenset()
    for number in reversed(_numbered(root.listing(base), "index")):
        level = root.parse(f"{base}/index{number}/level", parse_number)
        if level is None or level <= best:
            continue
        if root.text(f"{base}/index{number}/type") not in ("Data", "Unified"):
            continue
        names = ("shared_cpu_list", "shared_cpu_map")
        found = _shared(root, f"{base}/index{number}", names, cpu)
        if found:
            best, group = level, found
    return group


def read_last_level_bytes(root: Root, cpu: int) -> int | None:
    """The size of this CPU's last data or unified cache; None if unknown."""
    base = f"{CPU}/cpu{cpu}/cache"
    sizes = {
        level: root.parse(f"{base}/index{number}/size", parse_size)
        for number in _numbered(root.listing(base), "index")
        if (level := root.parse(f"{base}/index{number}/level", parse_number)) is not None
        and root.text(f"{base}/index{number}/type") in ("Data", "Unified")
    }
    return sizes[max(sizes)] if sizes else None


def read_free_bytes(root: Root, node: int, numa: bool = True) -> int | None:
    """The free memory of a node, or of a kernel without NUMA; None if unknown."""

    def parse(text: str) -> int:
        words = text.partition("MemFree:")[2].split()
        return parse_number(words[0]) * 1024 if words else _no("no MemFree line")

    return root.parse(f"{NODE}/node{node}/meminfo" if numa else "proc/meminfo", parse)


def read_allowed(root: Root, online: frozenset[int], nodes: tuple[Node, ...]) -> Allowed:
    """What the process may use, from its status file and cgroup; everything where unknown."""
    text = root.text("proc/self/status")
    status = parse_status(text or "")
    name = "proc/self/status"
    cpus = _status_set(root, name, status, "Cpus_allowed") or online
    if root.live and not status:
        cpus = frozenset(os.sched_getaffinity(0))  # no /proc: at least the calling thread's
    mems = _status_set(root, name, status, "Mems_allowed")
    known = frozenset(node.id for node in nodes)
    return Allowed(cpus & online, known if mems is None else mems & known, read_cpu_quota(root))


def read_allowed_nodes(root: Root) -> frozenset[int] | None:
    """Mems_allowed of this process, whether or not such nodes can be seen; None where unknown."""
    status = parse_status(root.text("proc/self/status") or "")
    return _status_set(root, "proc/self/status", status, "Mems_allowed")


def _status_set(root: Root, path: str, status: dict[str, str], name: str) -> frozenset[int] | None:
    try:
        if f"{name}_list" in status:
            return parse_list(status[f"{name}_list"])
        return parse_mask(status[name]) if name in status else None
    except ValueError as error:
        raise MachineError(root.path + path, f"{name} not understood: {error}") from None


def read_cpu_quota(root: Root) -> float | None:
    """The tightest CPU quota of this process's cgroup and its parents, in CPUs; None is none."""
    quotas: list[float] = []
    for directory, version2 in cgroups(root, "cpu"):
        quota = _quota_v2(root, directory) if version2 else _quota_v1(root, directory)
        if quota is not None:
            quotas.append(quota)
    return min(quotas) if quotas else None


def read_cpuset(root: Root) -> frozenset[int] | None:
    """The CPUs that this process's cgroup lets it have; None where no cgroup says."""
    for directory, version2 in cgroups(root, "cpuset"):
        names = ("cpuset.cpus.effective",) if version2 else ("cpuset.effective_cpus", "cpuset.cpus")
        for name in names:
            found = root.parse(f"{directory}/{name}", parse_list)
            if found:
                return found
    return None


def cgroups(root: Root, controller: str, process: str = "self") -> list[tuple[str, bool]]:
    """The directories of a process's cgroup and its parents, and whether they are version 2."""
    found: list[tuple[str, bool]] = []
    for line in (root.text(f"proc/{process}/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        version2 = number == "0" and not controllers
        if not version2 and controller not in controllers.split(","):
            continue
        parts = [part for part in path.split("/") if part]
        if ".." in parts:
            parts = []  # a cgroup outside this namespace: only the mounted root can be seen
        top = ["sys/fs/cgroup", *([] if version2 else [controllers])]
        for depth in range(len(parts), -1, -1):
            found.append(("/".join([*top, *parts[:depth]]), version2))
    return found


def _quota_v2(root: Root, directory: str) -> float | None:
    return root.parse(f"{directory}/cpu.max", parse_cpu_max)


def _quota_v1(root: Root, directory: str) -> float | None:
    quota = root.parse(f"{directory}/cpu.cfs_quota_us", parse_number)
    period = root.parse(f"{directory}/cpu.cfs_period_us", parse_number)
    return quota / period if quota and period and quota > 0 and period > 0 else None


def read_host(root: Root, numa: bool, settings: bool = False) -> Host:
    """Name, kernel and boot id of the machine; with `settings` also kernel.numa_balancing."""
    name = root.text("proc/sys/kernel/hostname")
    kernel = root.text("proc/sys/kernel/osrelease")
    boot = root.text("proc/sys/kernel/random/boot_id")
    balancing = "proc/sys/kernel/numa_balancing"
    return Host(name, kernel, boot, numa, root.parse(balancing, parse_number) if settings else None)


def is_linux() -> bool:
    """Whether this process runs on Linux."""
    return sys.platform == "linux"
