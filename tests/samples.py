"""Machines for tests of the pure parts: from a shape, and at random."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import replace as changed
from functools import cache
from pathlib import Path

from hypothesis import strategies as st

from machines.build import build
from machines.shapes import SHAPES
from machines.spec import Shape
from numabind import discover
from numabind._discover import Questions
from numabind._machine import Allowed, Cpu, Device, Machine, Node

NO_RUNTIME = Questions(runtime=False)
# A tree has 40 files a CPU: in memory where that is possible, since disks can take 1 ms for each.
SHM = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@cache
def machine(shape: str | Shape, **changes: object) -> Machine:
    """The machine of this name (or of this shape), with `changes` to the shape, discovered."""
    wanted = changed(SHAPES[shape] if isinstance(shape, str) else shape, **changes)
    with tempfile.TemporaryDirectory(dir=SHM) as directory:
        return discover(build(wanted, Path(directory)), NO_RUNTIME)


def gpu(number: int, **fields: object) -> Device:
    """The number-th of some equal GPUs; its UUID begins with "GPU-" and the number, thrice."""
    known = {
        "pci": f"0000:{16 + number:02x}:00.0",
        "vendor": "nvidia",
        "vendor_id": 0x10DE,
        "device_id": 0x2330,
        "numa_node": 0,
        "node": 0,
        "node_source": "numa_node",
        "near_nodes": (0,),
        "uuid": f"GPU-{str(number) * 3}-aa",
        "index": number,
        **fields,
    }
    return Device(**known)


def with_devices(*devices: Device) -> Machine:
    """A machine of one node and four CPUs that has these devices."""
    cpus = frozenset(range(4))
    return Machine(
        (Node(0, cpus, 1 << 30, (10,)),),
        tuple(Cpu(n, 0, 0, n, 0) for n in sorted(cpus)),
        devices,
        Allowed(cpus, frozenset({0})),
    )


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Nodes with gaps, SMT or not, L3s and packages known or not, GPUs anywhere, any mask."""
    nodes, cpus, next_cpu = [], [], 0
    numbers = sorted(draw(st.sets(st.integers(0, 9), min_size=1, max_size=4)))
    smt = draw(st.integers(1, 4))
    known = draw(st.booleans())
    for number in numbers:
        cores = draw(st.integers(0, 5))
        first, next_cpu = next_cpu, next_cpu + cores * smt
        for cpu in range(first, next_cpu):
            core = first + (cpu - first) // smt * smt
            l3 = first if cpu < first + 2 * smt else min(first + 2 * smt, next_cpu - 1)
            cpus.append(
                Cpu(cpu, number, number // 2 if known else None, core, l3 if known else None)
            )
        kind = "cpu" if cores else draw(st.sampled_from(["gpu", "memory"]))
        memory = draw(st.sampled_from([None, 0, 1 << 30]))
        row = tuple(
            draw(st.lists(st.integers(10, 90), min_size=len(numbers), max_size=len(numbers)))
        )
        nodes.append(Node(number, frozenset(range(first, next_cpu)), memory, row, kind))
    devices = []
    for i in range(draw(st.integers(0, 6))):
        on = draw(st.sampled_from([*numbers, None]))
        place = {"node": None, "node_source": None, "near_nodes": (), "numa_node": -1}
        if on is not None:
            place = {"node": on, "near_nodes": (on,), "numa_node": on}
        devices.append(gpu(i, **place))
    allowed = frozenset(cpu.id for cpu in cpus if draw(st.integers(0, 3)))
    mems = frozenset(n for n in numbers if draw(st.integers(0, 3)))
    quota = draw(st.none() | st.floats(0.01, 64))
    return Machine(tuple(nodes), tuple(cpus), tuple(devices), Allowed(allowed, mems, quota))


CPUS = sorted(os.sched_getaffinity(0))
ENDS = (CPUS[0], CPUS[-1])


def pretend(directory: Path, numa_node: int | None = None) -> Path:
    """A hand-made snapshot: the first and the last CPU here as two nodes, with a GPU on each.

    `numa_node` is what the firmware says of both.
    """
    nodes = [{"id": i, "cpus": str(cpu), "memory_bytes": 1 << 30} for i, cpu in enumerate(ENDS)]
    devices = [
        {"pci": f"0000:0{i}:00.0", "vendor": "nvidia", "vendor_id": "0x10de", "node": i}
        | {"device_id": "0x2330", "numa_node": numa_node, "near_nodes": [i]}
        for i in range(2)
    ]
    machine = {
        "schema": 1,
        "host": {"boot_id": None},
        "nodes": nodes,
        "cpus": [{"id": cpu, "node": i} for i, cpu in enumerate(ENDS)],
        "devices": devices,
        "allowed": {"cpus": "", "nodes": "0-1"},
    }
    file = directory / "machine.json"
    file.write_text(json.dumps(machine))
    return file
