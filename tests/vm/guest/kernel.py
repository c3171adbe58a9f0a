"""What the guest's checks ask the kernel themselves, so that numabind is not its own witness."""

import ctypes
import json
import mmap
import os
import sys
import threading

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long
SYS = {"mbind": 237, "set_mempolicy": 238, "get_mempolicy": 239, "move_pages": 279}
POLICIES = ["default", "preferred", "bind", "interleave", "local", "preferred-many",
            "weighted-interleave"]  # fmt: skip
PAGE = 4096


def say(**facts):
    """One JSON line, written at once so that lines of parent and children don't mix."""
    os.write(1, (json.dumps(facts) + "\n").encode())


def read(path):
    with open(path) as file:
        return file.read().strip()


def mempolicy():
    """The calling thread's policy, [name, [nodes]]; the errno if the kernel refuses."""
    mode, mask = ctypes.c_int(), (ctypes.c_ulong * 16)()
    if LIBC.syscall(SYS["get_mempolicy"], ctypes.byref(mode), mask, 1024, None, 0):
        return [f"errno {ctypes.get_errno()}", []]
    nodes = [64 * i + b for i, word in enumerate(mask) for b in range(64) if word >> b & 1]
    return [POLICIES[mode.value & 0xFF], nodes]


def set_mempolicy(policy, nodes=()):
    mask = ctypes.c_ulong(sum(1 << node for node in nodes))
    number = POLICIES.index(policy)
    given = ctypes.byref(mask) if nodes else None
    if LIBC.syscall(SYS["set_mempolicy"], number, given, 65 if nodes else 0):
        raise OSError(ctypes.get_errno(), "set_mempolicy")


def affinity(tid=0):
    return sorted(os.sched_getaffinity(tid))


class Buffer:
    """Private anonymous memory that is a line of its own in numa_maps."""

    def __init__(self, mib):
        self.size = mib << 20
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self.map = mmap.mmap(-1, self.size + 2 * PAGE, flags=flags)
        # A flag that the pages around it lack keeps the kernel from merging it with others.
        self.map.madvise(mmap.MADV_DONTDUMP, PAGE, self.size)
        view = ctypes.c_char.from_buffer(self.map)
        self.start = ctypes.addressof(view) + PAGE
        del view

    def touch(self):
        self.map[PAGE : PAGE + self.size : PAGE] = b"x" * (self.size // PAGE)
        return self

    def nodes(self):
        """Its 4 KiB pages on each node, by numa_maps."""
        with open("/proc/self/numa_maps") as file:
            words = next(x for x in file if int(x.split(" ", 1)[0], 16) == self.start).split()
        size = int(words[-1].removeprefix("kernelpagesize_kB="))
        counts = (word[1:].split("=") for word in words if word[0] == "N" and word[1].isdigit())
        return {node: int(pages) * size // 4 for node, pages in counts}


class Witness(threading.Thread):
    """A thread that tells its own mask and policy when asked."""

    def __init__(self):
        super().__init__(daemon=True)
        self.wanted, self.done = threading.Event(), threading.Event()
        self.start()

    def run(self):
        self.wanted.wait()
        self.facts = {"cpus": affinity(), "policy": mempolicy()}
        self.done.set()

    def ask(self):
        self.wanted.set()
        self.done.wait()
        return self.facts


def gpus():
    """[PCI address, numa_node] of each display or accelerator function but the board's own VGA."""
    found = []
    for pci in sorted(os.listdir("/sys/bus/pci/devices")):
        base = f"/sys/bus/pci/devices/{pci}"
        kind = read(f"{base}/class")[2:4]
        if kind in ("03", "12") and read(f"{base}/vendor") in ("0x10de", "0x1002"):
            found.append([pci, int(read(f"{base}/numa_node"))])
    return found


def child(work):
    """Run `work` in a forked child; its exit code, or minus the signal that ended it."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = work() or 0
        except SystemExit as leave:
            code = leave.code
        except BaseException:
            import traceback

            traceback.print_exc()
        sys.stderr.flush()
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def deny(calls, number=1):
    """From here on the kernel answers -`number` to these system calls (a seccomp filter)."""
    load, equal, give = 0x20, 0x15, 0x06
    rows = [(load, 0, 0, 0)]
    rows += [(equal, len(calls) - i, 0, SYS[call]) for i, call in enumerate(calls)]
    rows += [(give, 0, 0, 0x7FFF0000), (give, 0, 0, 0x00050000 | number)]
    code = b"".join(
        op.to_bytes(2, "little") + bytes([yes, no]) + value.to_bytes(4, "little")
        for op, yes, no, value in rows
    )
    store = ctypes.create_string_buffer(code, len(code))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    program = Program(len(rows), ctypes.addressof(store))
    if LIBC.prctl(38, 1, 0, 0, 0) or LIBC.prctl(22, 2, ctypes.byref(program), 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")


def wait_for(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
