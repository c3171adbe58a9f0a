"""Machines and plans as plain text, 80 columns where the data allows."""

from __future__ import annotations

from numabind._cpulist import format_list
from numabind._machine import Device, Machine, Nic, Node, Partition
from numabind._near import nearest_nics
from numabind._placement import Placement, Plan
from numabind._problems import NOTES, Problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def machine_text(machine: Machine) -> str:
    """The machine: a line of numbers, its nodes, its devices, and what this process may use."""
    parts = [_headline(machine), "", _nodes(machine)]
    if machine.devices:
        parts += ["", _devices(machine)]
    else:
        parts += ["", "No GPU or accelerator on the PCI bus."]
    if machine.nics:
        parts += ["", _nics("NIC", machine.nics)]
    if machine.disks:
        parts += ["", _nics("NVME", machine.disks)]
    parts += ["", _allowed(machine)]
    return "\n".join(parts)


def _headline(machine: Machine) -> str:
    packages = {cpu.package for cpu in machine.cpus if cpu.package is not None}
    cores = {cpu.id if cpu.core is None else cpu.core for cpu in machine.cpus}
    groups = {cpu.l3 for cpu in machine.cpus if cpu.l3 is not None}
    counts = [
        _count(len(packages), "package") if packages else "packages unknown",
        _count(len(machine.nodes), "NUMA node"),
        _count(len(groups), "L3 group") if groups else "no cache information",
        _count(len(cores), "core"),
        _count(len(machine.cpus), "CPU"),
    ]
    name = machine.host.name or "machine"
    if machine.offline_cpus:
        counts.append(f"{len(machine.offline_cpus)} offline")
    if not machine.host.numa:
        counts[1] = "a kernel without NUMA"
    return f"{name}: {', '.join(counts)}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _nodes(machine: Machine) -> str:
    rows = [("NODE", "KIND", "CPUS", "MEMORY", "DISTANCES")]
    # A GB200 has 28 nodes that are kept for GPU partitions and hold nothing.
    columns = [i for i, node in enumerate(machine.nodes) if node.cpus or node.memory_bytes != 0]
    for i in columns:
        node = machine.nodes[i]
        known = len(node.distances) == len(machine.nodes)
        far = " ".join(str(node.distances[j]) for j in columns) if known else "-"
        rows.append((str(node.id), node.kind, format_list(node.cpus) or "-", _memory(node), far))
    empty = frozenset(node.id for node in machine.nodes) - {machine.nodes[i].id for i in columns}
    more = f"\nand nodes {format_list(empty)} without CPUs and memory" if empty else ""
    return table(rows) + more


def _memory(node: Node) -> str:
    if node.memory_bytes is None:
        return "unknown"
    if node.memory_bytes == 0:
        return "none"
    gibibytes = node.memory_bytes / (1 << 30)
    return f"{gibibytes:.0f} GiB" if gibibytes >= 10 else f"{node.memory_bytes / (1 << 20):.0f} MiB"


def _devices(machine: Machine) -> str:
    near_nic = any(nic.rdma for nic in machine.nics)
    rows: list[tuple[str, ...]] = [
        ("DEVICE", "VENDOR", "NODE", "LOCAL CPUS", "NEAREST NIC", "UUID", "NAME")
    ]
    for device in machine.devices:
        node = "unknown" if device.node is None else str(device.node)
        if device.node is None and device.near_nodes:
            node = format_list(device.near_nodes)
        name = device.name or f"{device.vendor_id:04x}:{device.device_id:04x}"
        local = "-" if device.local_cpus is None else format_list(device.local_cpus) or "none"
        kind = "" if device.computes else " (not for workers)"
        if device.partitioning:
            kind += f" ({device.partitioning})"
        nearest = nearest_nics(machine, device) if device.computes else None
        nic = nearest.text if nearest else "-"
        rows.append((device.pci, device.vendor, node, local, nic, device.uuid or "-", name + kind))
        rows += [
            (f"  {part_kind(device)}", "", node, "", "", part.uuid or "-", part_name(part))
            for part in device.partitions
        ]
    if not near_nic:
        rows = [(*row[:4], *row[5:]) for row in rows]
    return table(rows)


