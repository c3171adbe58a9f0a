"""Host tensors on a node: a pool that cuts slabs into blocks, and registers slabs with CUDA.

A tensor holds its block through a memoryview; when the last tensor on it goes, so does the view,
and a weak reference to it tells the pool.
"""

from __future__ import annotations

import itertools
import math
import operator
import os
import sys
import threading
import weakref
from bisect import insort
from collections import deque
from typing import TYPE_CHECKING

from numabind._bind import log_problems
from numabind._errors import BindError, UsageError
from numabind._home import own_home_node, own_state
from numabind._problems import Problem, problem
from numabind._slab import HUGE, Slab, make_slab, node_exists
from numabind.torch._cuda import register, settle, unregister

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    import torch

SLAB = 32 << 20
_LARGEST = 256 << 20  # slab of a pool whose tensors come and go
_ALIGN = 512  # as CUDA's own allocators do


class _Cut:
    """A slab and which of its bytes are free: [begin, end) ranges, in order, none touching."""

    def __init__(self, slab: Slab, pinned: bool) -> None:
        self.slab, self.pinned = slab, pinned
        self.view = memoryview(slab.memory)
        self.free = [(0, slab.size)]

    def take(self, size: int) -> int | None:
        """Where a block of `size` bytes begins, now taken; None if none is free."""
        for i, (begin, end) in enumerate(self.free):
            if end - begin >= size:
                self.free[i : i + 1] = [(begin + size, end)] if end - begin > size else []
                return begin
        return None

    def give(self, begin: int, size: int) -> None:
        """The block is free again."""
        insort(self.free, (begin, begin + size))
        whole: list[tuple[int, int]] = []
        for low, high in self.free:
            if whole and whole[-1][1] == low:
                whole[-1] = (whole[-1][0], high)
            else:
                whole.append((low, high))
        self.free = whole

    @property
    def idle(self) -> bool:
        """Whether no block of it is in use."""
        return self.free == [(0, self.slab.size)]


