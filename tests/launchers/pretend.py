"""A snapshot that describes this machine's CPUs as two nodes with two GPUs each.

Real launchers start real processes on real CPUs; only the nodes and GPUs are made up. Memory of the
second node can't be had on a machine with one, so tests that look at problems say NUMABIND_MEMORY=
none; virtual machines with real nodes test the memory.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

CPUS = sorted(os.sched_getaffinity(0))
# CPUs of node 0 and node 1.
HALVES = (CPUS[: len(CPUS) // 2], CPUS[len(CPUS) // 2 :])
ADDRESSES = ("0000:17:00.0", "0000:2a:00.0", "0000:ab:00.0", "0000:ba:00.0")
NODES = (0, 0, 1, 1)
UUIDS = tuple(f"GPU-{number}{number}{number}{number}" for number in range(4))


def kernel_list(cpus: list[int]) -> str:
    """As the kernel writes it: "0-3,8"."""
    parts: list[list[int]] = []
    for cpu in cpus:
        if parts and cpu == parts[-1][-1] + 1:
            parts[-1][1:] = [cpu]
        else:
            parts.append([cpu])
    return ",".join("-".join(map(str, part)) for part in parts)


# The whole machine and each half, as lists.
ALL = kernel_list(CPUS)
NEAR = tuple(kernel_list(half) for half in HALVES)


def _device(number: int) -> dict[str, object]:
    node = NODES[number]
    return {
        "pci": ADDRESSES[number],
        "vendor": "nvidia",
        "pci_class": "0x030200",
        "vendor_id": "0x10de",
        "device_id": "0x2330",
        "computes": True,
        "numa_node": node,
        "local_cpus": NEAR[node],
        "node": node,
        "node_source": "numa_node",
        "near_nodes": [node],
        "uuid": UUIDS[number],
        "index": number,
    }


def write_snapshot(folder: Path) -> Path:
    """Write the snapshot into `folder`; without a boot id it is believed."""
    cpus = [
        {"id": cpu, "node": node, "package": node, "core": cpu, "l3": half[0]}
        for node, half in enumerate(HALVES)
        for cpu in half
    ]
    nodes = [
        {"id": node, "cpus": NEAR[node], "memory_bytes": 8 << 30, "distances": distances}
        for node, distances in ((0, [10, 21]), (1, [21, 10]))
    ]
    machine = {
        "schema": 1,
        "host": {"boot_id": None},
        "nodes": nodes,
        "cpus": cpus,
        "devices": [_device(number) for number in range(4)],
        "allowed": {"cpus": ALL, "nodes": "0-1", "cpu_quota": None},
    }
    path = folder / "pretend.json"
    path.write_text(json.dumps(machine))
    return path


def workers(output: str, events: Path) -> dict[int, tuple[dict[str, Any], dict[str, Any]]]:
    """By rank, what each worker.py printed and the Binding it wrote to NUMABIND_EVENTS."""
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    text = events.read_text() if events.exists() else ""
    bindings = {event["pid"]: event for event in map(json.loads, text.splitlines())}
    return {line["rank"]: (line, bindings.get(line["pid"], {})) for line in lines}


def assert_near(found: tuple[dict[str, Any], dict[str, Any]], *gpus: int) -> None:
    """Every thread of this worker is on the node of its GPUs, and its Binding says the same."""
    line, binding = found
    (node,) = {NODES[gpu] for gpu in gpus}
    assert binding["device"] == ",".join(ADDRESSES[gpu] for gpu in gpus)
    assert binding["bound"]
    assert binding["cpus"] == NEAR[node]
    assert line["masks"] == [HALVES[node]]


def problems(binding: dict[str, Any]) -> list[str]:
    """Their names, without the note about threads that were there first."""
    return [said["name"] for said in binding["problems"] if said["name"] != "threads-late"]
