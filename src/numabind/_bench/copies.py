"""Copies between GPUs and host memory: which ones, in what order, and what refuses a figure.

All that is known of a GPU library stands behind `Copier`; here are only the order and the checks,
so tests run this file with a copier of their own. Host memory is this package's own (`Arena`),
registered with the driver once it is in its place: what a driver allocates can't be looked up.
"""

from __future__ import annotations

import os
import time

from numabind._bench.arena import Arena, Misplaced
from numabind._bench.results import DIRECTIONS, Copy, Samples
from numabind._problems import Problem, problem
from numabind._record import record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Protocol

    class Copier(Protocol):
        """A GPU library, reduced to what is measured. Each method raises CopyError."""

        name: str
        gpus: tuple[str, ...]
        """PCI addresses, in the library's own order."""

        def open(self, gpu: int, size: int) -> None:
            """Take `size` bytes of the GPU's memory and a stream."""

        def pin(self, arena: Arena) -> None:
            """Register host memory with the driver."""

        def unpin(self, arena: Arena) -> None:
            """Undo `pin`."""

        def start(self, gpu: int, host: Host, to_device: bool) -> None:
            """Copy between the GPU's memory and a part of host memory; may return early."""

        def wait(self, gpu: int) -> None:
            """Wait until all copies of this GPU are done."""


ROUNDS = 9
_MIB = 1 << 20
SIZE = 128 * _MIB
_SMALLEST = 8 * _MIB
_SAMPLE = 0.02  # seconds that one sample copies, at least


class CopyError(Exception):
    """A GPU library refused; the text is its own."""


@record
class Host:
    """The part of an arena that one GPU copies to and from."""

    arena: Arena
    start: int
    size: int

    @property
    def view(self) -> memoryview:
        """Its bytes."""
        return self.arena.view[self.start : self.start + self.size]


@record
class Site:
    """Where copies are measured from.

    `nodes` are the nodes that have CPUs and memory, with the CPUs of each; `born` this process's
    own CPUs; `gpu_nodes` the node that each GPU hangs off, by PCI address, where known.
    """

    nodes: tuple[tuple[int, frozenset[int]], ...]
    born: frozenset[int]
    gpu_nodes: tuple[tuple[str, int | None], ...]
    size: int = SIZE
    numa: bool = True


@record
class Turn:
    """Copies that are measured together: the node of each GPU's memory, None for unbound."""

    direction: str
    pinned: bool
    arrangement: str | None
    gpus: tuple[tuple[int, int | None], ...]


def turns(site: Site, gpus: Sequence[str], pinned: bool) -> tuple[Turn, ...]:
    """All that is measured in one round. Pure.

    Each GPU alone with each node's memory and unbound, both ways; with pinned memory also all GPUs
    at once: each with its own node's memory, each with that of the n-th node after its own, and
    unbound. GPUs whose node is not known can't be arranged.
    """
    ids = [node for node, _ in site.nodes]
    own = dict(site.gpu_nodes)
    numbered = list(enumerate(gpus))
    found = [
        Turn(direction, pinned, None, ((gpu, node),))
        for direction in DIRECTIONS
        for gpu, _ in numbered
        for node in (*ids, None)
    ]
    if not pinned or len(gpus) < 2:
        return tuple(found)
    arranged: list[tuple[str, tuple[tuple[int, int | None], ...]]] = [
        ("unbound", tuple((gpu, None) for gpu, _ in numbered))
    ]
    known = [own.get(pci) for pci in gpus]
    at = [ids.index(node) for node in known if node in ids]
    if len(at) == len(gpus):
        for shift in range(len(ids)):
            name = f"remote+{shift}" if shift else "local"
            arranged.append(
                (name, tuple((gpu, ids[(at[gpu] + shift) % len(ids)]) for gpu, _ in numbered))
            )
    for direction in DIRECTIONS:
        found += [Turn(direction, pinned, name, places) for name, places in arranged]
    return tuple(found)


def place_of(own: int | None, node: int | None) -> str:
    """What memory on `node` is to a GPU on node `own`: one of results.PLACES. Pure."""
    if node is None:
        return "unbound"
    if own is None:
        return "unknown"
    return "local" if own == node else "remote"


