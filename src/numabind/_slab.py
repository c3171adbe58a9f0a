"""Slabs: memory on a node of one's choice, whatever thread asks for it or touches it first.

A slab is an anonymous private mapping with a policy of its own (mbind), touched before anyone gets
it by several threads that run on that node, then read back page by page (move_pages). The policy is
PREFERRED: BIND would have the kernel kill the process where the node is full.

Sources: mmap(2), mbind(2), madvise(2) MADV_POPULATE_WRITE and MADV_HUGEPAGE;
Documentation/admin-guide/mm/hugetlbpage.rst.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
from array import array

from numabind import _syscalls
from numabind._cpulist import parse_list
from numabind._errors import BindError
from numabind._problems import Problem, problem
from numabind._record import record

HUGE = 2 << 20
_MAP_HUGETLB = 0x40000
_SHARE = 4 << 20  # bytes for which one more thread pays
_MOST_THREADS = 8
_PIECE = 32 << 20  # bytes a thread touches at a time: meanwhile nobody can map or unmap memory
_CHUNK = 1 << 16  # pages a question to the kernel
_EINVAL, _EPERM, _ENOSYS = 22, 1, 38


@record
class Slab:
    """A mapping of `size` bytes at `address`, meant for `node` (None: wherever it landed).

    `elsewhere` counts the bytes that the kernel put on another node, None where it would not tell;
    `page_bytes` is what it is made of: 2 MiB for hugetlb pages.
    """

    memory: mmap.mmap
    address: int
    size: int
    node: int | None
    page_bytes: int
    elsewhere: int | None
    problems: tuple[Problem, ...] = ()


def make_slab(
    size: int, node: int | None, strict: bool = False, threads: int | None = None
) -> Slab:
    """Map at least `size` bytes on `node` and touch them all; None takes the thread's own policy.

    Rounded up to 2 MiB. hugetlb pages are used where the node has enough free ones, else the kernel
    is asked for transparent ones. `threads` touch it (by default one for each 4 MiB, at most one
    for each CPU of the node and 8). What could not be had is in `problems`; under `strict` it is a
    BindError and nothing is kept. MemoryError where there is no memory for it at all.
    """
    size = -(-max(size, 1) // HUGE) * HUGE
    said: list[Problem] = []
    memory, page = _mapped(size, node)
    address = _syscalls.address_of(memory)
    if page != HUGE and hasattr(memory, "madvise"):
        with contextlib.suppress(OSError):  # a kernel without transparent huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    if node is not None:
        try:
            _syscalls.bind_memory(address, size, "preferred", frozenset({node}))
        except OSError as error:
            said.append(_refused(error, node))
    elsewhere = _touch(address, size, page, node, threads)
    if elsewhere and not said:
        cause = f"{elsewhere >> 20} of {size >> 20} MiB are not on node {node}, which is full"
        said.append(problem("slab-elsewhere", cause))
    if said and strict:
        memory.close()
        raise BindError(tuple(said))
    return Slab(memory, address, size, node, page, elsewhere, tuple(said))


def _mapped(size: int, node: int | None) -> tuple[mmap.mmap, int]:
    """A private mapping, and the size of its pages in bytes. MemoryError if there is none."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    if node is not None and _free_huge_pages(node) * HUGE >= size:
        try:
            return mmap.mmap(-1, size, flags=flags | _MAP_HUGETLB), HUGE
        except OSError:
            pass  # somebody else was faster, or a cgroup limits them
    try:
        return mmap.mmap(-1, size, flags=flags), mmap.PAGESIZE
    except OSError as error:
        raise MemoryError(f"no {size >> 20} MiB of address space: {error.strerror}") from error


def _free_huge_pages(node: int) -> int:
    path = f"/sys/devices/system/node/node{node}/hugepages/hugepages-2048kB/free_hugepages"
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0


def _refused(error: OSError, node: int) -> Problem:
    what = f"mbind(preferred, node {node}): {error.strerror}"
    if error.errno == _EINVAL:
        return problem("memory-not-allowed", what)
    name = "memory-policy-denied" if error.errno == _EPERM else "memory-policy-unsupported"
    return problem(name, what)


