"""`bound` and `spawning` with Python's own processes and pools, and without any."""

from __future__ import annotations

import concurrent.futures
import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import numabind
from launchers.conftest import WORKER, Job
from launchers.pretend import ADDRESSES, CPUS, HALVES, problems, write_snapshot

METHODS = ("spawn", "fork", "forkserver")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pretend that this process is on that machine; whatever a test does to its mask is undone."""
    monkeypatch.setenv("NUMABIND_SNAPSHOT", str(write_snapshot(tmp_path)))
    monkeypatch.setenv("NUMABIND_MEMORY", "none")
    monkeypatch.setenv("NUMABIND_EVENTS", str(tmp_path / "events"))
    for name in ("OMP_NUM_THREADS", "LOCAL_RANK", "NUMABIND_BOUND"):
        monkeypatch.delenv(name, raising=False)
    before = os.sched_getaffinity(0)
    yield tmp_path
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # it ended
            os.sched_setaffinity(int(thread), before)


def masks() -> list[list[int]]:
    """The different masks of this process's threads."""
    found = {tuple(sorted(os.sched_getaffinity(int(t)))) for t in os.listdir("/proc/self/task")}
    return [list(mask) for mask in sorted(found)]


@numabind.bound(rank_argument=0)
def train(rank: int, *, name: str = "") -> tuple[int, str, list[list[int]]]:
    """What a worker does."""
    return rank, name, masks()


@numabind.bound
def by_environment() -> list[list[int]]:
    return masks()


PROGRAM = """
import concurrent.futures, json, multiprocessing, os, sys, threading
import numabind

@numabind.bound(rank_argument=0)
def train(rank, queue):
    queue.put((rank, sorted({tuple(sorted(os.sched_getaffinity(int(t))))
                             for t in os.listdir("/proc/self/task")})))

@numabind.bound(rank_argument=0)
def task(rank):
    return rank, sorted(os.sched_getaffinity(0))

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    queue = context.Queue()
    workers = [context.Process(target=train, args=(rank, queue)) for rank in range(4)]
    for worker in workers: worker.start()
    seen = sorted(queue.get() for _ in workers)
    for worker in workers: worker.join()
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
        dealt = sorted(pool.map(task, range(4)))
    print(json.dumps([seen, dealt, sorted(os.sched_getaffinity(0))]))
"""


@pytest.mark.parametrize("method", METHODS)
def test_bound_in_processes_and_pools(job: Job, method: str) -> None:
    done = job.python(PROGRAM, method)
    assert done.code == 0, done.err
    halves = [HALVES[0], HALVES[0], HALVES[1], HALVES[1]]
    seen, dealt, mine = json.loads(done.out)
    assert seen == [[rank, [half]] for rank, half in enumerate(halves)]
    assert dealt == [[rank, half] for rank, half in enumerate(halves)], "each call anew"
    assert mine == CPUS


def test_bound_is_the_function_it_wraps(here: Path) -> None:
    assert (train.__name__, train.__doc__) == ("train", "What a worker does.")
    assert pickle.loads(pickle.dumps(train)) is train
    assert train(3, name="x") == (3, "x", [HALVES[1]])
    assert train(0)[2] == [HALVES[0]]


def test_bound_binds_threads_that_run(here: Path) -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        assert train(3)[2] == [HALVES[1]]
    finally:
        stop.set()
        thread.join()


def test_bound_finds_the_rank_in_the_environment(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "2")
    assert by_environment() == [HALVES[1]]


def test_bound_survives_pickling_where_its_name_is_another(here: Path) -> None:
    again = numabind.bound(gpu="3")(len)
    copy = pickle.loads(pickle.dumps(again))
    assert copy("four") == 4
    assert masks() == [HALVES[1]]


def test_a_method_that_is_bound(here: Path) -> None:
    class Trainer:
        @numabind.bound(gpu="3")
        def fit(self, steps: int) -> tuple[str, int]:
            return type(self).__name__, steps

    assert Trainer().fit(3) == ("Trainer", 3)
    assert masks() == [HALVES[1]]


WRONG: dict[str, Any] = {
    "an unknown mode": lambda: numabind.bound(mode="nod"),
    "an unknown option": lambda: numabind.bound(mod="node"),
    "no callable": lambda: numabind.bound(3),  # type: ignore[call-overload]
    "two ways to a rank": lambda: numabind.bound(rank_argument=0, local_rank=1),
    "a rank that is missing": train,
    "a rank that is none": lambda: train("0"),  # type: ignore[arg-type]
    "spawning no workers": lambda: numabind.spawning(workers=0),
    "spawning an unknown mode": lambda: numabind.spawning(mode="nod"),
}


@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG)
def test_a_mistake_is_an_error_where_it_is_made(here: Path, call: Any) -> None:
    with pytest.raises(numabind.UsageError):
        call()
    assert masks() == [CPUS]


