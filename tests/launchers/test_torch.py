"""The launchers of torch and those on top: torchrun, elastic_launch, mp.spawn, DataLoader."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launchers.conftest import WORKER, Job
from launchers.pretend import ADDRESSES, CPUS, HALVES, NEAR, problems

TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node=4")
# A training program that uses torch before it says where its threads are.
TRAIN = """
import json, os, sys
sys.path.insert(0, os.environ["WORKERS"])
import torch, worker
torch.set_num_threads(4)
a = torch.ones(600, 600)
(a @ a).sum().item()
worker.main()
"""
LAUNCHERS = {
    "torchrun": TORCHRUN,
    "accelerate": ("accelerate", "launch", "--multi_gpu", "--num_processes=4"),
    "deepspeed": ("deepspeed", "--num_gpus=4", "--no_local_rank"),
}  # fmt: skip


@pytest.mark.parametrize("name", LAUNCHERS)
def test_launch(job: Job, name: str) -> None:
    program = job.folder / "train.py"
    program.write_text(TRAIN)
    before = ("numabind", "launch", "--quiet", "--")
    folder = WORKER.rpartition("/")[0]
    done = job.run(*before, *LAUNCHERS[name], str(program), WORKERS=folder)
    done.all_near()
    assert done.warned() == []
    for _, binding in done.workers.values():
        assert problems(binding) == []
        assert binding["threads_bound"] == 1, "before torch was imported"
    assert len(job.events.read_text().splitlines()) == 4, "each worker once, and nobody else"


@pytest.mark.parametrize(("words", "omp"), [((), "1"), (("--threads", "auto"), None)])
def test_torchruns_thread_count(job: Job, words: tuple[str, ...], omp: str | None) -> None:
    run = ("--no-python", "numabind", "run", "--quiet", *words, "--", "python", WORKER)
    done = job.run(*TORCHRUN, *run)
    done.all_near()
    for line, binding in done.workers.values():
        assert line["omp"] == (omp or str(binding["threads"]))


def test_a_rank_that_restarts_is_bound_again(job: Job) -> None:
    flag = job.folder / "failed"
    program = (
        f"import os, sys\nsys.path.insert(0, {WORKER.rpartition('/')[0]!r})\n"
        "import worker\nworker.main()\n"
        f"flag = {str(flag)!r} + os.environ['LOCAL_RANK']\n"
        "if not os.path.exists(flag):\n    open(flag, 'w').close()\n    sys.exit(3)\n"
    )
    path = job.folder / "train.py"
    path.write_text(program)
    command = ("torchrun", "--standalone", "--nproc-per-node=2", "--max-restarts=5", str(path))
    done = job.run("numabind", "launch", "-q", "--", *command)
    done.all_near(2)
    events = [json.loads(line) for line in job.events.read_text().splitlines()]
    assert len(events) >= 4
    for event in events:
        assert event["device"] == ADDRESSES[event["local_rank"]]
        assert event["bound"]


ELASTIC = """
import sys
sys.path.insert(0, {folder!r})
import worker
import numabind
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

@numabind.bound
def train(number, name=""):
    worker.main()
    return number, name, train.__name__

if __name__ == "__main__":
    config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=4, run_id="x",
                          rdzv_backend="c10d", rdzv_endpoint="localhost:0", max_restarts=0,
                          start_method={method!r})
    print(sorted(elastic_launch(config, train)(7).items()))
"""
SPAWN = """
import sys
sys.path.insert(0, {folder!r})
import os, worker
import numabind
import torch.multiprocessing

@numabind.bound(rank_argument=0)
def train(rank):
    os.environ["LOCAL_RANK"] = str(rank)
    worker.main()

if __name__ == "__main__":
    torch.multiprocessing.start_processes(train, nprocs=4, start_method={method!r})
"""


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_callable_entrypoint(job: Job, method: str) -> None:
    done = job.python(ELASTIC.format(folder=WORKER.rpartition("/")[0], method=method))
    done.all_near()
    assert "[(0, (7, '', 'train')), (1, (7, '', 'train'))" in done.out


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_torch_multiprocessing(job: Job, method: str) -> None:
    job.python(SPAWN.format(folder=WORKER.rpartition("/")[0], method=method)).all_near()


LOADER = """
import json, os, sys
import numabind, numabind.torch
from torch.utils.data import DataLoader, get_worker_info

