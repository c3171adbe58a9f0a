"""Where a process's pages are: /proc/PID/numa_maps, and moving those that are elsewhere.

Source: Documentation/filesystems/proc.rst, "numa_maps"; fs/proc/task_mmu.c. A line reads

    7f0e40000000 prefer (many):1 anon=16384 dirty=16384 active=0 N1=16384 kernelpagesize_kB=4

Traps: the policy's name may hold a space ("prefer (many):1", "weighted interleave:0-1") or an
equals sign ("bind=static:0"); counts are in units of kernelpagesize_kB.
"""

from __future__ import annotations

import os

from numabind._errors import MachineError
from numabind._record import record
from numabind._sysfs import Root

TYPE_CHECKING = False
if TYPE_CHECKING:
    from array import array

_CHUNK = 1 << 16  # pages a call: 0.5 MiB of addresses
_UNTOUCHED = (-2, -14)  # ENOENT, EFAULT
_ENOMEM = 12


@record
class Mapping:
    """One mapping: where it starts, its policy, its pages on each node, and the page size in bytes.

    `file` is the backing file as the kernel escapes it (a space is \\040), "heap", "stack" or None;
    `anonymous` counts pages that belong to this process alone, as the kernel's anon= does; `huge`
    says that the pages are hugetlbfs's.
    """

    start: int
    policy: str
    nodes: dict[int, int]
    page_bytes: int = 4096
    file: str | None = None
    anonymous: int = 0
    huge: bool = False


def parse_numa_maps(text: str) -> tuple[Mapping, ...]:
    """Read the text of a numa_maps file. ValueError, naming the line, if it is not one."""
    # Only these: a file's name may hold whatever else Python takes for the end of a line or a word.
    return tuple(_mapping(line) for line in text.split("\n") if line.strip())


def _mapping(line: str) -> Mapping:
    words = [word for word in line.split(" ") if word]
    policy = words[1] if len(words) > 1 else ""
    rest = words[2:]
    if rest and (policy, rest[0].partition(":")[0]) in (
        ("prefer", "(many)"),
        ("weighted", "interleave"),
    ):
        policy, rest = f"{policy} {rest[0]}", rest[1:]
    nodes: dict[int, int] = {}
    size, file, anonymous = 4096, None, 0
    try:
        start = int(words[0], 16)
        for word in rest:
            key, equals, value = word.partition("=")
            if key == "file":
                file = value
            elif word in ("heap", "stack"):
                file = word
            elif equals and key == "anon":
                anonymous = _count(value)
            elif equals and key == "kernelpagesize_kB":
                size = _count(value) * 1024
            elif equals and key[:1] == "N" and key[1:].isdigit():
                nodes[int(key[1:])] = _count(value)
    except ValueError:
        raise ValueError(f"not a line of numa_maps: {line!r:.80}") from None
    if not policy:
        raise ValueError(f"not a line of numa_maps: {line!r:.80}")
    return Mapping(start, policy, nodes, size, file, anonymous, "huge" in rest)


def _count(text: str) -> int:
    """A number of pages as the kernel prints one, so never negative. ValueError otherwise."""
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ValueError(text)
    return int(text)


def read_numa_maps(root: Root, pid: int | str = "self") -> tuple[Mapping, ...] | None:
    """The mappings of a process; None for a kernel without NUMA or a process that is gone.

    MachineError where the file may not be read (another user's process needs CAP_SYS_PTRACE) or is
    not understood.
    """
    path = f"{root.path}proc/{pid}/numa_maps"
    try:
        with open(path, encoding="utf-8", errors="replace", newline="\n") as file:
            return parse_numa_maps(file.read())
    except (FileNotFoundError, ProcessLookupError):
        return None
    except OSError as error:
        raise MachineError(path, f"can't be read: {error.strerror}") from error
    except ValueError as error:
        raise MachineError(path, str(error)) from None


def bytes_by_node(mappings: tuple[Mapping, ...], private: bool = False) -> dict[int, int]:
    """Resident bytes on each node; with `private`, of the mappings that hold anonymous pages."""
    total: dict[int, int] = {}
    for mapping in mappings:
        if private and not mapping.anonymous:
            continue
        for node, pages in mapping.nodes.items():
            total[node] = total.get(node, 0) + pages * mapping.page_bytes
    return dict(sorted(total.items()))


@record
class Moved:
    """What moving did, in pages: moved, left behind, and those of the latter that are private."""

    moved: int = 0
    left: int = 0
    left_private: int = 0


def move_own_pages(nodes: frozenset[int], target: int) -> Moved:
    """Move this process's pages that are on none of `nodes` to the node `target`.

    Only pages that no other process maps are moved. OSError if the kernel refuses move_pages.
    """
    from array import array

    from numabind import _syscalls

    ends = _mapping_ends()
    moved = left = left_private = 0
    for mapping in read_numa_maps(Root("/")) or ():
        end = ends.get(mapping.start)
        if end is None or set(mapping.nodes) <= nodes:
            continue
        step = mapping.page_bytes
        for low in range(mapping.start, end, _CHUNK * step):
            pages = array("Q", range(low, min(end, low + _CHUNK * step), step))
            where = _syscalls.page_nodes(pages)
            away = array(
                "Q", (p for p, n in zip(pages, where, strict=True) if n >= 0 and n not in nodes)
            )
            if not away:
                continue
            now = _moved_to(away, target)
            stayed = sum(1 for n in now if n not in nodes and n not in _UNTOUCHED)
            left += stayed
            left_private += stayed if mapping.anonymous else 0
            moved += sum(1 for n in now if n in nodes)
    return Moved(moved, left, left_private)


def _moved_to(pages: array[int], target: int) -> list[int]:
    """Move pages; where each is now, or a negative errno."""
    from numabind import _syscalls

    try:
        return _syscalls.move_pages(pages, target)
    except OSError as error:
        # A node that fills up ends the call half-way (ENOMEM), and its answers say nothing.
        if error.errno != _ENOMEM:
            raise
        return _syscalls.page_nodes(pages)


def _mapping_ends() -> dict[int, int]:
    ends = {}
    with open("/proc/self/maps", encoding="utf-8", errors="replace", newline="\n") as file:
        for line in file:
            low, _, high = line.partition(" ")[0].partition("-")
            ends[int(low, 16)] = int(high, 16)
    return ends


def resident_bytes() -> int | None:
    """Resident memory of this process; None where /proc does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
