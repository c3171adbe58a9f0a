"""Touching a slab with all cores against one, and a warm pool against torch's own pinned memory.

usage: python benchmarks/pool.py [--mib 512] [--pairs 7]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

import torch

import numabind.torch
from numabind._slab import make_slab


def seconds(work: Callable[[], object]) -> float:
    """How long a call takes; what it returns is freed afterwards."""
    start = time.perf_counter()
    kept = work()
    end = time.perf_counter()
    del kept
    return end - start


def paired(name: str, ours: Callable[[], object], peer: Callable[[], object], pairs: int) -> None:
    """Print ours against the peer's, in turns, as the ratio of the median pair."""
    times = [(seconds(ours), seconds(peer)) for _ in range(pairs)]
    ratio = statistics.median(peer / mine for mine, peer in times)
    mine, other = (1000 * statistics.median(column) for column in zip(*times, strict=True))
    print(f"{name}: {mine:.3f} ms against {other:.3f} ms, {ratio:.2f} times as fast")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--pairs", type=int, default=7)
    options = parser.parse_args()
    size = options.mib << 20
    cores = len(os.sched_getaffinity(0))
    paired(
        f"first touch of {options.mib} MiB, {cores} threads against 1",
        lambda: make_slab(size, 0, threads=cores),
        lambda: make_slab(size, 0, threads=1),
        options.pairs,
    )
    pool = numabind.torch.Pool(0, keep=2 * size)
    pool.empty(size, torch.uint8)
    pinned = torch.cuda.is_available()

    def cold() -> torch.Tensor:
        if pinned:
            torch._C._host_emptyCache()  # noqa: SLF001 (torch has no public name for it)
            return torch.empty(size, dtype=torch.uint8, pin_memory=True)
        return torch.empty(size, dtype=torch.uint8).zero_()

    what = "torch.empty(pin_memory=True), cold" if pinned else "torch.zeros (there is no CUDA here)"
    paired(
        f"a warm pool against {what}", lambda: pool.empty(size, torch.uint8), cold, options.pairs
    )


if __name__ == "__main__":
    main()
