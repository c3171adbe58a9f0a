"""Processes with known amounts of memory on known nodes, and what `status` says of them.

For two-socket: two nodes of 4 CPUs and 256 MiB, two GPUs on each. The holder (this script with an
argument) takes memory of one kind after another, each when told.
"""

import ctypes
import json
import mmap
import os
import subprocess
import sys

import kernel
from kernel import say

MIB = 1 << 20
HERE = os.path.abspath(__file__)


def anonymous(mib, advice=None):
    memory = mmap.mmap(-1, mib * MIB + 2 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    view = ctypes.c_char.from_buffer(memory)
    start = -ctypes.addressof(view) % (2 * MIB)
    del view
    if advice is not None:
        memory.madvise(advice, start, mib * MIB)
    memory[start : start + mib * MIB : 4096] = b"x" * (mib * MIB // 4096)
    return memory


def of_file(path, mib, delete=False):
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    return of_descriptor(file, mib, path if delete else None)


def of_descriptor(file, mib, delete=None):
    os.ftruncate(file, mib * MIB)
    memory = mmap.mmap(file, mib * MIB)
    memory[::4096] = b"x" * (mib * MIB // 4096)
    if delete:
        os.unlink(delete)
    return memory


def locked(mib):
    memory = anonymous(mib)
    view = ctypes.c_char.from_buffer(memory)
    start = ctypes.addressof(view)
    start += -start % (2 * MIB)
    if kernel.LIBC.mlock(ctypes.c_void_p(start), ctypes.c_size_t(mib * MIB)):
        raise OSError(ctypes.get_errno(), "mlock")
    del view
    return memory


def huge(mib):
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000  # MAP_HUGETLB
    memory = mmap.mmap(-1, mib * MIB, flags=flags)
    memory[::4096] = b"x" * (mib * MIB // 4096)
    return memory


# name: (policy, nodes, what takes the memory, kind, bytes on each node)
STEPS = {
    "anonymous": ("bind", [1], lambda: anonymous(24), "anonymous", {1: 24}),
    "interleaved": ("interleave", [0, 1], lambda: anonymous(16), "anonymous", {0: 8, 1: 8}),
    "thp": ("bind", [0], lambda: anonymous(16, mmap.MADV_HUGEPAGE), "anonymous", {0: 16}),
    "shm": ("bind", [1], lambda: of_file("/dev/shm/a b", 8), "shared", {1: 8}),
    "deleted shm": ("bind", [0], lambda: of_file("/dev/shm/c", 4, True), "shared", {0: 4}),
    "memfd": ("bind", [1], lambda: of_descriptor(os.memfd_create("x"), 4), "shared", {1: 4}),
    "file": ("bind", [1], lambda: of_file("/tmp/file", 8), "file", {1: 8}),
    "locked": ("bind", [1], lambda: locked(6), "locked", {1: 6}),
    "huge": ("bind", [1], lambda: huge(8), "huge", {1: 8}),
}


def hold():
    kept = []
    for line in sys.stdin:
        policy, nodes, take, _, _ = STEPS[line.strip()]
        kernel.set_mempolicy(policy, nodes)
        kept.append(take())
        kernel.set_mempolicy("default")
        print("done", flush=True)


def status(*words, **more):
    command = [sys.executable, "-m", "numabind", "status", "--json", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, **more)
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr


def seen(pid, *words):
    (process,) = status(pid, *words)[1]["processes"]
    return process


class Holder:
    """A bound worker for the last GPU, which is on node 1."""

    def __init__(self):
        gpu = kernel.gpus()[-1][0]
        run = [sys.executable, "-m", "numabind", "run", "--quiet", "--memory=none", "--gpu", gpu]
        self.process = subprocess.Popen(
            [*run, "--", sys.executable, HERE, "hold"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.pid = self.process.pid

    def take(self, step):
        self.process.stdin.write(f"{step}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"


def counts():
    with open("/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages", "w") as f:
        f.write("8")
    holder = Holder()
    holder.take("shm")  # whatever the first step loads besides
    for step, (_, _, _, kind, wanted) in STEPS.items():
        before = seen(holder.pid)["pages"]["by_node"]
        holder.take(step)
        after = seen(holder.pid)["pages"]["by_node"]
        grown = {
            (node, kind): after.get(node, {}).get(kind, 0) - before.get(node, {}).get(kind, 0)
            for node in ("0", "1") for kind in ("anonymous", "locked", "huge", "shared", "file")
        }  # fmt: skip
        say(check="step", step=step, kind=kind, wanted=wanted,
            grown=[[node, kind, size] for (node, kind), size in grown.items() if size])  # fmt: skip
    return holder


def samples(pid):
    from numabind import _pages
    from numabind._status import with_share

    whole = with_share(_pages.count_all(pid)[0], frozenset({1}))
    inside, found = 0, []
    for _ in range(100):
        sample = with_share(_pages.count_sample(pid), frozenset({1}))
        low, high = sample.interval
        inside += low <= whole.local <= high
        found.append([sample.local, sample.resident, sample.asked])
    say(check="samples", whole=whole.local, resident=whole.resident, inside=inside, first=found[0],
        width=high - low)  # fmt: skip


def other_users(pid):
    """In a child that gives up root: its interpreter may lie where only root can start it."""
    import numabind
    from numabind._verbs import below

    numabind.status([pid])

    def work():
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        for method in "numa_maps", "sample":
            (process,) = numabind.status([pid], method=method).processes
            say(check="another user's", process=process.as_dict(), below=below([process], 0.5))

    say(check="another user's, code", code=kernel.child(work))


def many():
    sleeps = [subprocess.Popen(["/bin/sleep", "600"]) for _ in range(200)]
    code, report, err = status("--tree", os.getpid())
    pids = {process["pid"] for process in report["processes"]}
    say(check="many", code=code, err=err, missing=len({s.pid for s in sleeps} - pids))
    looking = subprocess.Popen(
        [sys.executable, "-m", "numabind", "status", "--json", "--tree", str(os.getpid())],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    for sleep in sleeps:
        sleep.kill()
    for sleep in sleeps:
        sleep.wait()
    out, err = looking.communicate()
    say(check="dying", code=looking.returncode, err=err, schema=json.loads(out)["schema"])


def strays():
    """A worker that was bound late, with its memory and one thread on the other node."""
    code = (
        "import os, sys, threading, numabind; sys.path.insert(0, sys.argv[1]); import kernel\n"
        "os.sched_setaffinity(0, {0}); kernel.set_mempolicy('bind', [0])\n"
        "kept = kernel.Buffer(48).touch(); kernel.set_mempolicy('default')\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "os.sched_setaffinity(0, {4, 5}); print('ready', flush=True); sys.stdin.read()\n"
    )
    worker = subprocess.Popen(
        [sys.executable, "-c", code, os.path.dirname(HERE)],
        env={**os.environ, "LOCAL_RANK": "3"},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    worker.stdout.readline()
    code, report, err = status(worker.pid, "--min-local", "0.95")
    say(check="strays", code=code, process=report["processes"][0], err=err)
    worker.communicate("")


if __name__ == "__main__":
    if sys.argv[1:] == ["hold"]:
        hold()
        sys.exit()
    holder = counts()
    say(check="bound", process=seen(holder.pid), sampled=seen(holder.pid, "--pages=sample"))
    say(check="enough", code=status(holder.pid, "--min-local=0.5")[0],
        too_little=status(holder.pid, "--min-local=0.99")[0])  # fmt: skip
    samples(holder.pid)
    other_users(holder.pid)
    strays()
    many()
    holder.process.kill()
    say(check="end")