def cpus_of(node: int) -> frozenset[int]:
    """The CPUs of a node; none if it has none or the kernel does not say."""
    try:
        with open(f"/sys/devices/system/node/node{node}/cpulist", encoding="ascii") as file:
            return parse_list(file.read())
    except (OSError, ValueError):
        return frozenset()


def node_exists(node: int) -> bool:
    """Whether this machine has a NUMA node of that number; a kernel without NUMA has node 0."""
    nodes = "/sys/devices/system/node"
    return os.path.isdir(f"{nodes}/node{node}") or (node == 0 and not os.path.isdir(nodes))


@record
class _Piece:
    """A range that one thread touches and reads back."""

    address: int
    size: int
    page_bytes: int
    node: int | None


def _touch(
    address: int, size: int, page_bytes: int, node: int | None, threads: int | None
) -> int | None:
    """Touch a range with several threads, on the node's CPUs where they may be used.

    Returns the bytes that landed elsewhere, None where the kernel would not tell. Each thread reads
    its own pieces back, which takes a third of the time.
    """
    near = cpus_of(node) if node is not None else frozenset[int]()
    mask = frozenset(os.sched_getaffinity(0))
    count = max(1, threads or min(size // _SHARE, len(near & mask or mask), _MOST_THREADS))
    step = min(-(-size // count // HUGE) * HUGE, _PIECE)
    pieces = [
        _Piece(address + low, min(step, size - low), page_bytes, node)
        for low in range(0, size, step)
    ]
    go = threading.Event()
    failed: list[OSError] = []
    found: list[int | None] = []
    workers = []
    try:
        for _ in range(count):
            work = threading.Thread(
                target=_touch_pieces, args=(pieces, near, go, found, failed), name="numabind-touch"
            )
            work.start()
            workers.append(work)
    except RuntimeError:  # no more threads for this user or cgroup: fewer must do
        if not workers:
            go.set()
            _touch_pieces(pieces, frozenset(), go, found, failed)
    finally:
        # A new thread's stack waits for the address space, which a touching one holds.
        go.set()
    for worker in workers:
        worker.join()
    if failed:
        raise MemoryError(f"no {size >> 20} MiB of memory: {failed[0].strerror}") from failed[0]
    told = [some for some in found if some is not None]
    return sum(told) if len(told) == len(found) else None


def _touch_pieces(
    pieces: list[_Piece],
    cpus: frozenset[int],
    go: threading.Event,
    found: list[int | None],
    failed: list[OSError],
) -> None:
    """Touch and read back pieces until none is left; one thread's work."""
    if cpus:
        # The mask is this thread's own, which ends here. Where the CPUs are not ours to use, the
        # policy places the pages all the same, only more slowly.
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, cpus)
    go.wait()
    while not failed:
        try:
            piece = pieces.pop()
        except IndexError:
            return
        try:
            _syscalls.populate(piece.address, piece.size)
        except OSError as error:
            if error.errno not in (_EINVAL, _ENOSYS, _EPERM):
                failed.append(error)
                return
            _syscalls.fill(piece.address, piece.size)
        elsewhere: int | None = 0
        if piece.node is not None:
            elsewhere = bytes_elsewhere(piece.address, piece.size, piece.page_bytes, piece.node)
        found.append(elsewhere)


def nodes_of_pages(address: int, size: int, page_bytes: int) -> dict[int, int] | None:
    """Bytes of a range by the node they are on; None if the kernel would not tell.

    Pages that were never touched are not counted.
    """
    found: dict[int, int] = {}
    first = address - address % page_bytes
    for low in range(first, address + size, _CHUNK * page_bytes):
        high = min(address + size, low + _CHUNK * page_bytes)
        try:
            where = _syscalls.page_nodes(array("Q", range(low, high, page_bytes)))
        except OSError:
            return None
        for node in set(where):
            if node >= 0:
                found[node] = found.get(node, 0) + where.count(node) * page_bytes
    return found


def bytes_elsewhere(address: int, size: int, page_bytes: int, node: int) -> int | None:
    """Bytes of a range that are on other nodes than this; None if the kernel would not tell."""
    found = nodes_of_pages(address, size, page_bytes)
    return None if found is None else sum(n for at, n in found.items() if at != node)
