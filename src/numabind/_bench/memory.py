"""CPU memory from each node to each node: processes on one node's CPUs, their pages on another's.

For each node with memory some processes hold buffers there. In each round every such crew is moved
to the CPUs of one node after the other, copies for a fixed time within its own buffers (many times
what the last-level cache holds), and then one of it follows a chain of dependent loads through cold
memory. The same loop over a chain that stays in the first-level cache is taken off, and with it the
interpreter's own time. What the processor does of the interpreter's work while it waits for memory
is taken off too much, so latencies are some ns too short, all alike.
"""

from __future__ import annotations

import os
import time
from itertools import repeat

from numabind._bench.arena import Arena, Misplaced, chain
from numabind._bench.children import Child, interrupts_held
from numabind._bench.results import Pair, Samples
from numabind._problems import Problem, problem
from numabind._record import record, replace
from numabind._sysfs import Root, read_free_bytes, read_last_level_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from numabind._machine import Machine

    # By node of the CPUs and of the memory: GiB/s and ns of each round.
    Figures = dict[tuple[int, int], list[tuple[float, float]]]

_MOST_WORKERS = 16
_MIB = 1 << 20
_LEAST = 64 * _MIB  # of a node's memory, in all
_USUAL = 256 * _MIB
_CHUNK = 4 * _MIB
_PLACES, _FAR = 1 << 17, 64  # of the chain: 128 Ki cache lines 512 bytes apart, 64 MiB
_CHAIN_BYTES = _PLACES * _FAR * 8
_LONGEST, _SHORTEST = 0.06, 0.015  # seconds that one sample copies
_CHASE = 0.04  # seconds that the chains take, about


@record
class Layout:
    """What is to be measured: CPUs of each node to work with, and bytes on each memory node."""

    cpus: tuple[tuple[int, tuple[int, ...]], ...]
    memory: tuple[tuple[int, int], ...]
    numa: bool = True
    problems: tuple[tuple[int, Problem], ...] = ()
    """Why a memory node is left out, by its number."""


def layout(machine: Machine, root: Root) -> Layout:
    """Choose CPUs and sizes: one CPU of each core, at most 16 and the cgroup's quota; memory four
    times the last-level caches of a node, 256 MiB or more, within a quarter of what is free."""
    allowed = machine.allowed
    quota = max(1, int(allowed.cpu_quota)) if allowed.cpu_quota is not None else _MOST_WORKERS
    by_node: dict[int, dict[int, int]] = {}
    groups: dict[int, set[int]] = {}
    for cpu in machine.cpus:
        if cpu.id in allowed.cpus and cpu.node is not None:
            core = cpu.id if cpu.core is None else cpu.core
            by_node.setdefault(cpu.node, {}).setdefault(core, cpu.id)
            if cpu.l3 is not None:
                groups.setdefault(cpu.node, set()).add(cpu.l3)
    cache = max(
        (sum(read_last_level_bytes(root, l3) or 0 for l3 in some) for some in groups.values()),
        default=0,
    )
    memory, left_out = [], []
    for node in machine.nodes:
        if node.id not in allowed.nodes or node.kind == "gpu" or not node.memory_bytes:
            continue
        free = read_free_bytes(root, node.id, machine.host.numa) or node.memory_bytes
        size = bytes_to_use(cache, free)
        if size is None:
            cause = f"node {node.id} has {free // _MIB} MiB free, the caches hold {cache // _MIB}"
            left_out.append((node.id, problem("too-little-free", cause)))
        else:
            memory.append((node.id, size))
    cpus = tuple(
        (node, tuple(sorted(cores.values()))[: min(_MOST_WORKERS, quota)])
        for node, cores in sorted(by_node.items())
    )
    return Layout(cpus, tuple(memory), machine.host.numa, tuple(left_out))


