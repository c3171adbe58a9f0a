"""What a launcher starts: prints its rank, the masks of its threads and its OMP_NUM_THREADS.

One line of JSON in one write, so that workers that share a terminal don't mix. With "bind" as an
argument it binds itself first.
"""

from __future__ import annotations

import json
import os
import sys
import threading

RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")


def main() -> None:
    stop = threading.Event()
    helper = threading.Thread(target=stop.wait)
    helper.start()
    if "bind" in sys.argv:
        import numabind

        numabind.bind()
    masks = {tuple(sorted(os.sched_getaffinity(int(tid)))) for tid in os.listdir("/proc/self/task")}
    rank = next((os.environ[name] for name in RANKS if name in os.environ), None)
    line = {
        "rank": None if rank is None else int(rank),
        "pid": os.getpid(),
        "masks": sorted(masks),
        "omp": os.environ.get("OMP_NUM_THREADS"),
    }
    os.write(1, (json.dumps(line) + "\n").encode())
    stop.set()
    helper.join()


if __name__ == "__main__":
    main()
