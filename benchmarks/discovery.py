"""What discovery costs against hwloc's, on the same made-up trees, both as whole processes.

    python benchmarks/discovery.py [--rounds N] [--json]

`numabind show --json --root TREE` and `lstopo-no-graphics --input TREE` (XML, which like the JSON
holds everything) in turn; a bare interpreter beside them, since its start is in numabind's time and
in no C program's. Both must count the same CPUs and nodes. lstopo reads more of some things (every
cache and its size) and less of others (no placement); neither asks a GPU's driver.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from machines.build import build
from machines.shapes import SHAPES, big

SIZES = ((8, 2), (64, 2), (512, 8), (4096, 64))


def run(command: list[str], tree: Path) -> tuple[float, str]:
    """Milliseconds, and what it printed."""
    environ = {
        **os.environ,
        "HWLOC_COMPONENTS": "linux,stop",
        "HWLOC_DUMPED_HWDATA_DIR": str(tree / "none"),
    }
    start = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environ)
    return (time.perf_counter() - start) * 1e3, done.stdout


def main() -> int:
    """Measure each size and print; fails if the two disagree about the machine."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if shutil.which("lstopo-no-graphics") is None:
        sys.exit("lstopo-no-graphics is not installed (Debian: hwloc-nox)")
    shapes = {f"{cpus} CPUs, {nodes} nodes": big(nodes, cpus) for cpus, nodes in SIZES}
    shapes["384 CPUs, 8 nodes, 8 GPUs"] = SHAPES["bench384"]
    table = {}
    own = str(Path(sys.executable).with_name("numabind"))
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as tmp:
        for name, shape in shapes.items():
            tree = build(shape, Path(tmp) / name.replace(" ", "-"))
            commands = {
                "numabind": [own, "show", "--json", "--root", str(tree)],
                "lstopo": ["lstopo-no-graphics", "--input", str(tree), "--of", "xml"],
                "python": [sys.executable, "-c", "pass"],
            }
            times: dict[str, list[float]] = {peer: [] for peer in commands}
            for number in range(options.rounds + 1):
                said = {}
                for peer, command in commands.items():
                    taken, said[peer] = run(command, tree)
                    if number:
                        times[peer].append(taken)
            machine = json.loads(said["numabind"])
            counts = (len(machine["cpus"]), len(machine["nodes"]))
            theirs = tuple(
                len(re.findall(f'<object type="{kind}"', said["lstopo"]))
                for kind in ("PU", "NUMANode")
            )
            if counts != theirs:
                sys.exit(f"{name}: numabind sees CPUs and nodes {counts}, hwloc {theirs}")
            pairs = list(zip(times["numabind"], times["lstopo"], strict=True))
            table[name] = {
                **{f"{peer}_ms": statistics.median(values) for peer, values in times.items()},
                "ratio": statistics.median(mine / theirs for mine, theirs in pairs),
            }
            shutil.rmtree(tree)
    if options.json:
        print(json.dumps(table, indent=1))
        return 0
    print("discovery, whole processes in turn          numabind    lstopo  ratio  (bare python)")
    for name, row in table.items():
        print(
            f"{name:40} {row['numabind_ms']:8.1f} ms {row['lstopo_ms']:7.1f} ms "
            f"{row['ratio']:6.2f}  ({row['python_ms']:.1f} ms)"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
