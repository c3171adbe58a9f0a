"""What can go wrong around a bind, and does here: each check says what was seen as a JSON line.

For two-socket: two nodes of 4 CPUs and 256 MiB, two GPUs on each.
"""

import os
import signal
import subprocess
import sys
import time
import traceback

import kernel
from kernel import Buffer, Witness, say

import numabind
from numabind import _bind, _worker

GPUS = kernel.gpus()
NEAR0 = [pci for pci, node in GPUS if node == 0]
NEAR1 = [pci for pci, node in GPUS if node == 1]
RUN = [sys.executable, "-m", "numabind", "run"]
HERE = os.path.dirname(os.path.abspath(__file__))
CGROUP = "/sys/fs/cgroup"


def names(binding):
    return [problem.name for problem in binding.problems]


def state(binding=None):
    """What the kernel says of this thread, and what a Binding does."""
    facts = {"cpus": kernel.affinity(), "policy": kernel.mempolicy()}
    if binding is not None:
        facts.update(bound=binding.bound, said=sorted(binding.cpus), problems=names(binding))
        facts["said_policy"] = [binding.memory_policy, sorted(binding.memory_nodes)]
    return facts


def run(check, words, *, before=None, **facts):
    """`numabind run` of the witness script (it prints its state and exits 7)."""
    done = subprocess.run(
        [*RUN, *words, "--", sys.executable, f"{HERE}/witness.py"],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=before,
    )
    say(check=check, code=done.returncode, out=done.stdout, err=done.stderr, **facts)


# -- pages touched before


def moves_pages():
    os.sched_setaffinity(0, {0, 1, 2, 3, 4, 5, 6, 7})
    kernel.set_mempolicy("bind", [0])
    mine, shared = Buffer(16).touch(), Buffer(8).touch()
    ready, wait = os.pipe(), os.pipe()
    helper = os.fork()
    if helper == 0:
        os.write(ready[1], b"x")
        os.close(wait[1])
        os.read(wait[0], 1)
        os._exit(0)
    os.close(wait[0])
    os.read(ready[0], 1)
    mine.touch()  # written after the fork: copied, and so this process's own again
    kernel.set_mempolicy("default")
    before = {"mine": mine.nodes(), "shared": shared.nodes()}
    binding = numabind.bind(gpu=NEAR1[0], move_pages=True)
    say(
        check="move-pages",
        before=before,
        after={"mine": mine.nodes(), "shared": shared.nodes()},
        moved=binding.pages_moved,
        left=binding.pages_left,
        **state(binding),
    )
    os.close(wait[1])
    os.waitpid(helper, 0)
    again = numabind.bind(gpu=NEAR1[0], move_pages=True)
    say(
        check="move-pages-again",
        after={"mine": mine.nodes(), "shared": shared.nodes()},
        moved=again.pages_moved,
        left=again.pages_left,
        **state(again),
    )


def elsewhere():
    kernel.set_mempolicy("bind", [0])
    Buffer(32).touch()
    kept = Buffer(32).touch()
    kernel.set_mempolicy("default")
    binding = numabind.bind(gpu=NEAR1[0])
    say(check="elsewhere", bytes=binding.bytes_elsewhere, pages=kept.nodes(), **state(binding))


# -- cpusets


def in_cgroup(name, cpus, mems):
    """A function for preexec_fn that joins a new cpuset."""
    path = f"{CGROUP}/{name}"
    os.makedirs(path, exist_ok=True)
    for file, text in (("cpuset.cpus", cpus), ("cpuset.mems", mems)):
        with open(f"{path}/{file}", "w") as handle:
            handle.write(text)

    def join():
        with open(f"{path}/cgroup.procs", "w") as handle:
            handle.write(str(os.getpid()))

    return join


