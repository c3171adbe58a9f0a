"""bench and calibrate on two emulated nodes: places are real, speeds are not.

For two-socket: two nodes of 4 CPUs and 256 MiB, two GPUs on each that nothing can copy to.
"""

import argparse
import contextlib
import io
import json
import os

import kernel
from kernel import say

from numabind import Machine, discover
from numabind._bench import copies, memory
from numabind._bench.arena import Arena, Misplaced
from numabind._bench.results import Bench
from numabind._bench.verdict import verdict
from numabind._measuring import calibrate_verb
from numabind._record import replace
from numabind._sysfs import Root

# Seconds of the first try and of those after it: a busy host may not end five rounds in the first,
# and one comparison in 256 differs by chance.
PATIENCE = (6.0, 30.0, 90.0)


def small(machine):
    """What `bench` would do, with two processes a node: eight would share this host's few CPUs."""
    layout = memory.layout(machine, Root())
    cpus = tuple((node, some[:2]) for node, some in layout.cpus)
    return replace(layout, cpus=cpus, memory=tuple((node, 32 << 20) for node, _ in layout.memory))


def of_memory(machine):
    layout = memory.layout(machine, Root())
    say(check="layout", cpus=layout.cpus, memory=layout.memory, left_out=len(layout.problems))
    for seconds in PATIENCE:
        pairs = memory.measure(small(machine), seconds, lambda _: None)
        made = verdict(Bench("vm", "", (0, 1), pairs))
        if made.worth == 1.0:
            break
    say(check="memory", pairs=[pair.as_dict() for pair in pairs], verdict=made.as_dict())


def refusals():
    """Each node, looked up by the kernel; then memory that is not where it is said to be."""
    for node in (0, 1):
        os.sched_setaffinity(0, {0})
        there = Arena(4 << 20, node)
        there.check()
        say(check="arena", node=node, found=there.nodes(), policy=kernel.mempolicy())
    there.node = 0
    try:
        there.check()
    except Misplaced as error:
        say(check="refused", name=error.problem.name, cause=error.problem.cause)


def denied():
    """Without set_mempolicy first touch must do; without move_pages nothing may be said."""

    def policy():
        kernel.deny(["set_mempolicy"])
        for node, cpu in ((0, 0), (1, 4)):
            os.sched_setaffinity(0, {cpu})
            there = Arena(4 << 20, node)
            there.check()
            say(check="first touch", node=node, found=there.nodes())
        os.sched_setaffinity(0, {0})
        try:
            Arena(4 << 20, 1).check()
        except Misplaced as error:
            say(check="no policy, far CPU", name=error.problem.name)

    def look():
        kernel.deny(["move_pages"])
        layout = small(discover())
        pairs = memory.measure(replace(layout, cpus=layout.cpus[:1]), 2, lambda _: None)
        say(check="can't look", names=[pair.problem.name for pair in pairs],
            figures=[pair.bandwidth for pair in pairs])  # fmt: skip

    kernel.child(policy)
    kernel.child(look)


class Copier:
    """Stands for a GPU library: "GPU memory" is memory of this process, so no node is nearer."""

    name = "memory"

    def __init__(self, gpus):
        self.gpus = gpus
        self.memory = {}

    def open(self, gpu, size):
        self.memory[gpu] = memoryview(bytearray(size))

    def pin(self, arena):
        pass

    unpin = pin

    def start(self, gpu, host, to_device):
        if to_device:
            self.memory[gpu][:] = host.view
        else:
            host.view[:] = self.memory[gpu]

    def wait(self, gpu):
        pass


def of_copies(machine):
    copies.SIZE = 8 << 20
    gpus = tuple(device.pci for device in machine.devices if device.computes)[:2]
    kept = [replace(d, node=None, numa_node=-1) for d in machine.devices if d.pci in gpus]
    unknown = replace(machine, devices=tuple(kept))
    for seconds in PATIENCE:
        words = argparse.Namespace(output=None, force=False, all=False, seconds=seconds, json=True)
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
            code = calibrate_verb(words, unknown, lambda: Copier(gpus))
        answer = json.loads(said.getvalue())
        if all(place["cause"].startswith("the nodes differ") for place in answer["places"]):
            break
    say(check="calibrate", code=code, affinity=kernel.affinity(), **answer)


def without_library(machine: Machine):
    said = io.StringIO()
    words = argparse.Namespace(output=None, force=False, all=True, seconds=6.0)
    with contextlib.redirect_stderr(said):
        code = calibrate_verb(words, machine)
    say(check="no library", code=code, err=said.getvalue())


if __name__ == "__main__":
    here = discover()
    refusals()
    os.sched_setaffinity(0, range(8))
    denied()
    of_memory(here)
    of_copies(here)
    without_library(here)
    say(check="end")
