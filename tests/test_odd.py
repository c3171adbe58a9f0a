"""Odd surroundings: the job runs, and it is bound or it is said why not.

What needs several nodes or mounts is in tests/vm.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from samples import CPUS, pretend

HERE = Path(__file__).parent
NUMABIND = str(Path(sys.executable).with_name("numabind"))
MASK = "grep Cpus_allowed_list /proc/self/status"
LAST = f"Cpus_allowed_list:\t{CPUS[-1]}\n"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """The environment on a pretended machine: CPUS[0] is node 0, CPUS[-1] is node 1."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("NUMABIND", "OMP"))}
    snapshot = {"NUMABIND_SNAPSHOT": str(pretend(tmp_path)), "NUMABIND_MEMORY": "none"}
    return {**kept, "OUT": str(tmp_path / "out"), **snapshot}


def python(code: str, environ: dict[str, str]) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, env=environ, capture_output=True, text=True, check=True, timeout=120
    ).stdout


STARTS = 100


def test_of_many_starts_at_once_none_is_lost(environ: dict[str, str]) -> None:
    # They wait until nobody can write to the gate any more.
    gate, hold = os.pipe()
    run = ["sh", "-c", 'read _; exec "$@"', "sh", NUMABIND, "run", "--quiet", "--local-rank"]
    shell = ["--", "sh", "-c", f"echo $$; {MASK}"]
    jobs = [
        subprocess.Popen(
            [*run, str(n % 2), *shell], env=environ, stdin=gate, stdout=subprocess.PIPE, text=True
        )
        for n in range(STARTS)
    ]
    os.close(gate)
    os.close(hold)
    for n, job in enumerate(jobs):
        out, _ = job.communicate(timeout=300)
        cpu = (CPUS[0], CPUS[-1])[n % 2]
        assert (job.returncode, out) == (0, f"{job.pid}\nCpus_allowed_list:\t{cpu}\n")


CHURN = """
import ctypes, os, sys, numabind
def masks():
    for tid in os.listdir("/proc/self/task"):
        try:
            yield frozenset(os.sched_getaffinity(int(tid)))
        except ProcessLookupError:
            continue
born = frozenset(os.sched_getaffinity(0))
library = ctypes.CDLL(os.environ["OUT"])
library.start(50, 3)
binding = numabind.bind(local_rank=0)
bound = {mask for _ in range(50) for mask in masks()}
binding.restore()
restored = {mask for _ in range(50) for mask in masks()}
library.end()
print(bound == {binding.cpus} != {born}, restored == {born})
"""


def test_bind_and_restore_reach_every_thread_while_200_come_and_go(environ: dict[str, str]) -> None:
    flags = ["-shared", "-fPIC", "-pthread", "-o", environ["OUT"]]
    subprocess.run(["cc", *flags, str(HERE / "churn.c")], check=True)
    assert python(CHURN, environ) == f"{len(CPUS) > 1} True\n"


KILLED = """
import os, signal, subprocess, numabind
other = subprocess.Popen(["sleep", "100"])
with numabind.spawning(local_rank=1):
    child = subprocess.Popen(["sleep", "100"])
    print(other.pid, child.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_parent_that_is_killed_while_spawning_leaves_nothing_behind(
    environ: dict[str, str], tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    places = dict.fromkeys(("HOME", "TMPDIR", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME"), str(empty))
    parent = subprocess.Popen(
        [sys.executable, "-c", KILLED],
        env={**environ, **places}, cwd=empty, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert parent.stdout is not None
    other, child = map(int, parent.stdout.readline().split())
    try:
        assert parent.wait() == -signal.SIGKILL
        assert os.sched_getaffinity(child) == {CPUS[-1]}
        assert os.sched_getaffinity(other) == set(CPUS)
        assert b"NUMABIND_BOUND" not in Path(f"/proc/{other}/environ").read_bytes()
        assert list(empty.iterdir()) == []
    finally:
        os.kill(other, signal.SIGKILL)
        os.kill(child, signal.SIGKILL)
        parent.stdout.close()


# What a shell does before it becomes the command "$@".
SURROUNDINGS = {
    "a working directory that was deleted": 'mkdir gone; cd gone; rmdir ../gone; exec "$@"',
    "no standard streams": 'exec "$@" <&- >&- 2>&-',
    "no HOME, no PATH": 'unset HOME PATH; exec "$@"',
    "a locale without UTF-8": (
        "export LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0; "
        "NUMABIND_EVENTS=$(printf 'events\\351') exec \"$@\""
    ),
    "a tracer": 'exec strace -f -o /dev/null "$@"',
}


@pytest.mark.parametrize("first", SURROUNDINGS.values(), ids=SURROUNDINGS)
def test_a_worker_is_bound_in(first: str, environ: dict[str, str], tmp_path: Path) -> None:
    out = Path(environ["OUT"])
    shell = ["sh", "-c", first, "sh", NUMABIND]
    worker = ["/bin/sh", "-c", f'{MASK} >"$OUT"; exit 7']
    run = [*shell, "run", "--local-rank", "1", "--", *worker]
    done = subprocess.run(run, env=environ, cwd=tmp_path, capture_output=True, check=False)
    assert (done.returncode, out.read_text()) == (7, LAST), done.stderr
    assert b"WARNING" not in done.stderr
    out.unlink()
    code = "import os; open(os.environ['OUT'], 'w').write(str(os.sched_getaffinity(0)))"
    launched = ["/usr/bin/env", "LOCAL_RANK=1", sys.executable, "-c", code]
    launch = [*shell, "launch", "--", *launched]
    done = subprocess.run(launch, env=environ, cwd=tmp_path, capture_output=True, check=False)
    assert (done.returncode, out.read_text()) == (0, f"{{{CPUS[-1]}}}"), done.stderr
    assert b"WARNING" not in done.stderr


def test_launch_runs_the_command_once_however_few_descriptors(environ: dict[str, str]) -> None:
    ran = []
    for limit in range(4, 10):
        shell = ["sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh"]
        launch = [*shell, NUMABIND, "launch", "--quiet", "--", "echo", "ran"]
        done = subprocess.run(launch, env=environ, capture_output=True, text=True, check=False)
        ran.append(done.stdout)
    # With too few Python itself can't start.
    assert set(ran) <= {"", "ran\n"}
    assert ran[-1] == "ran\n"


FULL = """
import os, resource, numabind
bind = numabind.bind
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
binding = bind(local_rank=1)
print([said.name for said in binding.problems], sorted(os.sched_getaffinity(0)))
"""


def test_a_process_without_a_descriptor_left_is_told_so_and_runs_on(
    environ: dict[str, str],
) -> None:
    assert python(FULL, environ) == f"['out-of-descriptors'] {CPUS}\n"
