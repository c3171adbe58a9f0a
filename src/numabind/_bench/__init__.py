"""Is binding worth it on this machine? Measured, not guessed.

`bench` measures; results.py holds what it found, verdict.py says what that means, calibrate.py
finds GPUs' nodes by it. memory.py measures CPU memory, copies.py GPUs.
"""

from __future__ import annotations

import os
import time

from numabind._problems import problem
from numabind._sysfs import Root, read_free_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from numabind._bench.copies import Copier, Site
    from numabind._bench.results import Bench, Copy
    from numabind._machine import Machine
    from numabind._problems import Problem

# Of the time that is given, what CPU memory gets; copies get the rest.
_FOR_MEMORY = 0.4


def bench(
    machine: Machine,
    seconds: float,
    progress: Callable[[str], None],
    gpus: bool = True,
    find: Callable[[], Copier | Problem] | None = None,
) -> Bench:
    """Measure this machine for at most about `seconds`; `progress` is told each step.

    `find` gives the GPU library (default: `copiers.find_copier`); False for `gpus` leaves them out.
    Nothing of this process stays changed, but a GPU library stays loaded. ChildError where a
    measuring process died; KeyboardInterrupt leaves nothing behind.
    """
    from numabind._bench import memory
    from numabind._bench.results import Bench

    begun = time.monotonic()
    wanted = memory.layout(machine, Root())
    present = any(device.computes for device in machine.devices)
    problems = [said for _, said in wanted.problems]
    share = _FOR_MEMORY if present and gpus else 1.0
    pairs = memory.measure(wanted, seconds * share, progress)
    copies: tuple[Copy, ...] = ()
    name = None
    if present and gpus:
        left = seconds - (time.monotonic() - begun)
        copies, name, said = copies_of(machine, left, progress, find)
        problems += said
    return Bench(
        machine.host.name,
        time.strftime("%Y-%m-%d %H:%M %Z"),
        tuple(node for node, _ in wanted.cpus),
        pairs,
        copies,
        name,
        round(time.monotonic() - begun, 1),
        tuple(problems),
    )


def copies_of(
    machine: Machine,
    seconds: float,
    progress: Callable[[str], None],
    find: Callable[[], Copier | Problem] | None = None,
    pageable: bool = True,
) -> tuple[tuple[Copy, ...], str | None, tuple[Problem, ...]]:
    """The copies of all GPUs that this process sees, the library, and what was in the way."""
    from numabind._bench.copiers import find_copier
    from numabind._bench.copies import measure, size_for
    from numabind._problems import Problem

    progress("copies: starting the GPU library")
    found = (find or find_copier)()
    if isinstance(found, Problem):
        return (), None, (found,)
    where = site(machine)
    free = [read_free_bytes(Root(), node, machine.host.numa) or 0 for node, _ in where.nodes]
    size = size_for(free, len(found.gpus)) if free else None
    if size is None:
        cause = f"the nodes have {min(free, default=0) >> 20} MiB free for {len(found.gpus)} GPUs"
        return (), found.name, (problem("too-little-free", cause),)
    from numabind._record import replace

    where = replace(where, size=size)
    return measure(where, found, seconds, progress, pageable=pageable), found.name, ()


def site(machine: Machine) -> Site:
    """Where copies can be measured from: nodes with CPUs and memory that this process may use."""
    from numabind._bench.copies import Site

    allowed = machine.allowed
    nodes = tuple(
        (node.id, node.cpus & allowed.cpus)
        for node in machine.nodes
        if node.id in allowed.nodes and node.memory_bytes and node.cpus & allowed.cpus
    )
    own = tuple((device.pci, device.node) for device in machine.devices)
    born = frozenset(os.sched_getaffinity(0))
    return Site(nodes, born, own, numa=machine.host.numa)
