"""Every line and program of docs/launchers.md is run as it stands there, with four GPUs for eight.

A block is found by the comment before it: <!-- run: NAME -->.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from launchers.pretend import ADDRESSES, HALVES, NEAR, NODES, assert_near, write_snapshot
from launchers.slurm_site import Site

PAGE = (Path(__file__).parents[2] / "docs/launchers.md").read_text()
WORKER = Path(__file__).parent / "worker.py"
BLOCKS = dict(re.findall(r"<!-- run: ([^\n]+) -->\n```\w+\n(.*?)```", PAGE, re.DOTALL))
BIN = Path(sys.executable).parent
# Root, few CPUs and two MPIs on one machine are the test's affair, not the page's.
HERE = {
    "mpirun ": "mpirun.openmpi --allow-run-as-root --oversubscribe ",
    "mpiexec ": "mpirun.mpich ",
    "srun ": "salloc --quiet --nodes=1 --exclusive --gres=gpu:4 srun --overcommit ",
    "/opt/numabind/bin": str(BIN),
    "ray.init(": "ray.init(num_gpus=4, num_cpus=4, include_dashboard=False, ",
}


# A script that starts its own children, each with a rank in its environment.
SCRIPT = """
import os, subprocess, sys
for rank in range(4):
    env = {**os.environ, "LOCAL_RANK": str(rank)}
    subprocess.run([sys.executable, "train.py"], env=env, check=True)
