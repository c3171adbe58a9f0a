"""`bind` in a process of its own on this machine, whose CPUs a hand-made snapshot deals out.

What needs several nodes is in tests/vm.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from numabind import BindError, MachineError
from numabind._binding import unbound
from numabind._problems import problem
from samples import CPUS, pretend


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    return pretend(tmp_path)


def python(code: str, snapshot: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("NUMABIND", "OMP"))}
    env |= {"NUMABIND_SNAPSHOT": str(snapshot), "NUMABIND_MEMORY": "none"}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**env, **environ},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )


CHURN = """
import os, threading, numabind
stop = threading.Event()
def live(depth):
    if depth and not stop.is_set():
        child = threading.Thread(target=live, args=(depth - 1,)); child.start(); child.join()
def churn():
    while not stop.is_set():
        live(3)
threads = [threading.Thread(target=churn) for _ in range(50)]
for thread in threads: thread.start()
binding = numabind.bind(local_rank=0)
outside = []
for _ in range(200):
    for tid in os.listdir("/proc/self/task"):
        try:
            mask = os.sched_getaffinity(int(tid))
        except ProcessLookupError:
            continue
        if mask != binding.cpus: outside.append((tid, mask))
stop.set()
for thread in threads: thread.join()
print(sorted(binding.cpus), outside)
"""


def test_no_thread_stays_outside_while_threads_come_and_go(snapshot: Path) -> None:
    assert python(CHURN, snapshot).stdout == f"[{CPUS[0]}] []\n"


def test_bind_from_another_thread_binds_the_main_thread_too(snapshot: Path) -> None:
    code = """
import os, threading, numabind
thread = threading.Thread(target=numabind.bind, kwargs={"local_rank": 1})
thread.start(); thread.join()
print(sorted(os.sched_getaffinity(os.getpid())))
"""
    assert python(code, snapshot).stdout == f"[{CPUS[-1]}]\n"


def test_nested_bindings_are_put_back_one_by_one(snapshot: Path) -> None:
    code = """
import os, numabind
def now(): print(sorted(os.sched_getaffinity(0)), os.environ.get("OMP_NUM_THREADS"))
with numabind.bind(local_rank=0):
    now()
    with numabind.bind(local_rank=1):
        now()
    now()
now()
"""
    first, last = [CPUS[0]], [CPUS[-1]]
    lines = [f"{first} 1", f"{last} 1", f"{first} 1", f"{CPUS} None"]
    assert python(code, snapshot).stdout.splitlines() == lines


def test_strict_raises_and_puts_everything_back(snapshot: Path) -> None:
    code = """
import os, numabind
try:
    numabind.bind(local_rank=5, strict=True)
except numabind.BindError as error:
    print([p.name for p in error.problems])
print(sorted(os.sched_getaffinity(0)), "NUMABIND_BOUND" in os.environ)
"""
    done = python(code, snapshot)
    assert done.stdout == f"['rank-without-device']\n{CPUS} False\n"


def test_wrong_arguments_raise_before_anything_is_done(snapshot: Path) -> None:
    code = """
import os, numabind
for wrong in ({"mode": "nod"}, {"gpu": "first"}, {"local_rank": -1}, {"colour": 1}):
    try:
        numabind.bind(**wrong)
    except numabind.UsageError as error:
        print(error)
print(sorted(os.sched_getaffinity(0)))
"""
    *said, mask = python(code, snapshot).stdout.splitlines()
    assert len(said) == 4
    assert mask == str(CPUS)


LOGGED = {
    "a warning where nothing could be done": ({"LOCAL_RANK": "7"}, "WARNING rank-without-device"),
    "info where it could": ({"LOCAL_RANK": "1"}, "INFO rank 1 bound, gpu 0000:01:00.0, node 1"),
    "info where it is turned off": ({"NUMABIND": "0"}, "INFO turned-off"),
}


@pytest.mark.parametrize(("environ", "said"), LOGGED.values(), ids=LOGGED)
def test_each_bind_is_logged_once(snapshot: Path, environ: dict[str, str], said: str) -> None:
    code = """
