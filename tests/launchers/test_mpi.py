"""Open MPI and MPICH side by side: local ranks, and their own binding noticed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launchers.pretend import (
    CPUS,
    HALVES,
    assert_near,
    problems,
    workers,
    write_snapshot,
)

WORKER = str(Path(__file__).parent / "worker.py")
RUN = (sys.executable, "-m", "numabind", "run")
BODY = ("--", sys.executable, WORKER)
# As root in a container with two CPUs, Open MPI wants to be told that this is meant.
OPENMPI = ("mpirun.openmpi", "--allow-run-as-root", "--oversubscribe")
MPICH = ("mpirun.mpich",)
UNBOUND = {OPENMPI: ("--bind-to", "none"), MPICH: ("-bind-to", "none")}
BOTH = pytest.mark.parametrize("mpirun", (OPENMPI, MPICH), ids=("Open MPI", "MPICH"))


class Job:
    def __init__(self, folder: Path) -> None:
        self.events = folder / "events"
        self.environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "TMPDIR": "/tmp",
            "NUMABIND_SNAPSHOT": str(write_snapshot(folder)),
            "NUMABIND_EVENTS": str(self.events),
            "NUMABIND_MEMORY": "none",
        }

    def __call__(self, *command: str) -> dict[int, tuple[dict[str, Any], dict[str, Any]]]:
        done = subprocess.run(
            command,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return workers(done.stdout, self.events)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    for name in ("mpirun.openmpi", "mpirun.mpich"):
        if shutil.which(name) is None:
            pytest.skip("needs openmpi-bin and mpich")
    return Job(tmp_path)


@BOTH
def test_the_local_rank_picks_the_gpu(job: Job, mpirun: tuple[str, ...]) -> None:
    found = job(*mpirun, *UNBOUND[mpirun], "-n", "4", *RUN, *BODY)
    assert sorted(found) == [0, 1, 2, 3]
    for rank, worker in found.items():
        assert_near(worker, rank)
        assert problems(worker[1]) == []
        assert worker[0]["omp"] == str(worker[1]["threads"])


@BOTH
def test_a_worker_that_binds_itself(job: Job, mpirun: tuple[str, ...]) -> None:
    found = job(*mpirun, *UNBOUND[mpirun], "-n", "4", sys.executable, WORKER, "bind")
    for rank, worker in found.items():
        assert_near(worker, rank)


@BOTH
def test_more_workers_than_gpus(job: Job, mpirun: tuple[str, ...]) -> None:
    command = (*mpirun, *UNBOUND[mpirun], "-n", "5", *RUN)
    found = job(*command, *BODY)
    assert problems(found[4][1]) == ["more-workers-than-devices"]
    assert found[4][0]["masks"] == [CPUS]
    found = job(*command, "--share", "block", *BODY)
    for rank, gpu in enumerate((0, 0, 1, 2, 3)):
        assert_near(found[rank], gpu)


@BOTH
def test_the_launchers_own_binding_is_named(job: Job, mpirun: tuple[str, ...]) -> None:
    """Two ranks, each on a core: rank 1's may be far from GPU 1, which is on node 0."""
    found = job(*mpirun, "--bind-to", "core", "-n", "2", *RUN, *BODY)
    narrowed = 0
    for line, binding in found.values():
        (mask,) = line["masks"]
        assert len(mask) < len(CPUS)
        if mask != HALVES[0]:
            narrowed += 1
            name = "MPICH" if mpirun is MPICH else "Open MPI"
            (said,) = (p for p in binding["problems"] if p["name"] == "launcher-bound")
            assert said["cause"].startswith(f"{name} bound this process to CPUs ")
    assert narrowed


@BOTH
def test_the_launchers_own_binding_can_be_ignored(job: Job, mpirun: tuple[str, ...]) -> None:
    found = job(*mpirun, "--bind-to", "core", "-n", "2", *RUN, "--ignore-inherited", *BODY)
    assert_near(found[0], 0)
    assert_near(found[1], 1)
