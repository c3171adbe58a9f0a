"""Slurm's own daemons on this machine: ranks, GPUs and masks as slurmd gives them to tasks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launchers.pretend import (
    ALL,
    CPUS,
    HALVES,
    NEAR,
    assert_near,
    problems,
    workers,
    write_snapshot,
)
from launchers.slurm_site import Site
from machines.build import build
from machines.shapes import SHAPES
from numabind import Machine, discover
from numabind._discover import Questions

WORKER = str(Path(__file__).parent / "worker.py")
RUN = (sys.executable, "-m", "numabind", "run")
BODY = ("--", sys.executable, WORKER)
# A whole node with more tasks than it may have CPUs.
ALLOC = ("salloc", "--quiet", "--nodes=1", "--exclusive", f"--gres=gpu:{4}")

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    if shutil.which("sinfo") is None:
        pytest.skip("needs slurm-wlm and munge")
    made = Site()
    try:
        made.start()
        yield made
    finally:
        made.stop()


class Job:
    def __init__(self, site: Site, folder: Path) -> None:
        self.site, self.events = site, folder / "events"
        self.variables = {
            "NUMABIND_SNAPSHOT": str(write_snapshot(folder)),
            "NUMABIND_EVENTS": str(self.events),
            "NUMABIND_MEMORY": "none",
        }

    def __call__(self, *command: str) -> dict:
        return workers(self.site.run(*command, **self.variables), self.events)


@pytest.fixture
def job(site: Site, tmp_path: Path) -> Job:
    return Job(site, tmp_path)


def test_the_local_rank_picks_among_all_gpus(job: Job) -> None:
    found = job(*ALLOC, "srun", "-n4", "--overcommit", "--cpu-bind=none", *RUN, *BODY)
    assert sorted(found) == [0, 1, 2, 3]
    for rank, worker in found.items():
        assert_near(worker, rank)
        assert problems(worker[1]) == []
        assert worker[0]["omp"] == str(worker[1]["threads"])


def test_a_worker_that_binds_itself(job: Job) -> None:
    command = (sys.executable, WORKER, "bind")
    found = job(*ALLOC, "srun", "-n4", "--overcommit", "--cpu-bind=none", *command)
    for rank, worker in found.items():
        assert_near(worker, rank)


def test_one_gpu_for_each_task(job: Job) -> None:
    found = job(
        *(*ALLOC, "srun", "-n4", "--overcommit", "--cpu-bind=none", "--gpus-per-task=1"),
        *(*RUN, *BODY),
    )
    assert sorted(found) == [0, 1, 2, 3]
    devices = [worker[1]["device"] for worker in found.values()]
    assert len(set(devices)) == 4
    for rank, worker in found.items():
        assert_near(worker, rank)


def test_two_gpus_for_each_task(job: Job) -> None:
    found = job(
        *(*ALLOC, "srun", "-n2", "--overcommit", "--cpu-bind=none", "--gpus-per-task=2"),
        *(*RUN, *BODY),
    )
    assert_near(found[0], 0, 1)
    assert_near(found[1], 2, 3)
    assert problems(found[0][1]) == problems(found[1][1]) == []


def test_a_batch_script_with_steps(job: Job, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    step = " ".join(("srun", "--overcommit", "--cpu-bind=none", *RUN, *BODY))
    script.write_text(f"#!/bin/sh\n{step}\n")
    output = tmp_path / "output"
    job.site.run(
        *("sbatch", "--wait", "--nodes=1", "--exclusive", "--ntasks=2", "--gres=gpu:4"),
        *("--overcommit", f"--output={output}", str(script)),
        **job.variables,
    )
    found = workers(output.read_text(), job.events)
    assert_near(found[0], 0)
    assert_near(found[1], 1)


def test_slurms_own_binding_is_planned_within_and_named(job: Job) -> None:
    cpus = f"--cpu-bind=map_cpu:{CPUS[0]},{CPUS[-1]}"
    found = job(*ALLOC, "srun", "-n2", "--overcommit", cpus, *RUN, *BODY)
    line, binding = found[0]
    assert line["masks"] == [[CPUS[0]]]
    assert binding["bound"]
    assert ("launcher-bound" in problems(binding)) == (len(HALVES[0]) > 1)
    line, binding = found[1]  # its GPU is on node 0, its CPU on node 1
    assert line["masks"] == [[CPUS[-1]]]
    assert not binding["bound"]
    assert set(problems(binding)) == {"cpus-not-allowed", "launcher-bound"}
    (said,) = (p for p in binding["problems"] if p["name"] == "launcher-bound")
    assert said["cause"].startswith(f"Slurm bound this process to CPUs {CPUS[-1]} ")
    assert "srun --cpu-bind=none" in said["remedy"]


def test_slurms_own_binding_can_be_ignored(job: Job) -> None:
    cpus = f"--cpu-bind=map_cpu:{CPUS[0]},{CPUS[-1]}"
    found = job(
        *(*ALLOC, "srun", "-n2", "--overcommit", cpus, *RUN, "--ignore-inherited", *BODY),
    )
    assert_near(found[0], 0)
    assert_near(found[1], 1)


WHERE = """
import os, sys
from numabind import Options, discover
from numabind._bind import Request, seat_of
from numabind._discover import Questions
seat, _ = seat_of(discover(sys.argv[1], Questions(runtime=False)), Request(Options(), os.environ))
where = seat.handle.device.pci if seat.handle else [p.text for p in seat.problems]
print(os.environ["SLURM_LOCALID"], os.environ["CUDA_VISIBLE_DEVICES"], where)
"""


def test_devices_that_a_cgroup_hides_are_not_counted() -> None:
    """ConstrainDevices: each task's only GPU is called 0, and access(2) knows which it is."""
    if not os.access("/sys/fs/cgroup/devices", os.W_OK):
        pytest.skip("needs a writable device cgroup (version 1)")
    site = Site()
    try:
        root = build(SHAPES["hgx_h100"], site.folder)
        pcis = [device.pci for device in discover(root, Questions(runtime=False)).devices]
        site.start(constrain=True)
        output = site.run(
            *(*ALLOC, "srun", "-n4", "--overcommit", "--cpu-bind=none", "--gpus-per-task=1"),
            *(sys.executable, "-c", WHERE, str(root)),
        )
    finally:
        site.stop()
    assert sorted(output.splitlines()) == [f"{rank} 0 {pcis[rank]}" for rank in range(4)]


