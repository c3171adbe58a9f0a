"""What the doctor looks at: a machine, its files, and the environment it was called in."""

from __future__ import annotations

from numabind._cpulist import parse_list
from numabind._errors import MachineError
from numabind._finding import Finding
from numabind._machine import Device, Machine
from numabind._process import printable
from numabind._record import record
from numabind._sysfs import LONGEST, Root, cgroups, parse_status
from numabind._visible import visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


LARGE = 1 << 30


def whole(text: str) -> int | None:
    """The whole number that a text is; None if it is none that a kernel writes."""
    number = text.isascii() and text.removeprefix("-").isdecimal() and len(text) <= 20
    return int(text) if number else None


@record
class Large:
    """A process with much memory of its own: that in bytes, and the memory policy it has."""

    pid: str
    name: str
    bytes: int
    policy: str

    @property
    def text(self) -> str:
        """The process for a person."""
        return f"{self.bytes / LARGE:.1f} GiB of process {self.pid} ({self.name})"


@record
class Scene:
    """A machine, the root that its files are below, and an environment."""

    root: Root
    machine: Machine
    environ: Mapping[str, str]

    def text(self, path: str, most: int = LONGEST) -> str | None:
        """The text of a file, or its first bytes; None if it is not there or may not be read."""
        try:
            return self.root.text(path, most)
        except MachineError:
            return None

    def number(self, path: str) -> int | None:
        """The whole number in a file; None if there is none."""
        return whole(self.text(path) or "")

    def names(self, path: str) -> list[str]:
        """The names in a directory; [] if it is not there or may not be read."""
        try:
            return self.root.listing(path)
        except MachineError:
            return []

    def cpus(self, path: str) -> frozenset[int]:
        """The CPUs in a list file; none if it is not there, or says "(null)"."""
        try:
            return parse_list(self.text(path) or "")
        except ValueError:
            return frozenset()

    def cgroups(self, controller: str, process: str = "self") -> list[tuple[str, bool]]:
        """As `_sysfs.cgroups`; [] if it may not be read."""
        try:
            return cgroups(self.root, controller, process)
        except MachineError:
            return []

    def large_processes(self) -> list[Large]:
        """Processes with at least 1 GiB of memory of their own, the largest first."""
        found = []
        for pid in filter(str.isdecimal, self.names("proc")):
            fields = parse_status(self.text(f"proc/{pid}/status") or "")
            words = fields.get("RssAnon", "").split()
            size = (whole(words[0]) or 0) * 1024 if words else 0
            if size >= LARGE:
                # The policy is in the first line; the kernel walks all memory for the others.
                line = (self.text(f"proc/{pid}/numa_maps", 64) or "").split(" ", 2)
                policy = line[1] if len(line) > 2 else ""
                found.append(Large(pid, printable(fields.get("Name", "?")), size, policy))
        return sorted(found, key=lambda process: -process.bytes)

    @property
    def near_cpus(self) -> frozenset[int]:
        """The CPUs near the GPUs that are shown, as far as this process may use them."""
        near = [node.cpus for node in self.machine.nodes if node.id in self.nodes_of_gpus]
        return frozenset[int]().union(*near) & self.machine.allowed.cpus

    @property
    def gpus(self) -> list[Device]:
        """The devices that workers use."""
        return [device for device in self.machine.devices if device.computes]

    @property
    def shown(self) -> list[Device]:
        """The GPUs that this environment shows; all of them where it says nothing."""
        seen = visible(self.machine, self.environ)
        pcis = {handle.device.pci for handle in seen.handles}
        shown = [device for device in self.gpus if device.pci in pcis]
        return shown if seen.source is not None and shown else self.gpus

    @property
    def nodes_of_gpus(self) -> list[int]:
        """The nodes that the GPUs that are shown hang off."""
        return sorted({node for device in self.shown for node in device.near_nodes})

    @property
    def several_nodes(self) -> bool:
        """Whether there is anything that could be near or far."""
        return sum(bool(node.cpus) for node in self.machine.nodes) > 1

    @property
    def matters(self) -> bool:
        """Whether locality matters here: several nodes, and a GPU."""
        return self.several_nodes and bool(self.gpus)


class Check:
    """One thing to look for. `name` is stable; `about` says what it is and why it matters."""

    name = ""
    about = ""

    def look(self, scene: Scene) -> Iterable[Finding]:
        """What is found here; nothing if all is well."""
        raise NotImplementedError

    def finding(self, severity: str, cause: str, evidence: str, remedy: str) -> Finding:
        """A finding of this check."""
        return Finding(self.name, severity, cause, evidence, remedy)