def look() -> list[list[int]]:
    command = "import os; print(*sorted(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'])"
    out = subprocess.run(
        [sys.executable, "-c", command], check=True, capture_output=True, text=True
    ).stdout
    *cpus, threads = map(int, out.split())
    return [cpus, [threads]]


def test_a_child_is_born_in_its_place(here: Path) -> None:
    before = dict(os.environ)
    for rank, half in enumerate((HALVES[0], HALVES[0], HALVES[1], HALVES[1])):
        with numabind.spawning(local_rank=rank, workers=4) as binding:
            assert binding.device == ADDRESSES[rank]
            assert look() == [half, [max(1, len(half) // 2)]]
        assert masks() == [CPUS]
        assert dict(os.environ) == before


def test_a_start_that_fails(here: Path) -> None:
    before = dict(os.environ)
    with pytest.raises(FileNotFoundError), numabind.spawning(local_rank=3):
        subprocess.Popen(["/no/such/program"])
    assert masks() == [CPUS]
    assert dict(os.environ) == before
    with numabind.spawning(local_rank=0):
        pass  # the turn was given back


def test_other_threads_are_left_alone(here: Path) -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        with numabind.spawning(local_rank=3):
            assert sorted(os.sched_getaffinity(thread.native_id or 0)) == CPUS
            assert sorted(os.sched_getaffinity(0)) == HALVES[1]
    finally:
        stop.set()
        thread.join()


def test_many_threads_spawn_at_once(here: Path) -> None:
    def start(number: int) -> tuple[list[int], list[int]]:
        with numabind.spawning(gpu=ADDRESSES[number % 4]):
            cpus, _ = look()
        return cpus, sorted(os.sched_getaffinity(0))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(start, range(24)))
    assert found == [(HALVES[number % 4 // 2], CPUS) for number in range(24)]
    assert "NUMABIND_BOUND" not in os.environ


def test_a_child_below_spawning_keeps_its_place(here: Path) -> None:
    """It calls bind() itself, as its own children do: nothing is bound a second time."""
    code = "import numabind; b = numabind.bind(); print(b.problems[0].name, sorted(b.cpus))"
    with numabind.spawning(local_rank=3):
        environ = {**os.environ, "LOCAL_RANK": "3"}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environ, check=True, capture_output=True, text=True
        )
    assert done.stdout == f"inherited {HALVES[1]}\n"


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("method", METHODS)
def test_multiprocessing(here: Path, method: str, caplog: pytest.LogCaptureFixture) -> None:
    context = multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    child = context.Process(target=tell, args=(queue,), name="fourth")
    with numabind.spawning(local_rank=3):
        child.start()
    seen = queue.get()
    child.join()
    if method == "forkserver":
        assert "spawned-elsewhere: fourth: started by the forkserver" in caplog.text
    else:
        assert seen == HALVES[1]
    assert masks() == [CPUS]


def tell(queue: Any) -> None:
    queue.put(sorted(os.sched_getaffinity(0)))


def test_strict_starts_nothing(here: Path) -> None:
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), set(HALVES[0]))
    entered = False
    with pytest.raises(numabind.BindError), numabind.spawning(local_rank=3, strict=True):
        entered = True
    assert not entered
    with (
        pytest.raises(numabind.BindError, match="cpus-not-allowed"),
        numabind.spawning(local_rank=0, workers=4, strict=True),
    ):
        entered = True
    assert not entered, "all places are checked before the first start"
    with numabind.spawning(local_rank=0, strict=True):
        entered = True
    assert entered


def test_bad_surroundings_are_named(
    here: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NUMABIND_MODE", "nod")
    with numabind.spawning(local_rank=3) as binding:
        assert not binding.bound
        assert masks() == [CPUS]
    assert "bad-setting" in caplog.text
    monkeypatch.setenv("NUMABIND_MODE", "node")
    with numabind.spawning(local_rank=4) as binding:
        assert problems(binding.as_dict()) == ["rank-without-device"]
    monkeypatch.setenv("NUMABIND", "0")
    with numabind.spawning(local_rank=3) as binding:
        assert problems(binding.as_dict()) == ["turned-off"]


def test_worker_py_is_what_launchers_start(job: Job) -> None:
    done = job.run("numabind", "run", "-q", sys.executable, WORKER, LOCAL_RANK="3")
    assert done.workers[3][0]["masks"] == [HALVES[1]]


def test_spawning_inside_spawning_is_refused(here: Path) -> None:
    with (
        numabind.spawning(local_rank=3),
        pytest.raises(numabind.UsageError, match="asyncio"),
        numabind.spawning(local_rank=0),
    ):
        pass
    assert masks() == [CPUS]
    with numabind.spawning(local_rank=0):
        pass


def test_a_rank_of_numpys_kind(here: Path) -> None:
    class Whole:
        def __index__(self) -> int:
            return 3

    assert train(Whole())[2] == [HALVES[1]]  # type: ignore[arg-type]


def test_a_class_is_refused() -> None:
    with pytest.raises(numabind.UsageError, match="not the class Path"):
        numabind.bound(Path)
