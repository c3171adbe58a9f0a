"""Show from the kernel's own books where this process is: run it bare and under `numabind run`.

    python examples/readback.py
    numabind run -- python examples/readback.py

Needs no numabind: it reads /proc alone, so it checks numabind as well as any other binder.
"""

import mmap
import sys
from pathlib import Path

SIZE = 64 << 20


def masks() -> list[str]:
    """The CPU list of every thread of this process."""
    lists = []
    for task in sorted(Path("/proc/self/task").iterdir(), key=lambda path: int(path.name)):
        status = dict(
            line.split(":\t", 1)
            for line in (task / "status").read_text().splitlines()
            if ":\t" in line
        )
        lists.append(f"{status['Name']} ({task.name}): CPUs {status['Cpus_allowed_list']}")
    return lists


def pages_of_fresh_memory() -> tuple[str, dict[str, int]]:
    """Touch 64 MiB and return the memory policy and the bytes on each node, from numa_maps."""
    memory = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for offset in range(0, SIZE, mmap.PAGESIZE):
        memory[offset] = 1
    best: tuple[int, str, dict[str, int]] = (0, "unknown", {})
    for line in Path("/proc/self/numa_maps").read_text().splitlines():
        words = line.split()
        unit = next((int(w[18:]) << 10 for w in words if w.startswith("kernelpagesize_kB=")), 4096)
        pages = [w[1:].split("=") for w in words[2:] if w[0] == "N" and w[1:2].isdigit()]
        nodes = {f"node {node}": int(count) * unit for node, count in pages}
        policy = line.split(" ", 1)[1].split(" anon=")[0].split(" file=")[0]
        if sum(nodes.values()) > best[0]:
            best = (sum(nodes.values()), policy, nodes)
    memory.close()
    return best[1], best[2]


def main() -> int:
    """Print threads, policy and pages."""
    print("threads:", *masks(), sep="\n  ")
    if not Path("/proc/self/numa_maps").exists():
        print("memory: this kernel has no NUMA support, so there is nothing to read back")
        return 0
    policy, nodes = pages_of_fresh_memory()
    spread = ", ".join(f"{size >> 20} MiB on {node}" for node, size in nodes.items())
    print(f"64 MiB of fresh memory: policy {policy}; {spread}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