class Items:
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return get_worker_info().id, sorted(os.sched_getaffinity(0))

def then(worker):
    os.environ["THEN"] = str(worker)

if __name__ == "__main__":
    method, workers, reserve = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    deal = numabind.torch.worker_init_fn(reserve=reserve, then=then)
    loader = DataLoader(Items(), batch_size=None, num_workers=workers, worker_init_fn=deal,
                        multiprocessing_context=method)
    seen = dict(tuple(item) for item in loader)
    print(json.dumps([sorted(os.sched_getaffinity(0)), sorted(seen.items())]))
"""


def loaded(job: Job, *words: str, **more: str) -> tuple[list[int], dict[int, list[int]], str]:
    done = job.python(LOADER, *words, **more)
    assert done.code == 0, done.err
    main, seen = json.loads(done.out)
    return main, dict(seen), done.err


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_loaders_workers_share_the_cores(job: Job, method: str) -> None:
    main, seen, _ = loaded(job, method, "2", "1")
    assert main == CPUS, "the main process is left alone"
    left = CPUS[1:]
    if len(left) == 1:
        assert seen == {0: left, 1: left}
    else:
        half = len(left) // 2
        assert seen == {0: left[:half], 1: left[half:]}
    main, seen, _ = loaded(job, method, "2", "0")
    assert seen == {0: HALVES[0], 1: HALVES[1]}


def test_a_loaders_workers_with_nothing_left(job: Job) -> None:
    _, seen, err = loaded(job, "spawn", "2", str(len(CPUS)))
    assert seen == {0: HALVES[0], 1: HALVES[1]}
    assert err.count("reserve-too-large") == 1


def test_a_loaders_workers_turned_off(job: Job) -> None:
    _, seen, err = loaded(job, "fork", "2", "1", NUMABIND="0")
    assert (list(seen.values()), err) == ([CPUS, CPUS], "")


def test_a_loaders_workers_are_not_bound_twice_below_launch(job: Job) -> None:
    path = job.folder / "train.py"
    path.write_text(LOADER.replace("worker_init_fn=deal,", ""))
    command = ("torchrun", "--standalone", "--nproc-per-node=2", str(path), "spawn", "2", "0")
    done = job.run("numabind", "launch", "-q", "--", *command, CUDA_VISIBLE_DEVICES="0,3")
    assert done.code == 0, done.err
    found: list[Any] = [json.loads(line) for line in done.out.splitlines()]
    for node in range(2):
        half = HALVES[node]
        assert [half, [[0, half], [1, half]]] in found
    assert len(job.events.read_text().splitlines()) == 2


def test_where_torch_bound_first(job: Job) -> None:
    """What torchrun's own binding, which needs CUDA, does to a worker is done here by taskset."""
    run = ("taskset", "-c", NEAR[1], "numabind", "run", "-q")
    first = job.run(*TORCHRUN, "--no-python", *run, "--", "python", WORKER)
    assert first.code == 0, first.err
    ranks = {rank: problems(binding) for rank, (_, binding) in first.workers.items()}
    assert ranks[2] == ranks[3] == []
    assert "torchrun bound this process to CPUs" in first.err
    wide = job.run(*TORCHRUN, "--no-python", *run, "--ignore-inherited", "--", "python", WORKER)
    wide.all_near()
    assert wide.warned() == []


def test_the_offload_example(tmp_path: Path) -> None:
    """Two ranks learn the same with and without, and tell where their optimizers are."""
    example = Path(__file__).parents[2] / "examples/offload_trainer.py"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    kept = ("HOME", "LANG", "PATH", "PYTHONPATH", "TMPDIR")
    environ = {name: os.environ[name] for name in kept if name in os.environ}
    done = subprocess.run(
        [*command, str(example), "--both", "--steps=2"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=environ,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    losses = [line.rpartition("loss ")[2] for line in lines if "a step" in line]
    assert len(losses) == 2
    assert losses[0] == losses[1]
    pages = [line for line in lines if "pages of its optimizer: node " in line]
    assert len(pages) == 4
