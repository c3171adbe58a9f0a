"""`fleet`: the machines of a cluster by groups that are alike, and those that are not."""

from __future__ import annotations

from collections import Counter

from numabind._fleet.differences import Difference, Differences
from numabind._fleet.groups import Group, Kind, Member, Snapshot, kinds_of
from numabind._fleet.snapshots import Broken, Reader
from numabind._fleet.words import sentences
from numabind._record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

SCHEMA = 1


@record
class Outlier:
    """A group that differs from its kind's reference: aspect by aspect, and in sentences."""

    group: Group
    differences: tuple[Difference, ...]
    text: tuple[str, ...]


@record
class KindReport:
    """One kind of machine: its name, how many there are, what most are like, and the others."""

    title: str
    machines: int
    reference: Group
    outliers: tuple[Outlier, ...]


@record
class FleetReport:
    """What a fleet is like.

    `silent` are nodes that did not answer a survey, with the cause; `shared` the host names that
    several snapshots have.
    """

    kinds: tuple[KindReport, ...]
    broken: tuple[Broken, ...] = ()
    silent: tuple[Broken, ...] = ()
    shared: frozenset[str] = frozenset()

    @property
    def machines(self) -> int:
        """How many snapshots were read."""
        return sum(kind.machines for kind in self.kinds)

    @property
    def outliers(self) -> int:
        """How many machines differ from their kind's reference."""
        return sum(len(each.group.members) for kind in self.kinds for each in kind.outliers)

    def as_dict(self) -> dict[str, Any]:
        """The JSON form, documented in docs/fleet.md."""
        return {
            "schema": SCHEMA,
            "machines": self.machines,
            "outliers": self.outliers,
            "kinds": [_kind_as_dict(kind) for kind in self.kinds],
            "broken": [dict(each.__dict__) for each in self.broken],
            "silent": [{"node": each.file, "cause": each.cause} for each in self.silent],
        }


def fleet(
    directory: str, files: Sequence[str], progress: Callable[[str], None] = lambda _: None
) -> FleetReport:
    """Read the snapshots in these files below the directory, and compare them.

    `progress` is told in words how far it is. No file makes this fail: see `FleetReport.broken`.
    """
    reader = Reader(directory)
    snapshots: list[Snapshot] = []
    broken: list[Broken] = []
    for number, found in enumerate(reader.read(files)):
        if number % 100 == 0:
            progress(f"{number:,} of {len(files):,} snapshots")
        if isinstance(found, Broken):
            broken.append(found)
        else:
            snapshots.append(found)
    progress("comparing")
    kinds = described(kinds_of(snapshots), reader.models)
    hosts = Counter(found.member.host for found in snapshots if found.member.host)
    shared = frozenset(host for host, times in hosts.items() if times > 1)
    return FleetReport(kinds, tuple(broken), shared=shared)


def described(kinds: Sequence[Kind], models: Mapping[str, str]) -> tuple[KindReport, ...]:
    """The kinds with what differs in their outliers; `models` are names by PCI numbers.

    Kinds of the same GPUs, at other addresses, have numbers in their titles.
    """
    found, times = [], Counter[str]()
    for kind in kinds:
        compared = Differences(kind)
        outliers = []
        for number, group in enumerate(kind.groups[1:], start=1):
            differences = compared.of(number)
            text = sentences(differences, compared.values[number], compared.values[0], models)
            outliers.append(Outlier(group, differences, text))
        name = title(compared.values[0], models)
        times[name] += 1
        name += f" ({times[name]})" if times[name] > 1 else ""
        found.append(KindReport(name, kind.size, kind.groups[0], tuple(outliers)))
    return tuple(found)


def title(values: Mapping[tuple[str, str], str], models: Mapping[str, str]) -> str:
    """What a kind is called: "8 × NVIDIA H100 80GB HBM3", "no GPU, 2 packages"."""
    counted = Counter(value for (_, name), value in values.items() if name == "model")
    if counted:
        return ", ".join(
            f"{n} × {models.get(model, model)}" for model, n in sorted(counted.items())
        )
    packages = len(values["machine", "packages"].split())
    return f"no GPU, {packages} package{'' if packages == 1 else 's'}"


def _kind_as_dict(kind: KindReport) -> dict[str, Any]:
    return {
        "title": kind.title,
        "machines": kind.machines,
        "reference": {
            **_group_as_dict(kind.reference),
            "aspects": [dict(each.__dict__) for each in kind.reference.topology.aspects],
        },
        "outliers": [
            {
                **_group_as_dict(each.group),
                "text": list(each.text),
                "differences": [dict(difference.__dict__) for difference in each.differences],
            }
            for each in kind.outliers
        ],
    }


def _group_as_dict(group: Group) -> dict[str, Any]:
    return {
        "fingerprint": group.topology.fingerprint,
        "memory_bytes": {str(node): size for node, size in group.memory},
        "members": [dict(member.__dict__) for member in group.members],
    }


__all__ = ["Broken", "FleetReport", "KindReport", "Member", "Outlier", "fleet"]