def part_kind(device: Device) -> str:
    """What a part of this vendor's devices is called."""
    return {"nvidia": "MIG", "intel": "tile"}.get(device.vendor, "part")


def part_name(part: Partition) -> str:
    """ "1/0", the GPU and compute instance under MIG, else the part's number."""
    if part.number is not None:
        return str(part.number)
    numbers = (part.gpu_instance, part.compute_instance)
    return "/".join("?" if number is None else str(number) for number in numbers)


def _nics(what: str, nics: Iterable[Nic]) -> str:
    rows = [(what, "NODE", "NAMES")]
    for nic in nics:
        names = ", ".join(nic.names) or f"{nic.vendor_id:04x}:{nic.device_id:04x}"
        rows.append((nic.pci, "unknown" if nic.node is None else str(nic.node), names))
    return table(rows)


def _allowed(machine: Machine) -> str:
    allowed = machine.allowed
    cpus = format_list(allowed.cpus) or "none"
    text = f"This process may use CPUs {cpus} and memory on node {format_list(allowed.nodes)}"
    if allowed.cpu_quota is not None:
        text += f", {allowed.cpu_quota:g} CPUs' worth of time"
    return text + "."


def plan_text(plan: Plan, why: bool = True) -> str:
    """The placements as a table, and under `why` how each came about."""
    rows: list[tuple[str, ...]] = [("RANK", "DEVICE", "NODE", "CPUS", "MEMORY", "THREADS", "NIC")]
    rows += [_placement_row(placement) for placement in plan.placements]
    if not any(placement.nics for placement in plan.placements):
        rows = [row[:-1] for row in rows]
    parts = [f"mode {plan.options.mode}, memory {plan.options.memory}", "", table(rows)]
    if why:
        parts.append("")
        for placement in plan.placements:
            parts.append(f"rank {_rank(placement)}: {'; '.join(placement.reasons)}")
    return "\n".join(parts)


def _rank(placement: Placement) -> str:
    return "-" if placement.local_rank is None else str(placement.local_rank)


def _placement_row(placement: Placement) -> tuple[str, ...]:
    memory = placement.memory_policy
    if placement.memory_nodes:
        memory += f":{format_list(placement.memory_nodes)}"
    cpus = format_list(placement.cpus) or "none"
    return (
        _rank(placement),
        placement.device or "-",
        "unknown" if placement.node is None else str(placement.node),
        cpus if placement.bound else f"{cpus} (kept)",
        memory,
        str(placement.threads),
        ",".join(placement.nics) or "-",
    )


def problems_text(plan: Plan) -> str:
    """What stands in the way, each problem once with the ranks that have it; "" if nothing."""
    ranks: dict[Problem, list[int]] = {said: [] for said in plan.problems}
    for placement in plan.placements:
        for said in placement.problems:
            ranks.setdefault(said, []).append(placement.local_rank or 0)
    lines = []
    for said in sorted(ranks, key=lambda p: (p.name in NOTES, p.name)):
        kind = "note" if said.name in NOTES else "problem"
        who = ranks[said]
        whose = f" (rank {format_list(set(who))})" if who and len(plan.placements) > 1 else ""
        lines.append(f"{kind}: {said.name}{whose}: {said.cause}.")
        if kind == "problem":
            lines.append(f"  remedy: {said.remedy}")
    return "\n".join(lines)


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Rows of equal length as columns, the first row being the heading."""
    widths = [max(width(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = (cell + " " * (wide - width(cell)) for cell, wide in zip(row, widths, strict=True))
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def width(text: str) -> int:
    """How many columns of a terminal a text takes: two for an ideograph, none for an accent."""
    if text.isascii():
        return len(text)
    from unicodedata import category, east_asian_width

    return sum(
        0 if category(letter) in ("Mn", "Me") else 2 if east_asian_width(letter) in "WF" else 1
        for letter in text
    )


def cut(text: str, columns: int) -> str:
    """As much of a text as fits in this many columns."""
    if text.isascii():
        return text[: max(0, columns)]
    while text and width(text) > columns:
        text = text[:-1]
    return text