"""


def block(name: str) -> str:
    text = re.sub(r"\b8\b", "4", BLOCKS[name])
    for there, here in HERE.items():
        text = text.replace(there, here)
    return text


class Folder:
    """A working directory with the user's program, and the environment of a shell there."""

    def __init__(self, path: Path) -> None:
        self.path, self.events = path, path / "events"
        shutil.copy(WORKER, path / "train.py")
        # What a program imports after the bind, which stands for torch and the model.
        (path / "worker.py").write_text(
            WORKER.read_text().replace('if __name__ == "__main__":', "if True:")
        )
        self.environ = {
            "RAY_AUTH_MODE": "disabled",
            "RAY_DEDUP_LOGS": "0",
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "HOME": str(path),
            "NUMABIND_SNAPSHOT": str(write_snapshot(path)),
            "NUMABIND_EVENTS": str(self.events),
            "NUMABIND_MEMORY": "none",
        }

    def run(self, *command: str, **more: str) -> str:
        done = subprocess.run(
            command,
            cwd=self.path,
            env={**self.environ, **more},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def program(self, name: str, more: str = "") -> str:
        (self.path / "program.py").write_text(block(name) + more)
        return self.run(sys.executable, "program.py")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def assert_all_near(folder: Folder, output: str) -> dict[int, int | None]:
    """Each GPU has one worker, and that is near it. Returns the GPUs' local ranks."""
    # Ray puts the worker's name before what it printed.
    found = (line.partition('{"rank"') for line in output.splitlines())
    lines = [json.loads(start + rest) for _, start, rest in found if start]
    texts = folder.events.read_text().splitlines()
    bindings = {binding["pid"]: binding for binding in map(json.loads, texts)}
    ranks = {}
    for line in lines:
        binding = bindings[line["pid"]]
        gpu = ADDRESSES.index(binding["device"])
        assert_near((line, binding), gpu)
        assert gpu not in ranks
        ranks[gpu] = binding["local_rank"]
    assert sorted(ranks) == [0, 1, 2, 3]
    return ranks


def test_each_block_of_the_page_has_a_name() -> None:
    assert PAGE.count("\n```") == 2 * len(BLOCKS)
    assert set(BLOCKS) == {*COMMANDS, *PROGRAMS, *OTHERS}


COMMANDS = {
    "launch torchrun": ("torchrun",),
    "launch accelerate": ("accelerate",),
    "launch deepspeed": ("deepspeed",),
    "launch script": (),
    "torchrun": ("torchrun",),
    "accelerate": ("accelerate",),
    "deepspeed": ("deepspeed",),
    "openmpi": ("mpirun.openmpi",),
    "mpich": ("mpirun.mpich",),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command(folder: Folder, name: str) -> None:
    for needed in COMMANDS[name]:
        if shutil.which(needed, path=folder.environ["PATH"]) is None:
            pytest.skip(f"needs {needed}")
    (folder.path / "script.py").write_text(SCRIPT)
    ranks = assert_all_near(folder, folder.run("sh", "-c", block(name)))
    assert ranks == {0: 0, 1: 1, 2: 2, 3: 3}


PROGRAMS = ("torch.multiprocessing", "pool", "elastic_launch")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program(folder: Folder, name: str) -> None:
    ranks = assert_all_near(folder, folder.program(name))
    assert ranks == {0: 0, 1: 1, 2: 2, 3: 3}


def test_spawning(folder: Folder) -> None:
    """The parent binds for its children, so the events are the parent's."""
    lines = [json.loads(line) for line in folder.program("multiprocessing").splitlines()]
    masks = sorted(line["masks"] for line in lines)
    assert masks == [[HALVES[0]], [HALVES[0]], [HALVES[1]], [HALVES[1]]]
    events = [json.loads(line) for line in folder.events.read_text().splitlines()]
    assert [event["device"] for event in events] == list(ADDRESSES)


def test_a_loader(folder: Folder) -> None:
    look = "        print(sorted(os.sched_getaffinity(0)))\n"
    (folder.path / "program.py").write_text(
        "import os\n" + block("loader").replace("        pass\n", look)
    )
    shown = folder.run(sys.executable, "program.py").splitlines()
    assert set(shown) == {str(HALVES[1])}, "the loader's parent stays where it was bound"


OTHERS = (
    *("multiprocessing", "loader", "check", "status", "slurm", "slurm prolog"),
    *("ray", "ray survey", "ray off"),
)


def test_what_the_kernel_says(folder: Folder) -> None:
    body = ("sleep", "60")
    worker = subprocess.Popen(
        [str(BIN / "numabind"), "run", "--quiet", "--gpu", "3", "--", *body], env=folder.environ
    )
    try:
        for _ in range(200):
            if Path(f"/proc/{worker.pid}/comm").read_text() == "sleep\n":
                break
            subprocess.run(["sleep", "0.05"], check=True)
        shown = folder.run("sh", "-c", block("check"), PID=str(worker.pid))
        status = folder.run("sh", "-c", block("status"), PID=str(worker.pid))
    finally:
        worker.kill()
        worker.wait()
    heading, row, *_ = status.splitlines()
    assert row.split()[:4] == [str(worker.pid), "sleep", ADDRESSES[3], "1"], status
    assert row.split()[heading.split().index("THREADS")] == "1/1"
    threads, *pages = shown.splitlines()
    assert threads.split() == ["1", "Cpus_allowed_list:", NEAR[1]]
    assert all(re.fullmatch(r"N\d+ \d+", line) for line in pages)


@pytest.fixture
def short(folder: Folder) -> Iterator[Folder]:
    """Where Ray's sockets have short paths."""
    scratch = tempfile.mkdtemp(prefix="ray")
    folder.environ["RAY_TMPDIR"] = scratch
    yield folder
    shutil.rmtree(scratch, ignore_errors=True)


def test_ray(short: Folder) -> None:
    assert_all_near(short, short.program("ray"))


def test_ray_survey(short: Folder) -> None:
    (line,) = short.program("ray survey").splitlines()
    assert line.endswith(str(list(zip(ADDRESSES, NODES, strict=True))))


def test_ray_off(short: Folder) -> None:
    more = """
import numabind
ask = ray.remote(num_gpus=1)(lambda: numabind.bind().problems[0].name)
print(ray.get(ask.remote()))
"""
    assert short.program("ray off", more) == "turned-off\n"


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


@pytest.mark.root
def test_slurm(folder: Folder, site: Site) -> None:
    ranks = assert_all_near(folder, folder.run("sh", "-c", block("slurm"), **site.variables))
    assert ranks == {0: 0, 1: 1, 2: 2, 3: 3}


@pytest.mark.root
def test_slurm_task_prolog(folder: Folder, site: Site) -> None:
    """The last of the site's tests: the prolog stays."""
    prolog = site.folder / "task-prolog.sh"
    prolog.write_text(block("slurm prolog"))
    prolog.chmod(0o755)
    site.add(f"TaskProlog={prolog}")
    bare = block("slurm").replace("numabind run -- ", "")
    output = folder.run("sh", "-c", bare, **site.variables)
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert sorted(line["rank"] for line in lines) == [0, 1, 2, 3]
    for line in lines:
        assert line["masks"] == [HALVES[NODES[line["rank"]]]]
        assert line["omp"] is not None
        said = f"numabind: rank {line['rank']} bound, gpu {ADDRESSES[line['rank']]}, "
        assert said in output, "the task is told"