def bytes_to_use(cache: int, free: int) -> int | None:
    """How much of a node's free memory to copy in; None if that is too little to say anything.

    Four times the caches, at least 256 MiB, at most a quarter of what is free; with less than
    64 MiB or twice the caches the copies would be the cache's.
    """
    size = min(max(4 * cache, _USUAL), free // 4)
    return size if size >= max(_LEAST // 2, 2 * cache) and free >= _LEAST + _CHAIN_BYTES else None


def rounds_for(pairs: int) -> int:
    """9 rounds, or 5 where there are very many pairs."""
    return 9 if pairs <= 100 else 5


def measure(wanted: Layout, seconds: float, progress: Callable[[str], None]) -> tuple[Pair, ...]:
    """Measure every pair of a CPU node and a memory node, in rounds, for about `seconds`.

    Nothing of this process changes. KeyboardInterrupt leaves no child behind.
    """
    cpus = dict(wanted.cpus)
    found: Figures = {(cpu, memory): [] for memory, _ in wanted.memory for cpu in cpus}
    refused: dict[tuple[int, int], Problem] = {}
    crews: dict[int, list[Child]] = {}
    try:
        if cpus:
            for node, size in wanted.memory:
                progress(f"memory: filling {size // _MIB} MiB on node {node}")
                _hire(crews.setdefault(node, []), wanted, node, size)
            _rounds(crews, cpus, seconds, found=found, refused=refused, progress=progress)
    finally:
        for crew in crews.values():
            for child in crew:
                child.end()
    measured = [_pair(turn, len(cpus[turn[0]]), found[turn], refused.get(turn)) for turn in found]
    left_out = [
        Pair(cpu, memory, 0, problem=said) for memory, said in wanted.problems for cpu in cpus
    ]
    return tuple(sorted([*measured, *left_out], key=lambda p: (p.cpu_node, p.memory_node)))


def _hire(crew: list[Child], wanted: Layout, node: int, size: int) -> None:
    """Start the children that hold a node's memory, and wait until they have touched it."""
    cpus = dict(wanted.cpus)
    near = cpus.get(node) or next(iter(cpus.values()))
    most = max(len(some) for some in cpus.values())
    for slot in range(most):
        work = _worker(node, size // most, near[slot % len(near)], slot, wanted.numa)
        with interrupts_held():
            crew.append(Child(work))
    for child in crew:
        child.ask(None)
    for child in crew:
        child.answer()


def _rounds(
    crews: dict[int, list[Child]],
    cpus: dict[int, tuple[int, ...]],
    seconds: float,
    *,
    found: Figures,
    refused: dict[tuple[int, int], Problem],
    progress: Callable[[str], None],
) -> None:
    """Fill `found` and `refused`, every other round in the opposite order."""
    deadline = time.monotonic() + seconds
    turns = list(found)
    rounds = rounds_for(len(turns))
    share = seconds / max(1, rounds * len(turns)) - _CHASE
    copying = min(_LONGEST, max(_SHORTEST, share))
    for number in range(rounds):
        for turn in turns if number % 2 else reversed(turns):
            if turn in refused:
                continue
            cpu, memory = turn
            progress(f"memory: round {number + 1} of {rounds}, node {cpu} on node {memory}")
            answer = _one(crews[memory], cpus[cpu], copying)
            if isinstance(answer, Problem):
                refused[turn] = answer
            else:
                found[turn].append(answer)
        if time.monotonic() > deadline:
            return


def _pair(
    turn: tuple[int, int], workers: int, found: list[tuple[float, float]], refused: Problem | None
) -> Pair:
    empty = Pair(*turn, workers, problem=refused)
    if refused is not None:
        return empty
    if not found:
        return replace(empty, problem=problem("out-of-time", "no round came to this pair"))
    rates, waits = zip(*found, strict=True)
    return replace(empty, bandwidth=Samples(rates), latency=Samples(waits))


def _one(crew: list[Child], cpus: tuple[int, ...], copying: float) -> tuple[float, float] | Problem:
    """One sample: GiB/s of all together, and ns; or why there is none."""
    crew = crew[: len(cpus)]
    start = time.monotonic_ns() + 2_000_000
    for child, cpu in zip(crew, cpus, strict=True):
        child.ask([cpu, start, int(copying * 1e9)])
    answers = [child.answer() for child in crew]
    for answer in answers:
        if "problem" in answer:
            return Problem(**answer["problem"])
    rate = sum(answer["bytes"] / answer["ns"] for answer in answers) * 1e9 / (1 << 30)
    return rate, answers[0]["latency"]


def _worker(
    node: int, size: int, near: int, slot: int, numa: bool
) -> Callable[[], Callable[[Any], Any]]:
    return lambda: _Worker(node, size, near, slot, numa).reply


class _Worker:
    """The child: memory of one node, and the work on it. Only slot 0 follows chains."""

    def __init__(self, node: int, size: int, near: int, slot: int, numa: bool) -> None:
        os.sched_setaffinity(0, {near})
        self.copies = Arena(size, node, numa)
        self.loads = Arena(_CHAIN_BYTES, node, numa) if slot == 0 else None
        if self.loads is not None:
            self.loads.map[:] = chain(_PLACES, _FAR).tobytes()
        self.short = memoryview(chain(64, 8))

    def reply(self, question: Any) -> Any:
        if question is None:
            return None
        cpu, start, wanted = question
        try:
            return self.work(cpu, start, wanted)
        except Misplaced as error:
            return {"problem": error.problem.as_dict()}
        except OSError as error:
            cause = f"CPU {cpu}: {error.strerror}"
            return {"problem": problem("cpus-not-allowed", cause).as_dict()}

    def work(self, cpu: int, start: int, wanted: int) -> Any:
        os.sched_setaffinity(0, {cpu})
        while time.monotonic_ns() < start:
            pass
        done, taken = copy_for(self.copies.view, wanted)
        latency = 0.0
        if self.loads is not None:
            far = follow(self.loads.view.cast("q"), _PLACES)
            latency = far - follow(self.short, _PLACES)
            self.loads.check()
        self.copies.check()
        now = os.sched_getaffinity(0)
        if now != {cpu}:
            cause = f"a measuring process was given CPU {cpu} and has {sorted(now)}"
            raise Misplaced(problem("affinity-not-kept", cause))
        return {"bytes": done, "ns": taken, "latency": max(0.0, latency)}


def copy_for(view: memoryview, wanted: int) -> tuple[int, int]:
    """Copy one half of a buffer to the other, piece by piece, for `wanted` ns; bytes and ns."""
    half = len(view) // 2
    chunk = min(_CHUNK, half)
    at, done = 0, 0
    begun = time.perf_counter_ns()
    while True:
        view[half + at : half + at + chunk] = view[at : at + chunk]
        done += chunk
        at = at + chunk if at + 2 * chunk <= half else 0
        taken = time.perf_counter_ns() - begun
        if taken >= wanted:
            return done, taken


def follow(places: Any, steps: int) -> float:
    """Nanoseconds a step of following a chain; each step needs the one before."""
    at = 0
    begun = time.perf_counter_ns()
    for _ in repeat(None, steps):
        at = places[at]
    return (time.perf_counter_ns() - begun) / steps
