"""What numabind costs at start-up, against peers in the same run.

    python benchmarks/startup.py [--runs N] [--json]

Part one runs whole processes in turn (A B C A B C …), so that a drift of the machine's speed hits
all alike: `numabind run -- true`, this interpreter bare, `numactl` and `hwloc-bind` if installed.
Part two times discover + plan in this process on made-up trees of 384 to 4,096 CPUs. Medians are
printed, and ratios to the peer. Targets, from the project's issue on its core:

    numabind run -- true   at most 12 ms over the bare interpreter, and less than hwloc-bind plus it
    discover + plan        at most 15 ms at 384 CPUs; linear or better to 4,096 CPUs and 64 nodes
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import numabind
from machines.build import build
from machines.shapes import SHAPES, big

SIZES = ((512, 8), (1024, 16), (2048, 32), (4096, 64))


def commands() -> dict[str, list[str]]:
    """The commands to compare; peers that are not installed are left out."""
    own = Path(sys.executable).with_name("numabind")
    found = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "numabind run -- true": [str(own), "run", "--quiet", "--", "true"],
    }
    if shutil.which("hwloc-bind"):
        found["hwloc-bind node:0 -- true"] = ["hwloc-bind", "node:0", "--", "true"]
    if shutil.which("numactl"):
        found["numactl -N 0 -m 0 true"] = ["numactl", "-N", "0", "-m", "0", "true"]
    return found


def time_processes(runs: int) -> dict[str, float]:
    """Median wall time of each command in milliseconds, run in turn."""
    table = commands()
    samples: dict[str, list[float]] = {name: [] for name in table}
    for turn in range(runs + 3):
        for name, command in table.items():
            start = time.perf_counter()
            subprocess.run(command, check=False, stderr=subprocess.DEVNULL)
            if turn >= 3:
                samples[name].append((time.perf_counter() - start) * 1e3)
    return {name: statistics.median(values) for name, values in samples.items()}


def time_trees(runs: int) -> dict[str, float]:
    """Median time of discover + plan in milliseconds, by tree."""
    shapes = {"2 packages, 8 nodes, 384 CPUs, 8 GPUs": SHAPES["bench384"]}
    for cpus, nodes in SIZES:
        shapes[f"{nodes} nodes, {cpus} CPUs"] = big(nodes, cpus)
    found = {}
    # In memory if possible, as sysfs is.
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as tmp:
        for name, shape in shapes.items():
            root = build(shape, Path(tmp) / name.replace(" ", "-"))
            samples = []
            for _ in range(runs):
                start = time.perf_counter()
                numabind.plan(numabind.discover(root), mode="exclusive")
                samples.append((time.perf_counter() - start) * 1e3)
            found[name] = statistics.median(samples)
            shutil.rmtree(root)
    return found


def main() -> int:
    """Measure, print, and say whether the targets are met."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    processes = time_processes(options.runs)
    trees = time_trees(max(5, options.runs // 4))
    if options.json:
        print(json.dumps({"processes_ms": processes, "trees_ms": trees}, indent=1))
        return 0
    bare = processes["python -c pass"]
    ours = processes["numabind run -- true"]
    print(f"{os.uname().machine}, {os.cpu_count()} CPUs, Python {sys.version.split()[0]}")
    for name, value in processes.items():
        print(f"{name:45} {value:8.1f} ms   {value / bare:5.2f} × the bare interpreter")
    print(f"numabind run adds {ours - bare:.1f} ms (target 12)")
    hwloc = processes.get("hwloc-bind node:0 -- true")
    if hwloc is not None:
        print(
            f"against hwloc-bind plus the interpreter: {ours / (hwloc + bare):.2f} (target below 1)"
        )
    for name, value in trees.items():
        print(f"discover + plan, {name:40} {value:8.1f} ms")
    smallest, largest = (trees[f"{n} nodes, {c} CPUs"] for c, n in (SIZES[0], SIZES[-1]))
    print(f"4096 over 512 CPUs: {largest / smallest:.1f} × the time for 8 × the CPUs")
    return 0


if __name__ == "__main__":
    # It would have each start compile numabind again; installers write bytecode.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.exit(main())
