"""A fleet as text: each kind of machine once, and what is not like it."""

from __future__ import annotations

from numabind._cpulist import format_list
from numabind._fleet.hosts import folded, label
from numabind._fleet.words import amount, subjects
from numabind._process import printable
from numabind._report.text import table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numabind._fleet import FleetReport, KindReport, Outlier
    from numabind._fleet.groups import Group

_MOST_NAMES = 12


def fleet_text(report: FleetReport) -> str:
    """The kinds with their outliers, and the fleet in a sentence."""
    parts = []
    for kind in report.kinds:
        parts += [_kind(kind, report), ""]
    return "\n".join([*parts, summary(report)])


def summary(report: FleetReport) -> str:
    """ "10,000 machines of 1 kind: 25 are not like the others of their kind"."""
    kinds = len(report.kinds)
    count, others = report.machines, report.outliers
    said = f"{_count(count, 'machine')} of {_count(kinds, 'kind')}"
    verb = "is" if others == 1 else "are"
    said += f": {others:,} {verb} not like the others of their kind" if others else ", all alike"
    if report.broken:
        said += f"; {_count(len(report.broken), 'snapshot')} can't be read"
    if report.silent:
        said += f"; {_count(len(report.silent), 'node')} did not answer"
    return said


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def who(group: Group, report: FleetReport, most: int | None = None) -> str:
    """The names of a group's machines."""
    return folded((label(member, report.shared) for member in group.members), most)


def _kind(kind: KindReport, report: FleetReport) -> str:
    alike = len(kind.reference.members)
    number = f"{kind.machines:,}" if alike == kind.machines else f"{alike:,} of {kind.machines:,}"
    lines = [
        f"{printable(kind.title)}: {number} machines alike"
        if kind.machines > 1
        else f"{printable(kind.title)}: 1 machine",
        f"  {printable(who(kind.reference, report, _MOST_NAMES))}",
    ]
    for rows in described(kind):
        if len(rows) > 1:
            lines += ["", *(f"  {line}" for line in table(rows).splitlines())]
    lines += ["", *(f"  {word}: {printable(value)}" for word, value in settings(kind))]
    for outlier in kind.outliers:
        lines += ["", *_outlier(outlier, report)]
    return "\n".join(lines)


def _outlier(outlier: Outlier, report: FleetReport) -> list[str]:
    count = len(outlier.group.members)
    many = f" ({count:,} machines)" if count > 1 else ""
    head = f"outlier: {printable(who(outlier.group, report, _MOST_NAMES))}{many}"
    return [head, *(f"  {printable(sentence)}" for sentence in outlier.text)]


Rows = list[tuple[str, ...]]


def described(kind: KindReport) -> tuple[Rows, Rows]:
    """What most machines of the kind are like: rows of their nodes, and of their GPUs.

    GPUs that differ in the address only share a row. The first row is the heading.
    """
    values = kind.reference.topology.values()
    sizes = dict(kind.reference.memory)
    nodes: Rows = [("NODE", "CPUS", "MEMORY", "DISTANCES")]
    for subject in subjects(values, "node"):
        number = int(subject.partition(" ")[2])
        cpus = values[subject, "CPUs"]
        if cpus or sizes.get(number) != 0:
            memory = amount(sizes.get(number))
            nodes.append((str(number), cpus or "-", memory, values[subject, "distances"]))
    gpus: Rows = [("GPU", "NODE", "DRIVER", "LINK", "PCI ADDRESSES")]
    return nodes, gpus + _gpu_rows(values, subjects(values, "gpu"))


def _gpu_rows(values: Mapping[tuple[str, str], str], found: Sequence[str]) -> Rows:
    alike: dict[tuple[str, ...], list[int]] = {}
    for number, subject in enumerate(found):
        names = ("model", "node", "driver", "link")
        alike.setdefault(tuple(values[subject, name] for name in names), []).append(number)
    rows: Rows = []
    for (_, node, driver, link), numbers in alike.items():
        addresses = " ".join(found[number].partition(" ")[2] for number in numbers)
        rows.append((format_list(set(numbers)), node, driver, link, addresses))
    return rows


def settings(kind: KindReport) -> list[tuple[str, str]]:
    """The rest of what most machines of the kind are like, in words."""
    values = kind.reference.topology.values()
    said = ", ".join(
        f"unknown {noun}s"
        if "?" in values["machine", f"{noun}s"]
        else _count(len(values["machine", f"{noun}s"].split()), noun)
        for noun in ("package", "core", "L3 group")
    )
    found = [("machine", said), ("numa_balancing", values["machine", "numa_balancing"])]
    found += [
        (name, values["machine", name] or "none")
        for name, usual in (
            ("allowed CPUs", "all"),
            ("allowed nodes", "all"),
            ("CPU quota", "none"),
        )
        if values["machine", name] != usual
    ]
    return found