class Pool:
    """Host memory on one NUMA node, dealt out as tensors.

        pool = numabind.torch.Pool(node=1)
        tensor = pool.empty((1024, 1024), torch.bfloat16)

    Memory comes in slabs of 32 MiB (a larger tensor has one of its own), placed by mbind and
    touched at once, so it is on the node whatever thread asks or writes first. Where there is CUDA,
    the slabs are registered with it (cudaHostRegister): `tensor.is_pinned()`, and copies can be
    asynchronous. A block is free when the last tensor or view on it goes. CUDA may still be copying
    then: before such a block is used again the pool waits for the device, unless `waits` is False
    and you see to that yourself. `keep` bytes of slabs without blocks stay for the next tensor,
    further ones are unmapped; `trim()` unmaps those too. With `keep` None (for tensors that come
    and go at each step) they stay as long as the pool takes at most half as much again as was in
    use at once, and slabs grow with it, to 256 MiB.

    `node` None is the calling thread's: of its memory policy, else of its CPUs. `strict` raises
    BindError where memory is not on the node; otherwise that is a problem, logged once and kept in
    `problems`. Threads may share a pool. In a forked child, tensors of the parent are copies of its
    own, and the child's pool begins empty. UsageError for a node that this machine has not.
    """

    def __init__(
        self,
        node: int | None = None,
        *,
        strict: bool = False,
        keep: int | None = 256 << 20,
        waits: bool = True,
    ) -> None:
        if node is not None:
            check_node(node)
        if keep is not None and not (type(keep) is int and keep >= 0):
            raise UsageError(f"keep must be 0 or more bytes or None, not {keep!r:.40}")
        self._strict, self._keep, self._waits = strict, keep, waits
        self._said: dict[str, Problem] = {}
        self.node = node
        if node is None:
            self.node, why = _home(strict)
            self._say(why)
        self._start_afresh()
        _pools.add(self)

    def _start_afresh(self) -> None:
        self._lock = threading.Lock()
        self._cuts: list[_Cut] = []
        self._used = self._most_used = 0  # bytes
        self._busy = False  # whether CUDA may still use a block that is free
        # Blocks that were let go; a weak reference's callback may run anywhere, even inside the
        # lock, so it only puts them here.
        self._gone: deque[tuple[_Cut, int, int]] = deque()
        self._pid = os.getpid()

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What could not be had, each once."""
        return tuple(self._said.values())

    @property
    def mapped_bytes(self) -> int:
        """What its slabs take, in bytes."""
        return sum(cut.slab.size for cut in self._cuts)

    @property
    def used_bytes(self) -> int:
        """What tensors hold of that, in bytes."""
        return self._used

    def empty(self, shape: int | Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor:
        """A tensor of this shape on the pool's node, contents undefined; torch's default dtype.

        Raises UsageError for a shape or dtype that is none, BindError under strict if the memory is
        not on the node, MemoryError if there is none at all.
        """
        import torch

        kind = torch.get_default_dtype() if dtype is None else dtype
        if not isinstance(kind, torch.dtype):
            raise UsageError(f"dtype must be torch's (torch.float32, …), not {dtype!r:.60}")
        sizes = _sizes(shape)
        count = math.prod(sizes)
        if count == 0:
            return torch.empty(sizes, dtype=kind, device="cpu")
        return torch.frombuffer(self.block(count * kind.itemsize), dtype=kind, count=count).view(
            sizes
        )

    def block(self, size: int) -> memoryview:
        """`size` bytes or a little more, free again when the last reference to the view goes.

        Raises UsageError for a size below 1, and what `empty` does.
        """
        if size < 1:
            raise UsageError(f"a block is of 1 byte or more, not {size!r:.40}")
        size = -(-size // _ALIGN) * _ALIGN
        if size > sys.maxsize - HUGE:
            raise MemoryError(f"no {size >> 20} MiB of address space: more than there can be")
        with self._lock:
            self._collect()
            cut, begin = self._taken(size)
            self._used += size
            self._most_used = max(self._most_used, self._used)
            if cut.pinned and self._busy and self._waits:
                settle()
                self._busy = False
            view = cut.view[begin : begin + size]
            key = next(_numbers)
            _watched[key] = weakref.ref(view, _Release(self, cut, begin, size, key))
        return view

    def holds(self, address: int) -> bool:
        """Whether an address is in one of the pool's slabs."""
        return any(0 <= address - c.slab.address < c.slab.size for c in list(self._cuts))

    def trim(self) -> int:
        """Unmap the slabs without blocks; how many bytes that was."""
        with self._lock:
            self._collect()
            return self._drop(0)

    def _taken(self, size: int) -> tuple[_Cut, int]:
        for cut in self._cuts:
            begin = cut.take(size)
            if begin is not None:
                return cut, begin
        if self._keep is None:
            self._drop(self._spare(size))
        cut = self._new(self._slab_size(size))
        cut.free = [(size, cut.slab.size)] if cut.slab.size > size else []
        self._cuts.append(cut)
        return cut, 0

    def _slab_size(self, size: int) -> int:
        """Bytes of a new slab for a block: large ones leave fewer ends that nothing fits into."""
        usual = SLAB
        if self._keep is None:
            usual = min(_LARGEST, max(SLAB, self.mapped_bytes // 4))
        return usual if size <= usual // 2 else size

    def _spare(self, size: int = 0) -> int:
        """Bytes of idle slabs to keep, with `size` more in use. The lock is held."""
        if self._keep is not None:
            return self._keep
        most = max(self._most_used, self._used + size)
        taken = sum(cut.slab.size for cut in self._cuts if not cut.idle)
        return most + max(most // 2, SLAB) - taken - size

    def _new(self, size: int) -> _Cut:
        slab = make_slab(size, self.node, self._strict)
        self._say(slab.problems)
        why = register(slab.address, slab.size)
        if why is not None:
            self._say((problem("not-pinned", why),))
        return _Cut(slab, pinned=why is None)

    def _say(self, problems: tuple[Problem, ...]) -> None:
        fresh = tuple(p for p in problems if p.name not in self._said)
        self._said.update((p.name, p) for p in fresh)
        log_problems(fresh)

    def _collect(self) -> None:
        """Take back what was let go. The lock is held."""
        if not self._gone:
            return
        while self._gone:
            cut, begin, size = self._gone.popleft()
            cut.give(begin, size)
            self._used -= size
            self._busy = self._busy or cut.pinned
        self._drop(self._spare())

    def _drop(self, keep: int) -> int:
        """Unmap idle slabs beyond `keep` bytes, the largest first. The lock is held."""
        idle = sorted((c for c in self._cuts if c.idle), key=lambda cut: cut.slab.size)
        dropped = 0
        kept = 0
        for cut in idle:
            if kept + cut.slab.size <= keep:
                kept += cut.slab.size
                continue
            self._cuts.remove(cut)
            dropped += cut.slab.size
            if cut.pinned:
                settle()
                unregister(cut.slab.address)
            cut.view.release()
            cut.slab.memory.close()
        return dropped

    def _let_go(self, cut: _Cut, begin: int, size: int) -> None:
        self._gone.append((cut, begin, size))
        # Whoever holds the lock may have looked already; then it is taken back next time.
        if self._lock.acquire(blocking=False):
            try:
                self._collect()
            finally:
                self._lock.release()

    def _forked(self) -> None:
        """In a child: the slabs are the parent's to unmap, and so is their registration."""
        self._inherited = self._cuts
        self._start_afresh()

    def __del__(self) -> None:
        # Its tensors' weak references hold a pool, so no block of it is in use.
        if getattr(self, "_pid", None) == os.getpid():
            self.trim()


class _Release:
    """What a weak reference calls when the last tensor on a block goes."""

    def __init__(self, pool: Pool, cut: _Cut, begin: int, size: int, key: int) -> None:
        self.pool, self.block, self.key, self.pid = pool, (cut, begin, size), key, os.getpid()

    def __call__(self, _: object) -> None:
        _watched.pop(self.key, None)
        if self.pid == os.getpid():
            self.pool._let_go(*self.block)  # noqa: SLF001


def _sizes(shape: int | Sequence[int]) -> tuple[int, ...]:
    """A shape as whole numbers, which may be NumPy's or torch's."""
    given: tuple[Any, ...]
    try:
        given = tuple(shape)  # type: ignore[arg-type]  # one number is the other case
    except TypeError:
        given = (shape,)
    try:
        sizes = tuple(operator.index(size) for size in given)
    except TypeError:
        sizes = (-1,)
    if any(type(size) is bool for size in given) or not all(0 <= n <= sys.maxsize for n in sizes):
        raise UsageError(f"a shape is whole numbers from 0 up, not {shape!r:.60}")
    return sizes


# Of all blocks in use; in a child too, where the parent's are let go without more ado.
_watched: dict[int, weakref.ref[memoryview]] = {}
_numbers = itertools.count()
# Every pool, to be told of a fork; those that `empty_pinned` made; and which node a thread with
# this mask and this memory policy belongs to, or why to none.
_pools: weakref.WeakSet[Pool] = weakref.WeakSet()
_shared: dict[tuple[int | None, bool], Pool] = {}
_homes: dict[tuple[object, object], tuple[int | None, Problem | None]] = {}


def empty_pinned(
    shape: int | Sequence[int],
    dtype: torch.dtype | None = None,
    node: int | None = None,
    *,
    strict: bool = False,
) -> torch.Tensor:
    """A host tensor on the worker's NUMA node, pinned where CUDA is there; contents undefined.

    Like torch.empty(…, pin_memory=True), but on `node` (by default the calling thread's: of its
    memory policy, else of its CPUs) whatever thread allocates or touches first. It comes from a
    Pool that this process keeps for each node. Without CUDA it is on the node but not pinned
    (`not-pinned`); what the node has no memory for comes from elsewhere (`slab-elsewhere`). Both
    are logged once; the latter is a BindError under `strict`. UsageError for a shape or node that
    is none.
    """
    return shared_pool(node, strict).empty(shape, dtype)


def shared_pool(node: int | None = None, strict: bool = False) -> Pool:
    """The process's own pool for a node; without one, for the calling thread's."""
    if node is None:
        node, _ = _home(strict)
    pool = _shared.get((node, strict))
    if pool is None:
        # Two threads may both make one: the first stays, and the other has no slabs yet.
        pool = _shared.setdefault((node, strict), Pool(node, strict=strict))
    return pool


def check_node(node: int) -> None:
    """UsageError if this machine has no NUMA node of that number."""
    if not (type(node) is int and node >= 0):
        raise UsageError(f"node must be a NUMA node's number or None, not {node!r:.40}")
    if not node_exists(node):
        raise UsageError(f"this machine has no NUMA node {node}; see `numabind show`")


def _home(strict: bool) -> tuple[int | None, tuple[Problem, ...]]:
    """The calling thread's node; None, and why, if it has none. BindError under strict."""
    now = own_state()
    if now not in _homes:
        _homes[now] = own_home_node(os.environ)
    node, why = _homes[now]
    said = (why,) if why else ()
    if said and strict:
        raise BindError(said)
    return node, said


def _after_fork() -> None:
    for pool in list(_pools):
        pool._forked()  # noqa: SLF001


os.register_at_fork(after_in_child=_after_fork)
