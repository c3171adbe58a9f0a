"""`numabind launch`: who binds itself, who does not, and what is said before anything starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launchers.conftest import WORKER, Job
from launchers.pretend import ADDRESSES, CPUS, HALVES, problems
from numabind._launched import BEFORE, LAUNCH, before, is_worker

# A launcher as small as can be: starts one process for each rank, as torchrun does.
LAUNCHER = """
import os, subprocess, sys
count, *command = sys.argv[1:]
jobs = [
    subprocess.Popen(command, env={**os.environ, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": count})
    for rank in map(str, range(int(count)))
]
codes = [job.wait() for job in jobs]
print("launcher", sorted(os.sched_getaffinity(0)), "sitecustomize" in sys.modules, flush=True)
sys.exit(max(codes))
"""
# Children of a worker: a spawned one as a DataLoader starts it, and a plain Python.
PARENT = """
import json, os, subprocess, sys
import multiprocessing
def child(queue):
    queue.put(sorted(os.sched_getaffinity(0)))
if __name__ == "__main__":
    os.sched_setaffinity(0, {CPU})
    queue = multiprocessing.get_context("spawn").Queue()
    process = multiprocessing.get_context("spawn").Process(target=child, args=(queue,))
    process.start()
    seen = queue.get(); process.join()
    env = {k: v for k, v in os.environ.items() if k.startswith(("NUMABIND_LAUNCH", "PYTHONPATH"))}
    os.write(1, (json.dumps({"rank": int(os.environ["LOCAL_RANK"]), "pid": os.getpid(),
                             "child": seen, "env": env}) + "\\n").encode())
"""


@pytest.fixture
def launcher(job: Job) -> str:
    path = job.folder / "launcher.py"
    path.write_text(LAUNCHER)
    return str(path)


def launched(*words: str) -> list[str]:
    return ["numabind", "launch", *words, "--", sys.executable]


def test_each_python_worker_binds_itself_and_says_so(job: Job, launcher: str) -> None:
    done = job.run(*launched(), launcher, "4", sys.executable, WORKER)
    done.all_near()
    assert f"launcher {CPUS}" in done.out, "the launcher itself is not bound"
    assert "all places can be had" in done.err
    for rank, (_, binding) in done.workers.items():
        assert f"numabind: rank {rank} bound, gpu {ADDRESSES[rank]}, " in done.err
        assert problems(binding) == []
        assert binding["threads_bound"] == 1, "before anything started a thread"
    assert done.warned() == []


def test_options_go_to_the_workers_and_flags_beat_variables(job: Job, launcher: str) -> None:
    words = launched("--quiet", "--mode", "node", "--threads", "auto", "--share=block")
    command = [launcher, "8", sys.executable, WORKER]
    done = job.run(*words, *command, NUMABIND_MODE="socket", OMP_NUM_THREADS="1")
    assert done.code == 0, done.err
    devices = {rank: binding["device"] for rank, (_, binding) in done.workers.items()}
    assert devices == {rank: ADDRESSES[rank // 2] for rank in range(8)}
    assert done.err == "", "told to be quiet"
    reasons = done.workers[0][1]["reasons"]
    assert any(reason.startswith("mode node") for reason in reasons)


def test_json(job: Job, launcher: str) -> None:
    done = job.run(*launched("--json", "-q"), launcher, "2", sys.executable, WORKER)
    said = [json.loads(line) for line in done.err.splitlines()]
    assert sorted(line["local_rank"] for line in said) == [0, 1]


def test_the_environment_of_a_worker_is_as_without_launch(job: Job, launcher: str) -> None:
    job.environ.pop("PYTHONPATH")
    program = job.folder / "parent.py"
    program.write_text(PARENT.replace("CPU", str(HALVES[1][0])))
    done = job.run(*launched("-q"), launcher, "4", sys.executable, str(program))
    assert done.code == 0, done.err
    assert len(done.workers) == 4
    for line, _ in done.workers.values():
        assert line["env"] == {}
        # The child has what its parent has, also where that is not what a bind would give.
        assert line["child"] == [HALVES[1][0]]
    assert len(job.events.read_text().splitlines()) == 4, "children are not bound again"


def test_the_users_own_sitecustomize_runs(job: Job, launcher: str) -> None:
    own = job.folder / "own"
    own.mkdir()
    text = "import os, sys\nsys.mine = sorted(os.sched_getaffinity(0))\n"
    (own / "sitecustomize.py").write_text(text)
    program = job.folder / "look.py"
    program.write_text(
        "import os, sys, sitecustomize\n"
        "print(os.environ['LOCAL_RANK'], sys.mine, sitecustomize.__file__, sys.path[1], flush=True)"
    )
    done = job.run(
        *launched("-q"), launcher, "1", sys.executable, str(program), PYTHONPATH=str(own)
    )
    assert done.out.startswith(f"0 {list(HALVES[0])} {own}/sitecustomize.py {own}\n"), done.out
    assert done.out.endswith("True\n"), "in the launcher, too"


def test_a_sitecustomize_that_fails_says_so_itself(job: Job, launcher: str) -> None:
    (job.folder / "sitecustomize.py").write_text("import nothing_of_that_name\n")
    there = str(job.folder)
    done = job.run(*launched("-q"), launcher, "1", sys.executable, WORKER, PYTHONPATH=there)
    assert "nothing_of_that_name" in done.err
    assert done.workers[0][1]["bound"]


def test_a_python_that_lacks_numabind(job: Job, launcher: str) -> None:
    # -S leaves out site-packages, and with them the site that would import sitecustomize; a bare
    # interpreter without site-packages is one whose path has them removed.
    bare = job.folder / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    done = job.run(*launched("-q"), launcher, "2", str(bare / "bin/python"), WORKER)
    done.all_near(2)


def test_a_worker_that_is_not_python_is_named(job: Job, launcher: str) -> None:
    done = job.run(*launched(), launcher, "2", "sleep", "2.5")
    assert done.warned() == ["worker-did-not-bind"] * 2
    assert "rank 0, process " in done.err
    assert "is sleep" in done.err


def test_a_shell_around_a_python_worker_is_not_named(job: Job, launcher: str) -> None:
    shell = f"sleep 1.2; {sys.executable} {WORKER}; sleep 1.2"
    done = job.run(*launched(), launcher, "2", "sh", "-c", shell)
    done.all_near(2)
    assert done.warned() == []


def test_a_python_that_ignores_its_environment_is_named(job: Job, launcher: str) -> None:
    sleep = "import time; time.sleep(2.5)"
    done = job.run(*launched(), launcher, "1", sys.executable, "-I", "-c", sleep)
    assert done.warned() == ["worker-did-not-bind"]


def test_nothing_that_is_a_worker(job: Job) -> None:
    program = "import subprocess; subprocess.run(['sleep', '2.5'], check=True)"
    done = job.run(*launched("-q"), "-c", program)
    assert done.warned() == ["no-worker-bound"]
    assert job.run(*launched("-q"), "-c", "pass").err == ""


def test_numabind_run_below_launch(job: Job, launcher: str) -> None:
    done = job.run(*launched("-q"), launcher, "4", "numabind", "run", sys.executable, WORKER)
    done.all_near()


def test_a_single_visible_device_makes_a_worker(job: Job) -> None:
    program = (
        "import os, subprocess, sys\n"
        "for gpu in '3', '0', '1,2', '':\n"
        f"    subprocess.run([sys.executable, {WORKER!r}], check=True,\n"
        "                   env={**os.environ, 'CUDA_VISIBLE_DEVICES': gpu})\n"
    )
    done = job.run(*launched("-q"), "-c", program)
    assert done.code == 0, done.err
    lines = [json.loads(line) for line in done.out.splitlines()]
    masks = [[HALVES[1]], [HALVES[0]], [CPUS], [CPUS]]
    assert [line["masks"] for line in lines] == masks
    events = [json.loads(line) for line in job.events.read_text().splitlines()]
    assert [event["device"] for event in events] == [ADDRESSES[3], ADDRESSES[0]]


OUTER = {"SLURM_LOCALID": "0", "CUDA_VISIBLE_DEVICES": "0,1"}
IDENTITIES = {
    "its launcher": ({}, False),
    "a rank": ({"LOCAL_RANK": "0"}, True),
    "a task of the same number": ({"SLURM_LOCALID": "0", "SLURM_STEP_ID": "0"}, True),
    "another number": ({"SLURM_LOCALID": "1"}, True),
    "one device": ({"CUDA_VISIBLE_DEVICES": "1"}, True),
    "two devices": ({"CUDA_VISIBLE_DEVICES": "1,0"}, False),
    "no device": ({"CUDA_VISIBLE_DEVICES": ""}, False),
    "one device of another kind": ({"HIP_VISIBLE_DEVICES": "1"}, True),
    "an empty rank": ({"LOCAL_RANK": ""}, False),
    "devices turned off": ({"CUDA_VISIBLE_DEVICES": "-1"}, False),
    "a line break": ({"CUDA_VISIBLE_DEVICES": "0,1\n"}, False),
}


@pytest.mark.parametrize(("changes", "worker"), IDENTITIES.values(), ids=IDENTITIES)
def test_whose_environment_it_is(changes: dict[str, str], worker: bool) -> None:
    environ = {**OUTER, LAUNCH: "- - 00", BEFORE: before(OUTER)}
    assert is_worker({**environ, **changes}) == worker
    assert not is_worker({**OUTER, **changes}), "not below launch"


def test_problems_are_said_once_before_the_start(job: Job, launcher: str) -> None:
    mask = set(HALVES[0])
    done = job.run(*launched("-q"), launcher, "4", sys.executable, WORKER, affinity=mask)
    assert done.code == 0
    assert done.warned().count("cpus-not-allowed") == 1, done.err
    assert "(rank 2, 3)" in done.err
    assert done.workers[0][1]["bound"]
    assert not done.workers[3][1]["bound"]
    assert "cpus-not-allowed" in problems(done.workers[3][1])


def test_strict_starts_nothing_if_any_worker_cannot_be_bound(job: Job, launcher: str) -> None:
    command = [launcher, "4", sys.executable, WORKER]
    done = job.run(*launched("--strict"), *command, affinity=set(HALVES[0]))
    assert (done.code, done.out) == (1, "")
    assert "cpus-not-allowed" in done.err
    fine = job.run(*launched("--strict"), *command)
    fine.all_near()


def test_strict_ends_a_worker_that_launch_could_not_foresee(job: Job, launcher: str) -> None:
    done = job.run(*launched("--strict"), launcher, "5", sys.executable, WORKER)
    assert done.code == 1
    assert "more-workers-than-devices" in done.err
    assert 4 not in done.workers


def test_more_workers_than_gpus_run_on(job: Job, launcher: str) -> None:
    done = job.run(*launched("-q"), launcher, "5", sys.executable, WORKER)
    assert done.code == 0
    assert sorted(done.workers) == [0, 1, 2, 3, 4]
    assert problems(done.workers[4][1]) == ["more-workers-than-devices"]
    foreseen = job.run(*launched("-q", "--workers=5"), launcher, "5", sys.executable, WORKER)
    assert foreseen.warned() == ["more-workers-than-devices"]


def test_bad_input_of_workers_is_named_and_they_run_on(job: Job, launcher: str) -> None:
    done = job.run(*launched("-q"), launcher, "2", "env", "LOCAL_RANK=x", sys.executable, "-c", "")
    assert (done.code, done.warned()) == (0, ["bad-setting", "bad-setting"])
    command = [launcher, "2", "env", "MPI_LOCALRANKID=3", sys.executable, WORKER]
    done = job.run(*launched("-q"), *command)
    assert done.warned() == ["launcher-variables-disagree"] * 2
    assert problems(done.workers[0][1]) == ["launcher-variables-disagree"]
    command = [launcher, "1", "env", "CUDA_VISIBLE_DEVICES=1,2", "LOCAL_RANK=7",
               "LOCAL_WORLD_SIZE=", sys.executable, WORKER]  # fmt: skip
    done = job.run(*launched("-q"), *command)
    assert problems(done.workers[7][1]) == ["rank-without-device"]


def test_turned_off(job: Job, launcher: str) -> None:
    done = job.run(*launched(), launcher, "2", sys.executable, WORKER, NUMABIND="0")
    assert done.code == 0
    assert "turned-off" in done.err
    assert not job.events.exists()
    for line, _ in done.workers.values():
        assert line["masks"] == [CPUS]


def test_launch_becomes_the_launcher(job: Job) -> None:
    assert job.run(*launched("-q"), "-c", "import sys; sys.exit(7)").code == 7
    assert job.run("numabind", "launch", "--", "no-such-launcher").code == 127
    bad = job.run("numabind", "launch", "--gpu", "0", "--", "true")
    assert (bad.code, bad.err.count("\n")) == (2, 1)
    nothing = job.run("numabind", "launch")
    assert (nothing.code, "no command" in nothing.err) == (2, True)
    sleep = [str(Path(sys.executable).with_name("numabind")), "launch", "-q", "--", "sleep", "60"]
    process = subprocess.Popen(sleep, env=job.environ)
    for _ in range(200):
        if Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n":
            break
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait() == -signal.SIGTERM


def test_a_mask_that_another_binder_left(job: Job, launcher: str) -> None:
    """One CPU left by a launcher, as in TensorRT-LLM's issue 9549, though the cgroup allows all."""
    command = [launcher, "4", sys.executable, WORKER]
    mask = {CPUS[0]}
    done = job.run(*launched("-q"), *command, affinity=mask, SLURM_CPU_BIND="quiet,mask_cpu:0x1")
    assert "launcher-bound" in done.warned()
    assert "Slurm bound this process to CPUs" in done.err
    wide = job.run(*launched("-q", "--ignore-inherited"), *command, affinity=mask)
    wide.all_near()
    assert wide.warned() == []


def test_a_sole_task_of_an_outer_launcher_is_no_worker(job: Job, launcher: str) -> None:
    """Slurm or MPI start one torchrun on each machine: its workers bind, not it."""
    outer = {"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
    pairs = [f"{name}={value}" for name, value in outer.items()]
    command = ["env", *pairs, sys.executable, launcher, "4", sys.executable, WORKER]
    done = job.run("numabind", "launch", "-q", "--", *command)
    done.all_near()
    assert f"launcher {CPUS}" in done.out


@pytest.mark.parametrize("rank", ["LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"])
def test_a_rank_that_was_there_before_is_named(job: Job, launcher: str, rank: str) -> None:
    done = job.run(*launched("-q"), launcher, "1", sys.executable, WORKER, **{rank: "3"})
    assert "rank-before-launch" in done.warned()
    assert f"{rank}=3" in done.err
    strict = job.run(*launched("--strict"), launcher, "1", sys.executable, WORKER, **{rank: "3"})
    assert (strict.code, strict.out) == (1, "")


HARD = {
    "SIGCHLD ignored": "exec env --ignore-signal=CHLD numabind launch -q -- sh -c 'echo ran >ran'",
    "no standard output": "exec numabind launch -q -- sh -c 'echo ran >ran' >&-",
    "no standard error": "exec numabind launch -q -- sh -c 'echo ran >ran' 2>&-",
    "no standard anything": "exec numabind launch -q -- sh -c 'echo ran >ran' <&- >&- 2>&-",
}


@pytest.mark.parametrize("line", HARD.values(), ids=HARD)
def test_hard_surroundings_keep_no_job_from_running(job: Job, line: str) -> None:
    done = job.run("sh", "-c", line)
    assert (done.code, done.out) == (0, "")
    assert (job.folder / "ran").read_text() == "ran\n"


@pytest.mark.root
def test_as_process_1_it_leaves_nothing_to_wait_for(job: Job) -> None:
    wait = "import os, subprocess; child = subprocess.Popen(['true']); os.wait()\n"
    wait += "try: os.wait()\nexcept ChildProcessError: print('all')"
    names = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    done = job.run(*names, "numabind", "launch", "-q", "--", sys.executable, "-c", wait)
    assert (done.code, done.out) == (0, "all\n"), done.err


def test_strict_without_standard_error(job: Job) -> None:
    worker = f"LOCAL_RANK=7 {sys.executable} -c 'print(1)' 2>&-"
    launch = ("numabind", "launch", "-q", "--strict", "--workers", "4", "--")
    done = job.run(*launch, "sh", "-c", worker)
    assert (done.code, done.out) == (1, "")


def test_too_many_workers(job: Job) -> None:
    for count in ("0", "100000000"):
        done = job.run("numabind", "launch", "--workers", count, "--", "true")
        assert (done.code, done.err.count("\n")) == (2, 1)


def test_a_worker_that_hides_behind_another_is_named(job: Job) -> None:
    """A shell starts two workers, of which one does not bind."""
    sleep = "import time; time.sleep(3)"
    python = sys.executable
    shell = f"LOCAL_RANK=0 {python} -c '{sleep}' & LOCAL_RANK=1 {python} -I -c '{sleep}' & wait"
    done = job.run("numabind", "launch", "-q", "--", "sh", "-c", f'sh -c "{shell}"; true')
    assert done.warned() == ["worker-did-not-bind"]
    assert "rank 1, " in done.err