import logging, numabind
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
numabind.bind()
"""
    done = python(code, snapshot, **environ)
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(said)


def test_a_forked_child_keeps_what_it_inherited_and_restores_nothing(snapshot: Path) -> None:
    code = """
import os, numabind
binding = numabind.bind(local_rank=1)
if os.fork() == 0:
    child = numabind.bind(local_rank=1)
    binding.restore()
    print([p.name for p in child.problems], sorted(os.sched_getaffinity(0)), flush=True)
    os._exit(0)
os.wait()
"""
    assert python(code, snapshot).stdout == f"['inherited'] [{CPUS[-1]}]\n"


# What is in the environment, the mask it meets, and the CPU that rank 1 ends on.
MARKS = {
    "of another machine": ("424242 0-63 40-63 0000:01:00.0 8 node,none,1,0,None", CPUS, [CPUS[-1]]),
    "before a taskset": ("424242 0-63 {all} 0000:00:00.0 8 node,none,1,0,None", CPUS[:1], CPUS[:1]),
    "of an older numabind": ("424242 0-63 0000:01:00.0", CPUS, [CPUS[-1]]),
    "garbage": ("x y z", CPUS, [CPUS[-1]]),
}


@pytest.mark.parametrize(("mark", "mask", "cpus"), MARKS.values(), ids=MARKS)
def test_a_mark_that_does_not_fit_this_process_is_not_believed(
    snapshot: Path, mark: str, mask: list[int], cpus: list[int]
) -> None:
    code = f"""
import os, numabind
os.sched_setaffinity(0, {mask})
binding = numabind.bind(local_rank=1)
print(sorted(os.sched_getaffinity(0)), "inherited" in [p.name for p in binding.problems])
"""
    listed = f"{CPUS[0]}-{CPUS[-1]}"
    done = python(code, snapshot, NUMABIND_BOUND=mark.format(all=listed))
    assert done.stdout == f"{cpus} False\n"


def test_a_child_that_asks_for_something_else_is_planned_anew(snapshot: Path) -> None:
    code = """
import os, numabind
numabind.bind(local_rank=1)
if os.fork() == 0:
    child = numabind.bind(local_rank=1, smt=False)
    print("inherited" in [p.name for p in child.problems], child.bound, flush=True)
    os._exit(0)
os.wait()
"""
    assert python(code, snapshot).stdout == "False True\n"


def test_run_then_bind_plans_from_the_mask_of_birth(snapshot: Path) -> None:
    code = """
import os, numabind
print(sorted(os.sched_getaffinity(0)), os.environ["OMP_NUM_THREADS"])
print(sorted(numabind.bind(local_rank=1).cpus))
"""
    binary = str(Path(sys.executable).with_name("numabind"))
    wrapped = f"import os; os.execv({binary!r}, [{binary!r}, 'run', '-q', '--', "
    wrapped += f"{sys.executable!r}, '-c', {code!r}])"
    done = python(wrapped, snapshot, LOCAL_RANK="0")
    assert done.stdout == f"[{CPUS[0]}] 1\n[{CPUS[-1]}]\n"


def test_restore_lets_go_threads_that_were_born_inside(snapshot: Path) -> None:
    code = """
import os, threading, numabind
ready, done = threading.Event(), threading.Event()
def wait(): ready.set(); done.wait()
with numabind.bind(local_rank=0):
    thread = threading.Thread(target=wait); thread.start(); ready.wait()
    print(sorted(os.sched_getaffinity(thread.native_id)))
print(sorted(os.sched_getaffinity(thread.native_id)))
done.set()
"""
    assert python(code, snapshot).stdout == f"[{CPUS[0]}]\n{CPUS}\n"


def test_restore_in_another_thread_leaves_that_threads_policy(snapshot: Path) -> None:
    code = """
