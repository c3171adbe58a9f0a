"""Groups of equal machines, and which of them are of one kind. Pure.

A kind is a model of server: machines that have the same GPUs at the same PCI addresses, or, without
GPUs, as many packages and CPUs. Its largest group is the reference; all others are outliers. A few
machines with other GPUs can still be of the kind, with a GPU lost or moved: see `_strayed`.
"""

from __future__ import annotations

from numabind._cpulist import parse_list
from numabind._fleet.memory import spans
from numabind._fleet.topology import Topology
from numabind._record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# What may be a kind's machine that has lost or moved GPUs: one alone, or one in so many.
_FEW = 100


@record
class Member:
    """One snapshot: its file as found below the directory, and the host's name if it has one."""

    file: str
    host: str | None = None


@record
class Snapshot:
    """What is kept of a snapshot: whose it is, its topology, and the bytes of each node."""

    member: Member
    topology: Topology
    memory: tuple[tuple[int, int | None], ...]


@record
class Group:
    """Machines that are alike. `memory` are bytes by node, as they stand for all members'."""

    topology: Topology
    memory: tuple[tuple[int, int | None], ...]
    members: tuple[Member, ...]


@record
class Kind:
    """Machines of one model: the reference first, then the outliers, the largest group first."""

    groups: tuple[Group, ...]

    @property
    def size(self) -> int:
        """How many machines there are of it."""
        return sum(len(group.members) for group in self.groups)


class _Class:
    """All snapshots of one topology, whatever their memory."""

    def __init__(self, topology: Topology, snapshots: list[Snapshot]) -> None:
        self.topology = topology
        self.snapshots = snapshots
        self.first = min(snapshot.member.file for snapshot in snapshots)
        values = topology.values()
        self.gpus = {subject: value for (subject, name), value in values.items() if name == "model"}
        cpus = parse_list(values["machine", "CPUs"]) | parse_list(values["machine", "offline CPUs"])
        packages = values["machine", "packages"]
        self.body = (len(packages.split()), len(cpus))
        self.layout = (packages, values["machine", "nodes with CPUs"])


def kinds_of(snapshots: Sequence[Snapshot]) -> tuple[Kind, ...]:
    """The kinds of a fleet, the largest first. The order of the snapshots does not matter."""
    by_topology: dict[Topology, list[Snapshot]] = {}
    for snapshot in snapshots:
        by_topology.setdefault(snapshot.topology, []).append(snapshot)
    classes = [_Class(topology, found) for topology, found in by_topology.items()]
    classes.sort(key=lambda each: (-len(each.snapshots), each.first))
    by_kind: dict[object, list[_Class]] = {}
    for each in classes:
        by_kind.setdefault(tuple(each.gpus.items()) or each.body, []).append(each)
    kinds = [Kind(_groups(found)) for found in _with_strays(list(by_kind.values()))]
    return tuple(sorted(kinds, key=lambda kind: (-kind.size, kind.groups[0].members[0].file)))


def _with_strays(kinds: list[list[_Class]]) -> list[list[_Class]]:
    """The kinds, the larger joined by the few machines that look like its own gone wrong."""
    kept: list[list[_Class]] = []
    for kind in kinds:
        gpus = kind[0].gpus.items()
        homes = [home for home in kept if _strayed(kind, home)]
        if homes:
            max(homes, key=lambda home: len(gpus & home[0].gpus.items())).extend(kind)
        else:
            kept.append(kind)
    return kept


def _strayed(kind: list[_Class], home: list[_Class]) -> bool:
    """Whether these are a few of `home`'s machines, with GPUs lost, exchanged or moved.

    Few: one alone, or at most one in _FEW. Of that model: a GPU is of the same model as one there,
    and one is at the same address or the CPUs are laid out alike; or there is no GPU left, and the
    CPUs are laid out alike.
    """
    few, many = sum(len(each.snapshots) for each in kind), len(home[0].snapshots)
    if few * _FEW > many and not (few == 1 < many):
        return False
    here, there = kind[0], home[0]
    alike = here.layout == there.layout
    if not here.gpus:
        return alike
    shared = set(here.gpus.values()) & set(there.gpus.values())
    return bool(shared) and (alike or bool(here.gpus.items() & there.gpus.items()))


def _groups(classes: list[_Class]) -> tuple[Group, ...]:
    """The machines of a kind by topology and size of each node's memory, largest group first."""
    snapshots = [snapshot for each in classes for snapshot in each.snapshots]
    counted: dict[int, dict[int, int]] = {}
    for snapshot in snapshots:
        for node, size in snapshot.memory:
            if size is not None:
                sizes = counted.setdefault(node, {})
                sizes[size] = sizes.get(size, 0) + 1
    standing = {node: spans(sizes) for node, sizes in counted.items()}
    groups = []
    for each in classes:
        found: dict[tuple[tuple[int, int | None], ...], list[Member]] = {}
        for snapshot in each.snapshots:
            memory = tuple(
                (node, None if size is None else standing[node][size])
                for node, size in snapshot.memory
            )
            found.setdefault(memory, []).append(snapshot.member)
        for memory, members in found.items():
            in_order = tuple(sorted(members, key=lambda member: member.file))
            groups.append(Group(each.topology, memory, in_order))
    return tuple(sorted(groups, key=lambda g: (-len(g.members), g.members[0].file)))
