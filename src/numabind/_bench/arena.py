"""Memory that is on one node, and shown to be there.

The policy is "preferred", not "bind": on a full node that makes a refused result, not a killed
process. Where the kernel refuses policies (Docker's default profile), first touch by a CPU of the
node does the same. Either way the pages are looked up afterwards: what is not where it was meant to
be gives no figure.
"""

from __future__ import annotations

import mmap
import os
from array import array

from numabind import _syscalls
from numabind._cpulist import format_list
from numabind._problems import Problem, problem

_PAGE = os.sysconf("SC_PAGE_SIZE")
# Looking up 64 Ki pages takes some 5 ms; larger memory is looked up at as many even steps.
_MOST = 1 << 16


class Misplaced(Exception):  # noqa: N818 (its name is what it tells)
    """Memory is not where it was meant to be, or that can't be told; `problem` says which."""

    def __init__(self, said: Problem) -> None:
        self.problem = said
        super().__init__(said.text)


class Arena:
    """Private anonymous memory, touched by the calling thread.

    `node` is where it is meant to be; None takes the process's own policy, wherever that leads.
    Give the calling thread CPUs of the node first. `check` compares with what the kernel says.
    """

    def __init__(self, size: int, node: int | None, numa: bool = True) -> None:
        self.size = max(_PAGE, size // _PAGE * _PAGE)
        self.node = node
        self.numa = numa
        self.map = mmap.mmap(-1, self.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.view = memoryview(self.map)
        self.address = _syscalls.address_of(self.map)
        if node is None or not numa:
            self.touch()
            return
        before = None
        try:
            before = _syscalls.get_raw_policy()
            _syscalls.set_memory_policy("preferred", frozenset({node}))
        except OSError:
            before = None  # first touch must do, and `check` tells whether it did
        try:
            self.touch()
        finally:
            if before is not None:
                _syscalls.set_raw_policy(*before)

    def touch(self) -> None:
        """Write to every page."""
        self.map[::_PAGE] = bytes(self.size // _PAGE)

    def nodes(self) -> dict[int, int]:
        """The pages that were looked up, by node. OSError if the kernel refuses to tell."""
        step = max(1, self.size // _PAGE // _MOST) * _PAGE
        pages = array("Q", range(self.address, self.address + self.size, step))
        found: dict[int, int] = {}
        for node in _syscalls.page_nodes(pages):
            found[node] = found.get(node, 0) + 1
        return found

    def check(self) -> None:
        """Raise Misplaced unless every page that is looked up is on the node."""
        if not self.numa or self.node is None:
            return
        try:
            found = self.nodes()
        except OSError as error:
            cause = f"move_pages: {error.strerror}, so where the memory is can't be told"
            raise Misplaced(problem("pages-unverified", cause)) from error
        away = {node: count for node, count in found.items() if node != self.node}
        if away:
            where = format_list({node for node in away if node >= 0}) or "no node"
            cause = (
                f"{sum(away.values())} of {sum(found.values())} pages meant for node {self.node} "
                f"are on {where}"
            )
            raise Misplaced(problem("pages-misplaced", cause))


def chain(count: int, stride: int) -> array[int]:
    """A closed chain through `count` places (a power of two), `stride` longs apart, in an array.

    Each place holds the index of the next. The order is that of a linear congruential
    generator of full period (Hull and Dobell: odd increment, multiplier 1 modulo 4), which no
    prefetcher follows.
    """
    places = array("q", bytes(8)) * (count * stride)
    at = 0
    for _ in range(count):
        after = (at * 0x5851F42D4C957F2D + 0x14057B7EF767814F) & (count - 1)
        places[at * stride] = after * stride
        at = after
    return places