import threading, numabind
from numabind import _syscalls
_syscalls.set_memory_policy("interleave", frozenset({0}))
found = []
thread = threading.Thread(target=lambda: found.append(numabind.bind(local_rank=0, memory="prefer")))
thread.start(); thread.join()
found[0].restore()
print(_syscalls.get_memory_policy())
"""
    assert python(code, snapshot).stdout == "('interleave', frozenset({0}))\n"


def test_restore_keeps_the_flags_of_a_policy(snapshot: Path) -> None:
    code = """
import numabind
from numabind import _syscalls
static_bind = 1 << 15 | 2
_syscalls.set_raw_policy(static_bind, frozenset({0}))
with numabind.bind(local_rank=0, memory="prefer"):
    print(_syscalls.get_memory_policy()[0])
print(_syscalls.get_raw_policy() == (static_bind, frozenset({0})))
"""
    assert python(code, snapshot).stdout == "preferred-many\nTrue\n"


WRONG = {
    "gpu a number": "gpu=0",
    "gpu bytes": "gpu=b'GPU-1'",
    "rank a text": "local_rank='0'",
    "rank not whole": "local_rank=1.5",
    "reserve a text": "reserve='1'",
    "strict a text": "strict='no'",
}


@pytest.mark.parametrize("argument", WRONG.values(), ids=WRONG)
def test_an_argument_of_the_wrong_type_is_a_usage_error(snapshot: Path, argument: str) -> None:
    code = f"""
import numabind
try:
    numabind.bind({argument})
except numabind.UsageError:
    print("refused")
"""
    assert python(code, snapshot).stdout == "refused\n"


def test_a_node_that_no_kernel_has_costs_only_the_memory_policy(snapshot: Path) -> None:
    text = snapshot.read_text().replace('"id": 1, "cpus"', '"id": 5000, "cpus"')
    text = text.replace('"node": 1', '"node": 5000').replace("[1]", "[5000]")
    snapshot.write_text(text.replace('"nodes": "0-1"', '"nodes": "0,5000"'))
    code = "import numabind; print(*numabind.bind(local_rank=1, memory='prefer').cpus)"
    done = python(code, snapshot)
    assert done.stdout == f"{CPUS[-1]}\n"
    assert "memory-policy-unsupported" in done.stderr


def test_a_python_without_ctypes_binds_cpus(snapshot: Path) -> None:
    code = """
import sys
sys.modules["_ctypes"] = None
import numabind
binding = numabind.bind(local_rank=1, memory="prefer")
print(sorted(binding.cpus), [p.name for p in binding.problems])
"""
    assert python(code, snapshot).stdout == f"[{CPUS[-1]}] ['memory-policy-unsupported']\n"


def test_a_bind_that_could_not_be_has_an_event_too(snapshot: Path, tmp_path: Path) -> None:
    code = "import numabind; numabind.bind()"
    events = tmp_path / "events"
    for environ in ({"LOCAL_RANK": "x"}, {"NUMABIND": "0"}, {"LOCAL_RANK": "1"}):
        python(code, snapshot, NUMABIND_EVENTS=str(events), **environ)
    seen = [json.loads(line) for line in events.read_text().splitlines()]
    assert [event["bound"] for event in seen] == [False, False, True]
    names = [[said["name"] for said in event["problems"]] for event in seen]
    assert names == [["bad-setting"], ["turned-off"], []]


def test_errors_and_bindings_survive_pickling() -> None:
    """Workers of Ray and multiprocessing send both between processes."""
    said = problem("no-device", "none is there")
    refused = pickle.loads(pickle.dumps(BindError((said,))))
    assert (refused.problems, str(refused)) == ((said,), said.text)
    broken = pickle.loads(pickle.dumps(MachineError("/a", "is not there", "mount it")))
    assert (broken.path, str(broken)) == ("/a", "/a: is not there (mount it)")
    kept = unbound(said)
    assert pickle.loads(pickle.dumps(kept)) == kept
