"""What `numabind status` costs, against numastat on the same process in the same run.

    python benchmarks/status.py [GIB ...]        (default: 4 8 16, as far as memory goes)

A process fills that much memory, in pages of 4 KiB. Each figure is the median of paired runs, in
which either goes first in turn. The in-process figures leave out the interpreter's own start, which
is most of what a sample costs; the bare interpreter stands beside them. Bytecode is written first,
as installers do: with PYTHONDONTWRITEBYTECODE each start would compile numabind again.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from numabind import _pages

NUMABIND = [str(Path(sys.executable).with_name("numabind")), "status"]
HOLD = """
import mmap, sys
memory = mmap.mmap(-1, {size}, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_NOHUGEPAGE)
piece = b"x" * (64 << 20)
for start in range(0, {size}, len(piece)):
    memory[start:start + len(piece)] = piece
print("ready", flush=True)
sys.stdin.read()
"""


def timed(work: Callable[[], object]) -> float:
    """Milliseconds that it took."""
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1000


def command(*words: str) -> Callable[[], object]:
    """Run a command, its output thrown away."""
    return lambda: subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def available_gib() -> float:
    """Memory that can be had without swapping."""
    with open("/proc/meminfo") as file:
        fields = dict(line.split(":") for line in file)
    return int(fields["MemAvailable"].split()[0]) / (1 << 20)


def main() -> None:
    """Print a line for each size."""
    sizes = [int(word) for word in sys.argv[1:]] or [4, 8, 16]
    rounds = 7
    if shutil.which("numastat") is None:
        sys.exit("numastat is not installed (Debian: numactl)")
    print(
        "                      median ms over", rounds, "rounds; ratios to numastat of each round"
    )
    heads = ("sample", "numa_maps", "bare Python", "in process: sample", "numa_maps")
    print(" GiB  numastat  " + "  ".join(f"{head:>15}" for head in heads))
    for size in sizes:
        if available_gib() < size + 1:
            print(f"{size:4}  left out: {available_gib():.1f} GiB are free")
            continue
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLD.format(size=size << 30)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert holder.stdout is not None
        holder.stdout.readline()
        pid = str(holder.pid)
        ways = {
            "numastat": command("numastat", "-p", pid),
            "sample": command(*NUMABIND, "--pages=sample", pid),
            "numa_maps": command(*NUMABIND, "--pages=numa_maps", pid),
            "bare": command(sys.executable, "-c", "pass"),
            "inside": partial(_pages.count_sample, holder.pid),
            "inside all": partial(_pages.count_all, holder.pid),
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(rounds):
            names = list(ways) if number % 2 else list(reversed(ways))
            for name in names:
                times[name].append(timed(ways[name]))
        holder.kill()
        holder.wait()
        cells = []
        for name in list(ways)[1:]:
            pairs = zip(times[name], times["numastat"], strict=True)
            ratio = statistics.median(mine / theirs for mine, theirs in pairs)
            cells.append(f"{statistics.median(times[name]):7.1f} ({ratio:.3f})")
        print(f"{size:4}  {statistics.median(times['numastat']):7.1f}  " + "  ".join(cells))


if __name__ == "__main__":
    for variable in ("NUMABIND_SNAPSHOT", "PYTHONDONTWRITEBYTECODE"):
        os.environ.pop(variable, None)
    command(*NUMABIND, str(os.getpid()))()
    main()
