"""What `status` finds out about a process: its GPU, its threads, and where its pages are. Pure."""

from __future__ import annotations

from numabind._cpulist import format_list
from numabind._problems import Problem
from numabind._record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Less memory than this is mostly what the C library and the interpreter touched before anyone could
# bind them: no verdict is made of it.
LITTLE = 16 << 20
# Kinds of pages, by mapping. A private mapping of a file counts as file, whatever was written.
KINDS = ("anonymous", "locked", "huge", "shared", "file")


def printable(name: str) -> str:
    """A process's name without what would move a terminal's cursor."""
    return "".join(letter if letter.isprintable() else "?" for letter in name)


@record
class Stray:
    """A thread that may run elsewhere than near the process's GPU."""

    tid: int
    name: str
    cpus: frozenset[int]

    def as_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {"tid": self.tid, "name": self.name, "cpus": format_list(self.cpus)}


@record
class Pages:
    """Resident bytes by node and kind.

    `method` is "numa_maps" (every page was counted) or "sample" (`asked` pages were looked up by
    move_pages, and the bytes are their shares of the resident memory). `local` is the part that is
    on the process's own nodes, 0 to 1, page cache left out; None where those are unknown or nothing
    is resident. `interval` holds it with 95% confidence, None where all was counted; it rests on
    `found`, the sampled pages that were resident and not page cache, of hugetlbfs's and of all
    other mappings, which are sampled apart. `swapped` bytes are on no
    node; `pinned` bytes, which RDMA drivers hold, are among the others.
    """

    method: str
    by_node: dict[int, dict[str, int]]
    local: float | None = None
    interval: tuple[float, float] | None = None
    asked: int | None = None
    found: tuple[int, int] | None = None
    pinned: int = 0
    swapped: int = 0

    @property
    def resident(self) -> int:
        """Bytes on all nodes."""
        return sum(sum(kinds.values()) for kinds in self.by_node.values())

    def on(self, node: int) -> int:
        """Bytes on one node."""
        return sum(self.by_node.get(node, {}).values())

    @property
    def memory(self) -> dict[int, int]:
        """Bytes by node, page cache left out: it is where a file's first reader was."""
        return {
            node: sum(number for kind, number in kinds.items() if kind != "file")
            for node, kinds in self.by_node.items()
        }

    @property
    def enough(self) -> bool:
        """Whether there is enough memory, page cache left out, to judge a process by."""
        return sum(self.memory.values()) >= LITTLE

    def as_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "method": self.method,
            "by_node": {str(node): kinds for node, kinds in sorted(self.by_node.items())},
            "resident_bytes": self.resident,
            "swapped_bytes": self.swapped,
            "pinned_bytes": self.pinned,
            "local": self.local,
            "interval": list(self.interval) if self.interval else None,
            "sampled_pages": self.asked,
        }


@record
class Process:
    """One process as the kernel has it.

    `devices` are the PCI addresses of its GPUs, found by `source`: "nvml", "numabind" (its mark in
    the environment), "files" (device files that it has open), "environment" (its local rank), or
    None. `nodes` and `near` are the nodes and CPUs near them; without a GPU those of the CPUs that
    it is bound to (`source` "affinity"), None if it is bound to no part of the machine. `policy` is
    the memory policy of its first thread as numa_maps prints it; None where that can't be read, as
    `pages` is.
    """

    pid: int
    name: str
    devices: tuple[str, ...] = ()
    source: str | None = None
    nodes: frozenset[int] | None = None
    near: frozenset[int] | None = None
    threads: int = 0
    strays: tuple[Stray, ...] = ()
    policy: str | None = None
    pages: Pages | None = None
    problems: tuple[Problem, ...] = ()

    @property
    def verdict(self) -> str:
        """ "near", "elsewhere", or "unknown" where the GPU, its node or the pages are not known."""
        names = {said.name for said in self.problems}
        if names & {"threads-elsewhere", "pages-elsewhere"}:
            return "elsewhere"
        known = self.nodes is not None and self.pages is not None and self.pages.local is not None
        return "near" if known else "unknown"

    def as_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "pid": self.pid,
            "name": self.name,
            "devices": list(self.devices),
            "device_source": self.source,
            "nodes": None if self.nodes is None else format_list(self.nodes),
            "near_cpus": None if self.near is None else format_list(self.near),
            "threads": self.threads,
            "threads_near": None if self.near is None else self.threads - len(self.strays),
            "threads_elsewhere": [stray.as_dict() for stray in self.strays],
            "memory_policy": self.policy,
            "pages": None if self.pages is None else self.pages.as_dict(),
            "verdict": self.verdict,
            "problems": [said.as_dict() for said in self.problems],
        }
