"""What can undo a worker's place after it was bound: OpenMP's own binding, a node that is full.

Sources: OpenMP specification (OMP_PROC_BIND, OMP_PLACES); Intel OpenMP runtime, "Thread Affinity
Interface" (KMP_AFFINITY); libgomp manual (GOMP_CPU_AFFINITY); Documentation/filesystems/proc.rst.
"""

from __future__ import annotations

from numabind._errors import MachineError
from numabind._problems import Problem, problem
from numabind._sysfs import NODE, Root

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_KMP_TYPES = {"compact", "scatter", "balanced", "explicit", "logical", "physical"}
_OMP_TYPES = {"true", "close", "spread", "master", "primary"}
# A node with less than this share free is nearly full.
LOW = 0.05
GIB = 1 << 30


def openmp_binders(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that have an OpenMP runtime bind threads itself, with their values.

    OMP_PLACES alone does: OMP_PROC_BIND is then true unless it is false. Pure.
    """
    found = {}
    values = {
        name: environ.get(name, "").strip()
        for name in ("OMP_PROC_BIND", "OMP_PLACES", "KMP_AFFINITY", "GOMP_CPU_AFFINITY")
    }
    words = {
        name: {word.strip() for word in value.lower().split(",")} for name, value in values.items()
    }
    off = "false" in words["OMP_PROC_BIND"]
    if words["OMP_PROC_BIND"] & _OMP_TYPES and not off:
        found["OMP_PROC_BIND"] = values["OMP_PROC_BIND"]
    if values["OMP_PLACES"] and not off:
        found["OMP_PLACES"] = values["OMP_PLACES"]
    if words["KMP_AFFINITY"] & _KMP_TYPES:
        found["KMP_AFFINITY"] = values["KMP_AFFINITY"]
    if values["GOMP_CPU_AFFINITY"]:
        found["GOMP_CPU_AFFINITY"] = values["GOMP_CPU_AFFINITY"]
    return found


def openmp_crowds(environ: Mapping[str, str], shared: bool) -> tuple[Problem, ...]:
    """`openmp-binds`, where OpenMP would bind a worker's threads to CPUs that others use. Pure.

    Of a place that is not `shared`, only CPUs that are named by number may be others'.
    """
    found = openmp_binders(environ)
    if not shared:
        found = {name: value for name, value in found.items() if _names_cpus(name, value.lower())}
    if not found:
        return ()
    cause = " and ".join(f"{name}={value:.60}" for name, value in found.items())
    return (problem("openmp-binds", f"{cause} {'is' if len(found) == 1 else 'are'} set"),)


def one_thread(environ: Mapping[str, str], threads: int) -> tuple[Problem, ...]:
    """`one-openmp-thread`, where a worker with room for `threads` is told to use one. Pure."""
    if threads < 2 or environ.get("OMP_NUM_THREADS", "").strip() != "1":
        return ()
    cause = f"OMP_NUM_THREADS=1 is set, and there is room for {threads} threads"
    return (problem("one-openmp-thread", cause),)


def _names_cpus(name: str, value: str) -> bool:
    return name == "GOMP_CPU_AFFINITY" or "{" in value or "proclist" in value


def read_free(root: Root, node: int) -> tuple[int, int] | None:
    """Bytes that can be had on a node without taking what is in use, and all; None if unknown.

    Free is MemFree and the page cache that nobody reads (Inactive(file)), by the node's meminfo.
    """
    found = {}
    try:
        text = root.text(f"{NODE}/node{node}/meminfo") or ""
    except MachineError:
        return None
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 4 and words[3].isascii() and words[3].isdecimal() and len(words[3]) < 16:
            found[words[2]] = int(words[3]) * 1024
    if "MemFree:" not in found or "MemTotal:" not in found:
        return None
    return found["MemFree:"] + found.get("Inactive(file):", 0), found["MemTotal:"]


def full_nodes(root: Root, nodes: frozenset[int]) -> tuple[Problem, ...]:
    """`node-memory-low`, where less than a twentieth of some nodes' memory together is free."""
    known = [free for free in (read_free(root, node) for node in sorted(nodes)) if free is not None]
    left, total = sum(free for free, _ in known), sum(every for _, every in known)
    if not total or left >= LOW * total:
        return ()
    which = ", ".join(map(str, sorted(nodes)))
    cause = f"node {which} has {left / GIB:.1f} of {total / GIB:.1f} GiB free"
    return (problem("node-memory-low", cause),)
