"""Binds a worker where something is missing or hidden; says what the kernel has then.

For cloud.json. What each child does to its mounts or to itself ends with it. What a child would
import is imported before: in its surroundings it may not be able to read it.
"""

import ctypes
import fcntl  # noqa: F401
import logging  # noqa: F401
import os
import signal
import threading
from contextlib import suppress

import kernel
from kernel import LIBC, say

import numabind
from numabind import _cli

NEWNS, NEWUSER = 0x00020000, 0x10000000
BIND, MOVE, REC, PRIVATE = 0x1000, 0x2000, 0x4000, 1 << 18
NOBODY = 65534
GPUS = kernel.gpus()
NEAR1 = next(pci for pci, node in GPUS if node == 1)
NOWHERE = next(pci for pci, node in GPUS if node == -1)


def call(name, *arguments):
    given = [argument.encode() if isinstance(argument, str) else argument for argument in arguments]
    if getattr(LIBC, name)(*given):
        raise OSError(ctypes.get_errno(), name)


def own_mounts():
    call("unshare", NEWNS)
    call("mount", None, "/", None, REC | PRIVATE, None)


def chroot():
    """A root that shows nothing but files: /sys and /proc are empty."""
    own_mounts()
    os.mkdir("/tmp/root")
    call("mount", "/", "/tmp/root", None, BIND, None)
    for name in ("sys", "proc"):
        call("mount", "none", f"/tmp/root/{name}", "tmpfs", 0, None)
    os.chroot("/tmp/root")
    os.chdir("/")


def without(path):
    def leave():
        own_mounts()
        # Below the guest's own lies the host's, which is another machine's.
        call("mount", "none", path, "tmpfs", 0, None)

    return leave


def nobody():
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


def hidden():
    own_mounts()
    call("mount", "proc", "/proc", "proc", 0, b"hidepid=2")
    nobody()


def user_namespace():
    # The kernel has none for who is in a chroot, as all in this guest are: /r becomes the root.
    os.chdir("/proc/1/root")
    os.chroot(".")
    own_mounts()
    os.chdir("/r")
    call("mount", "/r", "/", None, MOVE, None)
    os.chroot(".")
    nobody()
    call("unshare", NEWUSER)


SURROUNDINGS = {
    "plain": lambda: None,
    "chroot": chroot,
    "no /sys": without("/sys"),
    "no /proc": without("/proc"),
    "hidden /proc": hidden,
    "user namespace": user_namespace,
}


def state(binding):
    return {
        "bound": binding.bound,
        "cpus": kernel.affinity(),
        "policy": kernel.mempolicy(),
        "problems": sorted(said.name for said in binding.problems),
    }


def bind(gpu):
    return state(numabind.bind(gpu=gpu))


def output(words):
    """What a child that calls the command with these words writes, and its exit code."""
    there, back = os.pipe()

    def work():
        os.dup2(back, 1)
        os.dup2(back, 2)
        return _cli.main(words)

    code = kernel.child(work)
    os.close(back)
    with open(there) as file:
        return {"code": code, "out": file.read()}


def everywhere():
    os.environ["CUDA_VISIBLE_DEVICES"] = "1,2"  # those that have a place
    for name, change in SURROUNDINGS.items():

        def work(name=name, change=change):
            change()
            worker = ["--", "echo", "ran"]
            say(check="run", of=name, **output(["run", "--gpu", NEAR1, *worker]))
            say(check="launch", of=name, **output(["launch", *worker]))
            say(check="strict", of=name, **output(["launch", "--strict", *worker]))
            say(check="status", of=name, **output(["status"]))
            say(check="bind", of=name, **bind(NEAR1))

        kernel.child(work)


def killed():
    """The parent dies inside `spawning`; its child says where it is when that is over."""
    over, told = os.pipe(), os.pipe()

    def parent():
        with numabind.spawning(gpu=NEAR1):
            if os.fork() == 0:
                os.close(over[1])
                os.read(over[0], 1)
                say(check="orphan", cpus=kernel.affinity(), policy=kernel.mempolicy())
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)

    before = sorted(os.listdir("/tmp"))
    code = kernel.child(parent)
    os.close(told[1])
    os.close(over[1])
    left = [name for name in sorted(os.listdir("/tmp")) if name not in before]
    say(check="killed", code=code, left=left, cpus=kernel.affinity(), policy=kernel.mempolicy())


def churn():
    """Threads come and go while one of them binds; those that it starts then have its memory."""
    stop = threading.Event()

    def live():
        while not stop.is_set():
            child = threading.Thread(target=lambda: None)
            child.start()
            child.join()

    threads = [threading.Thread(target=live) for _ in range(50)]
    for thread in threads:
        thread.start()
    binding = numabind.bind(gpu=NEAR1)
    masks = set()
    for tid in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # it ended
            masks.add(tuple(kernel.affinity(int(tid))))
    later = kernel.Witness().ask()
    stop.set()
    for thread in threads:
        thread.join()
    say(check="churn", masks=sorted(masks), later=later, **state(binding))


def clouds():
    say(check="cloud", of="one of three", **bind(NOWHERE))
    for pci in os.listdir("/sys/bus/pci/devices"):
        # The kernel lets root correct the firmware; -1 is what most clouds say, of bridges too.
        with open(f"/sys/bus/pci/devices/{pci}/numa_node", "w") as file:
            file.write("-1")
    near = kernel.read(f"/sys/bus/pci/devices/{NEAR1}/local_cpulist")
    say(check="cloud", of="all", local_cpulist=near, **bind(NEAR1))
    with open("/tmp/map", "w") as file:
        file.write(f"{NEAR1} nodes=1\n")
    os.environ["NUMABIND_MAP"] = "/tmp/map"
    say(check="cloud", of="mapped", **bind(NEAR1))


def warm_up():
    """Import what numabind imports only when it is needed."""
    import numabind._launch
    import numabind._report.colour
    import numabind._report.status
    import numabind._watch

    numabind.status(os.getpid())
    with numabind.spawning(gpu=NEAR1):
        pass
    with numabind.bind(gpu=NEAR1):
        pass


warm_up()
for check in (everywhere, killed, churn, clouds):
    kernel.child(check)
say(check="end")