def cpusets():
    with open(f"{CGROUP}/cgroup.subtree_control", "w") as file:
        file.write("+cpuset")
    gpu = ["--gpu", NEAR1[0]]
    run("cpuset-some-cpus", gpu, before=in_cgroup("some", "2-5", "0-1"))
    run("cpuset-no-memory", gpu, before=in_cgroup("memory", "0-7", "0"))
    run("cpuset-no-cpus", gpu, before=in_cgroup("none", "0-3", "0-1"))
    run("cpuset-strict", [*gpu, "--strict"], before=in_cgroup("none", "0-3", "0-1"))
    run("cpuset-neither", gpu, before=in_cgroup("neither", "0-1", "0"))


def cpuset_shrinks():
    """The cpuset loses CPUs between the plan and the bind."""
    join = in_cgroup("shrinks", "0-7", "0-1")
    join()
    request = _request(NEAR1[0])
    planned = _bind.prepare(request)
    in_cgroup("shrinks", "0-4", "0-1")
    some = _bind.apply(planned, request)
    say(check="cpuset-shrinks", **state(some))
    in_cgroup("shrinks", "0-2", "0-1")
    none = _bind.apply(planned, request)
    say(check="cpuset-shrinks-to-none", **state(none))


# -- seccomp


def denied():
    policy = ["set_mempolicy", "mbind", "get_mempolicy", "move_pages"]
    gpu = ["--gpu", NEAR1[0]]
    run("denied-run", gpu, before=lambda: kernel.deny(policy))
    run("denied-strict", [*gpu, "--strict"], before=lambda: kernel.deny(policy))
    run("denied-move", [*gpu, "--move-pages"], before=lambda: kernel.deny(["move_pages"]))
    strict = [*gpu, "--move-pages", "--strict"]
    run("denied-move-strict", strict, before=lambda: kernel.deny(["move_pages"]))


def denied_bind(calls, check, **options):
    def work():
        kernel.deny(calls)
        try:
            binding = numabind.bind(gpu=NEAR1[0], **options)
        except numabind.BindError as error:
            say(check=check, raised=[p.name for p in error.problems], **state())
            return
        say(check=check, raised=None, **state(binding))

    return work


# -- CPUs that go offline


def switch(cpus, on):
    for cpu in cpus:
        with open(f"/sys/devices/system/cpu/cpu{cpu}/online", "w") as file:
            file.write("1" if on else "0")


def _request(gpu, **options):
    return _bind.Request(_bind.make_options(options), os.environ, gpu)


def offline():
    request = _request(NEAR1[0])
    planned = _bind.prepare(request)
    switch([5], on=False)
    try:
        say(check="offline-one", **state(_bind.apply(planned, request)))
    finally:
        switch([5], on=True)


def offline_all():
    request = _request(NEAR1[0])
    planned = _bind.prepare(request)
    switch([4, 5, 6, 7], on=False)
    try:
        # Planned before, applied after: nothing of the plan is left.
        say(check="offline-all-late", **state(_bind.apply(planned, request)))
        kernel.child(lambda: say(check="offline-all", **state(numabind.bind(gpu=NEAR1[0]))))
        # What the kernel gives back when CPUs return is not numabind's doing; start afresh.
        run("offline-all-run", ["--gpu", NEAR1[0]])
    finally:
        switch([4, 5, 6, 7], on=True)


# -- binding, again and back


def again():
    born = state()
    first = numabind.bind(gpu=NEAR0[0], mode="exclusive")
    say(check="first", born=born, omp=os.environ.get("OMP_NUM_THREADS"), **state(first))
    wider = numabind.bind(gpu=NEAR0[0])
    say(check="wider", omp=os.environ.get("OMP_NUM_THREADS"), **state(wider))
    twice = numabind.bind(gpu=NEAR0[0])
    # Where memory of before lies is the kernel's to change from one bind to the next.
    one, two = ({**b.as_dict(), "bytes_elsewhere": None} for b in (wider, twice))
    say(check="twice", same=one == two, differ=[k for k in one if one[k] != two[k]], **state(twice))
    thread = Witness()
    other = numabind.bind(gpu=NEAR1[0])
    pages = Buffer(16).touch().nodes()
    say(check="other", pages=pages, thread=thread.ask(), **state(other))
    for name, binding in (("other", other), ("twice", twice), ("wider", wider), ("first", first)):
        binding.restore()
        binding.restore()
        say(check=f"restored-{name}", omp=os.environ.get("OMP_NUM_THREADS"), **state())
    with numabind.bind(gpu=NEAR1[1], memory="bind") as inside:
        say(check="with", **state(inside))
    say(check="with-after", mark=os.environ.get(_worker.MARK), **state())
    say(check="after-restore", **state(numabind.bind(gpu=NEAR1[1])))


