"""Adam on the CPU under optimizer_threads against OMP_NUM_THREADS=1, in turns.

usage: python benchmarks/optimizer.py [--parameters 20000000] [--pairs 9]
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

import numabind.torch


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--parameters", type=int, default=20_000_000)
    parser.add_argument("--pairs", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)  # what a launcher's OMP_NUM_THREADS=1 gives
    threads = numabind.torch.optimizer_threads()
    parameter = torch.nn.Parameter(torch.randn(options.parameters))
    parameter.grad = torch.randn(options.parameters)
    for fused in (True, False):
        optimizer = torch.optim.Adam([parameter], fused=fused)
        optimizer.step()
        with threads:
            optimizer.step()
        times = []
        for _ in range(options.pairs):
            start = time.perf_counter()
            optimizer.step()
            middle = time.perf_counter()
            with threads:
                optimizer.step()
            times.append((middle - start, time.perf_counter() - middle))
        ratio = statistics.median(one / many for one, many in times)
        one, many = (1000 * statistics.median(column) for column in zip(*times, strict=True))
        name = "fused" if fused else "for-loop"
        print(
            f"Adam ({name}), {options.parameters} parameters: {many:.1f} ms with "
            f"{threads.threads} threads against {one:.1f} ms with 1, {ratio:.2f} times as fast"
        )


if __name__ == "__main__":
    main()
