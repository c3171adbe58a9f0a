"""How long `numabind fleet report` takes for 10,000 nodes of 8 GPUs, and what it finds in them.

    python benchmarks/fleet.py [--nodes N] [--json] [--keep DIR]

Makes the snapshots from examples/hgx-h100.json, each with its own name, boot id, UUIDs, kernel,
numbers of disks and GPUs, and some pages more or less, 25 of them with something else wrong, and 5
that are broken. Prints the seconds and the peak memory of the report as a process of its own, and
fails unless exactly the planted ones were found, with what was planted named.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

Data = dict[str, Any]
EXAMPLE = Path(__file__).resolve().parent.parent / "examples/hgx-h100.json"
GIB = 1 << 30


def node() -> Data:
    """One node as numabind writes it today: 512 GiB a NUMA node, ten NICs and eight disks."""
    data: Data = json.loads(EXAMPLE.read_text())
    data["host"]["numa_balancing"] = 0
    for each in data["nodes"]:
        each["memory_bytes"] = 504 * GIB
    for number, device in enumerate(data["devices"]):
        path = [f"pci0000:{number + 16:02x}", f"0000:{number + 16:02x}:01.0"]
        device |= {"driver_version": "570.86.15", "link_width": 16, "bridges": path}
    card = {"vendor_id": "0x15b3", "device_id": "0x1021", "rdma": True, "bridges": []}
    data["nics"] = [
        {**card, "pci": f"0000:{i + 32:02x}:00.0", "node": i // 5, "names": [f"mlx5_{i}"]}
        for i in range(10)
    ]
    data["disks"] = [
        {**card, "pci": f"0000:{i + 64:02x}:00.0", "node": i // 4, "names": [f"nvme{i}"]}
        for i in range(8)
    ]
    return data


def gpus(**changes: object) -> Callable[[Data, list[int]], None]:
    """A change of some GPUs' fields."""

    def change(data: Data, numbers: list[int]) -> None:
        for number in numbers:
            data["devices"][number] |= changes

    return change


def lose(data: Data, numbers: list[int]) -> None:
    """GPUs that have fallen off the bus."""
    data["devices"] = [d for i, d in enumerate(data["devices"]) if i not in numbers]


def memory(gib: int) -> Callable[[Data, list[int]], None]:
    """Nodes with other memory than the rest."""

    def change(data: Data, numbers: list[int]) -> None:
        for number in numbers:
            data["nodes"][number]["memory_bytes"] = gib * GIB

    return change