def measure(
    site: Site,
    copier: Copier,
    seconds: float,
    progress: Callable[[str], None],
    *,
    clock: Callable[[], float] = time.perf_counter,
    pageable: bool = True,
) -> tuple[Copy, ...]:
    """Measure all turns in rounds, for about `seconds`; verify every byte and page.

    The calling thread's mask is changed meanwhile and put back. KeyboardInterrupt passes through.
    """
    bench = _Copies(site, copier, clock)
    deadline = clock() + seconds
    try:
        progress("copies: filling host memory")
        bench.prepare()
        # Pageable copies come second and get a third of the time.
        bench.rounds(turns(site, copier.gpus, True), deadline - seconds / 3 * pageable, progress)
        bench.verify(True, progress)
        if pageable:
            bench.unpin()
            bench.rounds(turns(site, copier.gpus, False), deadline, progress)
            bench.verify(False, progress)
    finally:
        os.sched_setaffinity(0, site.born)
    return bench.results()


class _Copies:
    """What `measure` has at hand while it runs."""

    def __init__(self, site: Site, copier: Copier, clock: Callable[[], float]) -> None:
        self.site, self.copier, self.clock = site, copier, clock
        self.cpus: dict[int | None, frozenset[int]] = {**dict(site.nodes), None: site.born}
        self.arenas: dict[int | None, Arena] = {}
        self.found: dict[tuple[Turn, int], list[float]] = {}
        self.refused: dict[tuple[bool, int | None, int | None], Problem] = {}
        """By pinned or not, node of the memory, and GPU (None: all)."""
        self.where: tuple[int, ...] = ()

    def prepare(self) -> None:
        for node, cpus in self.cpus.items():
            os.sched_setaffinity(0, cpus)
            arena = Arena(self.site.size * len(self.copier.gpus), node, self.site.numa)
            self.arenas[node] = arena
            try:
                arena.check()
                self.copier.pin(arena)
            except Misplaced as error:
                self.refuse(None, node, error.problem)
            except CopyError as error:
                self.refuse(True, node, problem("copy-failed", f"pinning: {error}"))
        try:
            self.where = tuple(sorted(n for n in self.arenas[None].nodes() if n >= 0))
        except OSError:
            self.where = ()
        for gpu, pci in enumerate(self.copier.gpus):
            try:
                self.copier.open(gpu, self.site.size)
            except CopyError as error:
                said = problem("copy-failed", f"{pci}: {error}")
                for node in self.arenas:
                    self.refuse(None, node, said, gpu)

    def refuse(
        self, pinned: bool | None, node: int | None, said: Problem, gpu: int | None = None
    ) -> None:
        for kind in (True, False) if pinned is None else (pinned,):
            self.refused.setdefault((kind, node, gpu), said)

    def why(self, pinned: bool, node: int | None, gpu: int) -> Problem | None:
        return self.refused.get((pinned, node, None)) or self.refused.get((pinned, node, gpu))

    def host(self, node: int | None, gpu: int) -> Host:
        return Host(self.arenas[node], gpu * self.site.size, self.site.size)

    def unpin(self) -> None:
        for node, arena in self.arenas.items():
            if self.refused.get((True, node, None)) is None:
                self.copier.unpin(arena)

    def rounds(
        self, wanted: tuple[Turn, ...], deadline: float, progress: Callable[[str], None]
    ) -> None:
        for number in range(ROUNDS):
            if number and self.clock() > deadline:
                return
            for turn in wanted if number % 2 else reversed(wanted):
                if any(self.why(turn.pinned, node, gpu) for gpu, node in turn.gpus):
                    continue
                kind = "pinned" if turn.pinned else "pageable"
                progress(f"copies: {kind}, round {number + 1} of {ROUNDS}")
                self.one(turn)

    def one(self, turn: Turn) -> None:
        """One sample: a GPU's own bytes by the time until the last copy of all was done.

        A GPU whose copy fails is refused for good, and the sample with it.
        """
        cpus = frozenset[int]().union(*(self.cpus[node] for _, node in turn.gpus))
        os.sched_setaffinity(0, cpus)
        parts = [(gpu, self.host(node, gpu)) for gpu, node in turn.gpus]
        to_device, copier = turn.direction == "h2d", self.copier
        times = 0
        begun = self.clock()
        while True:
            for gpu, host in parts:
                if not self.did(turn, gpu, host, lambda g, h: copier.start(g, h, to_device)):
                    return
            for gpu, host in parts:
                if not self.did(turn, gpu, host, lambda g, _: copier.wait(g)):
                    return
            times += 1
            taken = self.clock() - begun
            if taken >= _SAMPLE:
                break
        rate = times * self.site.size / taken / (1 << 30)
        for gpu, _ in parts:
            self.found.setdefault((turn, gpu), []).append(rate)

    def did(self, turn: Turn, gpu: int, host: Host, act: Callable[[int, Host], None]) -> bool:
        """Whether the library did it; if not, the GPU gets no figure from this memory."""
        try:
            act(gpu, host)
        except CopyError as error:
            said = problem("copy-failed", f"{self.copier.gpus[gpu]}: {error}")
            self.refuse(turn.pinned, host.arena.node, said, gpu)
            return False
        return True

    def verify(self, pinned: bool, progress: Callable[[str], None]) -> None:
        """There and back again: the same bytes, and the pages still in their place."""
        for node, arena in self.arenas.items():
            os.sched_setaffinity(0, self.cpus[node])
            for gpu, pci in enumerate(self.copier.gpus):
                if self.why(pinned, node, gpu) is not None:
                    continue
                progress(f"copies: verifying {pci}")
                host = self.host(node, gpu)
                wrong = self.differs(gpu, host)
                if wrong is not None:
                    self.refuse(pinned, node, wrong, gpu)
            try:
                arena.check()
            except Misplaced as error:
                self.refuse(pinned, node, error.problem)

    def differs(self, gpu: int, host: Host) -> Problem | None:
        pattern = os.urandom(4096) * (host.size // 4096)
        pci = self.copier.gpus[gpu]
        try:
            host.view[:] = pattern
            self.copier.start(gpu, host, True)
            self.copier.wait(gpu)
            host.view[:] = bytes(host.size)
            self.copier.start(gpu, host, False)
            self.copier.wait(gpu)
        except CopyError as error:
            return problem("copy-failed", f"{pci}: {error}")
        if bytes(host.view) == pattern:
            return None
        cause = f"{pci}: of {host.size} bytes some came back from the GPU changed"
        return problem("bytes-differ", cause)

    def results(self) -> tuple[Copy, ...]:
        own = dict(self.site.gpu_nodes)
        gone = problem("out-of-time", "the time was used up by what came before")
        wanted = [t for p in (True, False) for t in turns(self.site, self.copier.gpus, p)]
        measured = {turn.pinned for turn, _ in self.found} | {key[0] for key in self.refused}
        found = []
        for turn in wanted:
            if turn.pinned not in measured:
                continue
            for gpu, node in turn.gpus:
                pci = self.copier.gpus[gpu]
                values = self.found.get((turn, gpu), [])
                # Together they are one figure: what refuses one refuses all.
                said = next(filter(None, (self.why(turn.pinned, n, g) for g, n in turn.gpus)), None)
                copy = Copy(
                    pci,
                    turn.direction,
                    place_of(own.get(pci), node),
                    node,
                    turn.pinned,
                    turn.arrangement,
                    found=self.where if node is None else (),
                )
                if said is not None or not values:
                    found.append(replace(copy, problem=said or gone))
                else:
                    found.append(replace(copy, rate=Samples(tuple(values))))
        return tuple(found)


def size_for(free: Iterable[int], gpus: int) -> int | None:
    """Bytes for each GPU's part of a node's memory: 128 MiB, within a quarter of what is free.

    None if that is under 8 MiB. Pure.
    """
    size = min(SIZE, *(amount // 4 // max(1, gpus) for amount in free)) // _MIB * _MIB
    return size if size >= _SMALLEST else None