def narrow_thread():
    """A thread with a mask of its own keeps it; the others are bound."""
    thread = Witness()
    os.sched_setaffinity(thread.native_id, {2})
    binding = numabind.bind(gpu=NEAR1[0])
    say(
        check="narrow-thread", thread=thread.ask(), kept=len(binding.threads_kept), **state(binding)
    )


def born_narrow():
    os.sched_setaffinity(0, {3, 4, 5})
    say(check="born-narrow", **state(numabind.bind(gpu=NEAR1[0])))


def children():
    numabind.bind(gpu=NEAR1[0], mode="exclusive", memory="bind")
    mine = state()

    def same():
        pages = Buffer(4).touch().nodes()
        binding = numabind.bind(gpu=NEAR1[0], mode="exclusive", memory="bind")
        say(check="child-same", parent=mine, pages=pages, **state(binding))

    def narrowed():
        os.sched_setaffinity(0, {4})  # its own choice, as a DataLoader's worker may make
        binding = numabind.bind(gpu=NEAR1[0], mode="exclusive", memory="bind")
        say(check="child-narrowed", parent=mine, **state(binding))

    def other():
        say(check="child-other", parent=mine, **state(numabind.bind(gpu=NEAR0[0])))

    kernel.child(same)
    kernel.child(narrowed)
    kernel.child(other)
    done = subprocess.run(
        [sys.executable, f"{HERE}/witness.py"], capture_output=True, text=True, check=False
    )
    say(check="child-exec", parent=mine, out=done.stdout, err=done.stderr)


# -- numabind run


def runs():
    run("run", ["--gpu", NEAR1[0], "--mode", "exclusive"])
    # The same pid, SIGTERM is the command's.
    child = subprocess.Popen(
        [*RUN, "-q", "--gpu", NEAR1[0], "--", "sh", "-c", "echo $$; exec sleep 100"],
        stdout=subprocess.PIPE,
        text=True,
    )
    told = int(child.stdout.readline())
    os.kill(child.pid, signal.SIGTERM)
    say(check="run-signal", pid=child.pid, told=told, code=child.wait())
    # Python ignores SIGPIPE for itself; the command must not inherit that.
    done = subprocess.run(
        [*RUN, "-q", "--gpu", NEAR1[0], "--", "grep", "SigIgn", "/proc/self/status"],
        capture_output=True,
        text=True,
        check=False,
    )
    say(check="run-ignored", code=done.returncode, out=done.stdout, err=done.stderr)


def main():
    began = time.monotonic()
    numabind.plan(numabind.discover())
    say(check="machine", gpus=GPUS)
    policy = ["set_mempolicy", "mbind", "get_mempolicy"]
    checks = [
        moves_pages, elsewhere, cpusets, cpuset_shrinks, denied, again, narrow_thread, born_narrow,
        children, runs,
        denied_bind(policy, "denied-bind"),
        denied_bind(policy, "denied-bind-strict", strict=True),
        denied_bind(policy[:2], "denied-setters"),
        denied_bind(["move_pages"], "denied-bind-move", move_pages=True),
        offline, offline_all,
    ]  # fmt: skip
    for check in checks:
        code = kernel.child(check)
        took = round(time.monotonic() - began, 1)
        say(check="time", of=getattr(check, "__name__", "?"), code=code, at=took)


try:
    main()
except BaseException:
    traceback.print_exc()
    raise