SURVEY = (sys.executable, "-m", "numabind", "fleet", "survey", "--srun", "--json")


@pytest.mark.parametrize("before", [(), ALLOC], ids=["alone", "in an allocation"])
def test_a_survey_asks_every_node(job: Job, before: tuple[str, ...]) -> None:
    report = json.loads(job.site.run(*before, *SURVEY, **job.variables))
    (kind,) = report["kinds"]
    assert kind["reference"]["members"][0]["file"] == "pretend.json"
    assert {each["subject"] for each in kind["reference"]["aspects"]} >= {"node 0", "node 1"}
    assert report["silent"] == report["broken"] == []


def test_a_survey_keeps_snapshots_and_names_who_did_not_answer(job: Job, tmp_path: Path) -> None:
    job.site.run(*SURVEY, "-o", str(tmp_path / "kept"), "--", "-w", "pretend", **job.variables)
    assert len(Machine.load(tmp_path / "kept/pretend.json").devices) == 4
    job.variables["NUMABIND_SNAPSHOT"] = "/nowhere/machine.json"
    done = subprocess.run(
        SURVEY,
        env={**job.site.environ, **job.variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    (silent,) = json.loads(done.stdout)["silent"]
    assert silent["node"] == "pretend"
    assert "/nowhere/machine.json" in silent["cause"]
    assert "WARNING node pretend did not answer" in done.stderr


def test_a_survey_that_gets_no_node_in_time_says_so_and_takes_its_job_back(job: Job) -> None:
    done = subprocess.run(
        [*SURVEY, "--timeout", "1", "--", "-N1", "--begin=now+1hour"],
        env={**job.site.environ, **job.variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert "numabind: srun: no node answered in 1 s" in done.stderr
    assert job.site.run("squeue", "--noheader") == ""


def test_off_for_one_job(job: Job) -> None:
    job.variables["NUMABIND"] = "0"
    found = job(*ALLOC, "srun", "-n2", "--overcommit", "--cpu-bind=none", *RUN, *BODY)
    assert [line["masks"] for line, _ in found.values()] == [[CPUS], [CPUS]]
    assert NEAR[0] != ALL