def nps(data: Data, _: list[int]) -> None:
    """Each package as two nodes."""
    data["nodes"] = []
    for number in range(4):
        near = 10, 12, 21, 21
        row = [near[number ^ other] for other in range(4)]
        first = 28 * number
        cpus = f"{first}-{first + 27},{first + 112}-{first + 139}"
        data["nodes"].append(
            {"id": number, "cpus": cpus, "memory_bytes": 252 * GIB, "distances": row, "kind": "cpu"}
        )
        for cpu in data["cpus"]:
            if first <= cpu["id"] % 112 < first + 28:
                cpu["node"] = number
    for number, device in enumerate(data["devices"]):
        device |= {"node": number // 2, "near_nodes": [number // 2]}
    data["allowed"]["nodes"] = "0-3"


def without_smt(data: Data, _: list[int]) -> None:
    """The second threads are not there."""
    data["cpus"] = data["cpus"][:112]
    for each, cpus in zip(data["nodes"], ("0-55", "56-111"), strict=True):
        each["cpus"] = cpus
    for device in data["devices"]:
        device["local_cpus"] = None
    data["allowed"]["cpus"] = "0-111"


def offline(data: Data, _: list[int]) -> None:
    """One CPU is offline."""
    data["cpus"] = data["cpus"][:-1]
    data["offline_cpus"] = "223"
    data["nodes"][1]["cpus"] = "56-111,168-222"
    data["allowed"]["cpus"] = "0-222"
    for device in data["devices"]:
        device["local_cpus"] = None


def host(**changes: object) -> Callable[[Data, list[int]], None]:
    """A change of the host's settings."""
    return lambda data, _: data["host"].update(changes)


def allowed(**changes: object) -> Callable[[Data, list[int]], None]:
    """A narrower cgroup."""
    return lambda data, _: data["allowed"].update(changes)


def distances(data: Data, _: list[int]) -> None:
    """Firmware that says otherwise how far the nodes are."""
    data["nodes"][0]["distances"], data["nodes"][1]["distances"] = [10, 32], [32, 10]


far = gpus(node=1, near_nodes=[1], numa_node=1, local_cpus="56-111,168-223")
unknown = gpus(node=None, near_nodes=[], numa_node=-1, node_source=None, local_cpus=None)
MIG = [{"uuid": f"MIG-{n}", "gpu_instance": n, "compute_instance": 0} for n in (1, 2)]
# What is wrong, which GPUs or nodes it is about, and words that the report must say of it.
PLANTED: tuple[tuple[Callable[[Data, list[int]], None], list[int], str], ...] = (
    (far, [0], "GPU 0 (0000:1b:00.0) is on node 1"),
    (far, [3], "GPU 3 (0000:61:00.0) is on node 1"),
    (far, [0, 1, 2, 3], "GPUs 0-3 are on node 1"),
    (unknown, [5], "GPU 5 (0000:c3:00.0) is on no known node"),
    (unknown, list(range(8)), "GPUs 0-3 are on no known node"),
    (lose, [7], "GPU 7 (0000:df:00.0) is missing"),
    (lose, [2, 6], "GPUs 2,6 are missing"),
    (lose, list(range(8)), "no GPU"),
    (gpus(device_id="0x2335", name="NVIDIA H200"), [4], "GPU 4 (0000:9d:00.0) is NVIDIA H200"),
    (gpus(link_width=8), [1], "GPU 1 (0000:43:00.0) has a link of x8"),
    (gpus(driver_version="550.54.15"), list(range(8)), "driver nvidia 550.54.15"),
    (gpus(driver="vfio-pci", driver_version=None), [6], "driver vfio-pci"),
    (
        gpus(
            partitions=[{"uuid": "MIG-1", "gpu_instance": n, "compute_instance": 0} for n in (1, 2)]
        ),
        [2],
        "GPU 2 (0000:52:00.0) has partitions",
    ),
    (memory(472), [1], "node 1 has 47"),
    (memory(441), [0], "node 0 has 44"),
    (memory(0), [1], "node 1 has no memory"),
    (memory(1008), [1], "node 1 has 100"),
    (nps, [], "4 nodes with CPUs"),
    (without_smt, [], "1 hardware thread per core"),
    (offline, [], "CPU 223 is offline"),
    (host(numa_balancing=1), [], "numa_balancing is 1"),
    (allowed(cpus="0-31"), [], "allowed CPUs are 0-31 (32 of 224)"),
    (allowed(nodes="0"), [], "allowed memory is on node 0"),
    (allowed(cpu_quota=16.0), [], "16 CPUs' worth of time"),
    (distances, [], "distances of node 0 are 10 32"),
)
BROKEN = ("", "{", "[]", '{"schema": 99}', '{"schema": 1, "allowed": {"cpus": "0-"}}')


def make(folder: Path, count: int, dice: random.Random) -> dict[str, str]:
    """Write the snapshots; the names of the planted ones with the words that belong to them."""
    base = node()
    places = sorted(dice.sample(range(count), len(PLANTED)))
    wrong = dict(zip(places, PLANTED, strict=True))
    planted = {}
    for number in range(count):
        name = f"gpu{number:05}"
        data = base
        if number in wrong:
            data = copy.deepcopy(base)
            change, which, words = wrong[number]
            change(data, which)
            planted[name] = words
        data["host"]["name"] = name
        data["host"]["boot_id"] = str(uuid.UUID(int=dice.getrandbits(128)))
        data["host"]["kernel"] = f"6.8.0-{dice.randrange(40, 90)}-generic"
        numbers = dice.sample(range(8), 8)
        for device, index in zip(data["devices"], numbers, strict=False):
            device["uuid"] = f"GPU-{uuid.UUID(int=dice.getrandbits(128))}"
            device["index"] = index
        for disk, index in zip(data["disks"], reversed(numbers), strict=True):
            disk["names"] = [f"nvme{index}"]
        sizes = [each["memory_bytes"] for each in data["nodes"]]
        for each, size in zip(data["nodes"], sizes, strict=True):
            # Up to 1 GiB goes to the crash kernel and to what firmware keeps.
            each["memory_bytes"] = max(0, size - dice.randrange(0, 1 << 18) * 4096) if size else 0
        text = json.dumps(data, indent=1)
        for each, size in zip(data["nodes"], sizes, strict=True):
            each["memory_bytes"] = size
        rack = folder / f"rack{number // 64:03}"
        rack.mkdir(parents=True, exist_ok=True)
        if number % 100:
            (rack / f"{name}.json").write_text(text)
        else:
            with gzip.open(rack / f"{name}.json.gz", "wt", compresslevel=1) as file:
                file.write(text)
    for number, text in enumerate(BROKEN):
        (folder / f"broken{number}.json").write_text(text)
    return planted


def main() -> int:
    """Make, report, compare; 1 unless exactly what was planted is found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", metavar="DIR", help="leave the snapshots there")
    options = parser.parse_args()
    folder = Path(options.keep or tempfile.mkdtemp(prefix="fleet"))
    try:
        planted = make(folder, options.nodes, random.Random(options.seed))
        size = sum(path.stat().st_size for path in folder.rglob("*.json*"))
        command = [sys.executable, "-m", "numabind", "fleet", "report", str(folder), "--json"]
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert process.stdout is not None
        answer = process.stdout.read()
        _, _, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
    finally:
        if not options.keep:
            shutil.rmtree(folder)
    report = json.loads(answer)
    found = {
        member["host"]: "\n".join(outlier["text"])
        for kind in report["kinds"]
        for outlier in kind["outliers"]
        for member in outlier["members"]
    }
    wrong = [name for name in {*found, *planted} if name not in found or name not in planted]
    wrong += [name for name in planted if planted[name] not in found.get(name, "")]
    figures = {
        "nodes": options.nodes,
        "bytes": size,
        "seconds": round(seconds, 2),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 2),
        "peak_bytes": usage.ru_maxrss * 1024,
        "planted": len(planted),
        "found": len(found),
        "wrong": sorted(set(wrong)),
        "kinds": len(report["kinds"]),
        "broken": len(report["broken"]),
    }
    if options.json:
        print(json.dumps(figures, indent=1))
    else:
        print(
            f"{options.nodes:,} snapshots, {size / 1e6:,.0f} MB: {seconds:.1f} s "
            f"({figures['cpu_seconds']:.1f} s of CPU), peak {usage.ru_maxrss / 1024:.0f} MiB; "
            f"{len(found)} outliers found of {len(planted)} planted, "
            f"{figures['broken']} of {len(BROKEN)} broken ones named"
        )
        for name in figures["wrong"]:
            print(f"  {name}: planted {planted.get(name)!r}, found {found.get(name)!r}")
    return 1 if wrong or len(report["broken"]) != len(BROKEN) or len(report["kinds"]) != 1 else 0


if __name__ == "__main__":
    sys.exit(main())
