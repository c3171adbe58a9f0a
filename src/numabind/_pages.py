"""Where the pages of any process are: all of them by numa_maps, or a sample by move_pages.

numa_maps walks every page table of the process, some 50 ns a page. The sample looks up a few
thousand addresses, drawn one from each of as many equal parts of what is mapped, so it takes the
same time for 1 GiB and for 1 TiB; the shares it finds are scaled to what /proc/PID/status counts.

Neither sees memory that a driver pinned and mapped itself (cudaHostAlloc): the kernel keeps no node
for such mappings. Source: move_pages(2), proc_pid_numa_maps(5), fs/proc/task_mmu.c.
"""

from __future__ import annotations

import os
from bisect import bisect_left

from numabind import _proc
from numabind._cpulist import format_list
from numabind._process import Pages
from numabind._record import record, replace
from numabind._residency import Mapping, read_numa_maps
from numabind._sysfs import Root

# Above this much resident memory a sample is taken by default.
SAMPLE_ABOVE = 4 << 30
DRAWS = 2048
_ENOUGH = 1500  # resident pages; ±2.5% at worst
_ROUNDS = 32
_TOO_FEW = 100
_PAGE = os.sysconf("SC_PAGE_SIZE")
# What the kernel maps without pages of its own.
_PSEUDO = ("[vvar", "[vdso]", "[vsyscall]")
_SHM = "/dev/shm/"  # noqa: S108 (a name to compare with)
_SHARED = (_SHM, "/dev/zero", "/SYSV", "/memfd:", "/anon_hugepage")
# hugetlbfs says its page size there; NFS goes up to 1 MiB.
_HUGE_BLOCK = 2 << 20


@record
class Range:
    """A mapping of /proc/PID/maps: addresses from `start` to `end`, and its kind of KINDS."""

    start: int
    end: int
    kind: str


def count_all(pid: int) -> tuple[Pages, str] | None:
    """Count every page by numa_maps; and the policy of the process's first thread.

    None where there is no numa_maps (a kernel without NUMA) or the process is gone; MachineError
    where it may not be read.
    """
    mappings = read_numa_maps(Root("/"), pid)
    if not mappings:
        return None
    fields = _proc.status(pid)
    locked = _locked(pid) if _proc.kibibytes(fields, "VmLck") else frozenset[int]()
    by_node: dict[int, dict[str, int]] = {}
    for mapping in mappings:
        kind = _kind(mapping, locked)
        for node, pages in mapping.nodes.items():
            kinds = by_node.setdefault(node, {})
            kinds[kind] = kinds.get(kind, 0) + pages * mapping.page_bytes
    return replace(Pages("numa_maps", by_node), **_totals(fields)), _own_policy(mappings)


def _totals(fields: dict[str, str]) -> dict[str, int]:
    return {
        "pinned": _proc.kibibytes(fields, "VmPin"),
        "swapped": _proc.kibibytes(fields, "VmSwap"),
    }


def _own_policy(mappings: tuple[Mapping, ...]) -> str:
    """The policy that most mappings print: those without one of their own print the thread's."""
    seen: dict[str, int] = {}
    for mapping in mappings:
        seen[mapping.policy] = seen.get(mapping.policy, 0) + 1
    return max(seen, key=lambda policy: seen[policy])


def _kind(mapping: Mapping, locked: frozenset[int]) -> str:
    if mapping.huge:
        return "huge"
    if mapping.start in locked:
        return "locked"
    file = mapping.file
    if file is None or file in ("heap", "stack"):
        return "anonymous"
    return "shared" if file.startswith(_SHARED) else "file"


def _locked(pid: int) -> frozenset[int]:
    """The starts of the mappings that mlock holds, by the flag "lo" in smaps."""
    found = set()
    start = 0
    try:
        with open(f"/proc/{pid}/smaps", "rb") as file:
            for line in file:
                if line.startswith(b"VmFlags:"):
                    if b" lo" in line:
                        found.add(start)
                elif b"-" in (word := line.split(b" ", 1)[0]) and not word.endswith(b":"):
                    start = int(word.partition(b"-")[0], 16)
    except (OSError, ValueError):
        return frozenset()
    return frozenset(found)


def first_policy(pid: int) -> str | None:
    """The policy in the first line of numa_maps, read without walking the rest; None without.

    The kernel walks mapping after mapping until it has as many bytes as were asked for, so few are.
    """
    from numabind._residency import parse_numa_maps

    try:
        handle = os.open(f"/proc/{pid}/numa_maps", os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(handle, 64).decode("utf-8", "replace")
        finally:
            os.close(handle)
        # What is cut off comes after the policy, which is at most the second and third word.
        words = text.partition("\n")[0].split(" ")[:3]
        return parse_numa_maps(" ".join(words))[0].policy if len(words) > 1 else None
    except (OSError, ValueError):
        return None


def count_sample(pid: int, draws: int = DRAWS) -> Pages | None:
    """Look up a sample of the pages; None if it says too little, or the process is gone.

    PermissionError where the process is another user's; OSError where the kernel refuses
    move_pages.
    """
    fields = _proc.status(pid)
    ranges = read_ranges(pid, huge=_proc.kibibytes(fields, "HugetlbPages") > 0)
    small = [r for r in ranges if r.kind != "huge"]
    large = [r for r in ranges if r.kind == "huge"]
    by_node: dict[int, dict[str, int]] = {}
    asked = 0
    in_memory = []
    for population, field in ((large, "HugetlbPages"), (small, "VmRSS")):
        in_memory.append(0)
        total = _proc.kibibytes(fields, field)
        if not total:
            continue
        found, count = _look_up(pid, population, draws)
        seen = sum(found.values())
        asked += count
        if seen < _TOO_FEW:
            return None
        for (node, kind), hits in found.items():
            by_node.setdefault(node, {})[kind] = round(total * hits / seen)
            in_memory[-1] += hits if kind != "file" else 0
    if not by_node:
        return None
    pages = Pages("sample", by_node, asked=asked, found=(in_memory[0], in_memory[1]))
    return replace(pages, **_totals(fields))


def _look_up(pid: int, ranges: list[Range], draws: int) -> tuple[dict[tuple[int, str], int], int]:
    """How many of the sampled pages were resident, by node and kind; and how many were asked."""
    from numabind import _syscalls

    found: dict[tuple[int, str], int] = {}
    asked = 0
    for _ in range(_ROUNDS):
        pages, spans = drawn(ranges, draws, os.urandom(4 * draws))
        if not pages:
            break
        asked += len(pages)
        nodes = _syscalls.page_nodes(pages, pid)
        start = 0
        for kind, end in spans:
            here, start = nodes[start:end], end
            for node in set(here):
                if node >= 0:
                    found[node, kind] = found.get((node, kind), 0) + here.count(node)
        if sum(found.values()) >= _ENOUGH:
            break
    return found, asked


def drawn(ranges: list[Range], draws: int, noise: bytes) -> tuple[list[int], list[tuple[str, int]]]:
    """Addresses, one at random from each of `draws` equal parts; and their kinds. Pure.

    `noise` is 4 random bytes for each draw. Equal parts with a random place in each: no pattern of
    the pages (interleaved, huge) can fall in step with it, and no region is missed. Addresses
    ascend; the kinds come as (kind, how many draws are done after it).
    """
    total = sum((r.end - r.start) // _PAGE for r in ranges)
    pages: list[int] = []
    spans: list[tuple[str, int]] = []
    if not total:
        return pages, spans
    random = memoryview(noise).cast("I")
    # In whole numbers: a float of 2^35 pages would round the last draw out of its range.
    places = [((i << 32) + random[i]) * total // (draws << 32) for i in range(draws)]
    before = start = 0
    for mapping in ranges:
        after = before + (mapping.end - mapping.start) // _PAGE
        end = bisect_left(places, after, start)
        if end > start:
            base = mapping.start - before * _PAGE
            pages += [base + place * _PAGE for place in places[start:end]]
            spans.append((mapping.kind, end))
        before, start = after, end
    return pages, spans


def worth(pages: Pages, nodes: frozenset[int]) -> float:
    """How many draws from one population say as much as a sample says of the share on `nodes`.

    hugetlbfs's mappings and the others are sampled apart, each with a weight of its own that the
    numbers of draws don't have. Less of: draws that find the same share in both, and the variance
    of the ratio as it was found (Taylor linearization: Cochran, Sampling Techniques, 6.10). Pure.
    """
    parts = []
    for found, huge in zip(pages.found or (), (True, False), strict=False):
        every = memory = near = 0
        for node, kinds in pages.by_node.items():
            for kind, number in kinds.items():
                if (kind == "huge") == huge:
                    every += number
                    memory += number if kind != "file" else 0
                    near += number if kind != "file" and node in nodes else 0
        if found and memory:
            parts.append((found, memory, near / memory, memory / every))
    total = sum(memory for _, memory, _, _ in parts)
    share = sum(memory * part for _, memory, part, _ in parts) / total
    even = variance = 0.0
    for found, memory, part, counted in parts:
        scale = (memory / total) ** 2 / found
        even += scale
        spread = part * (1 - share) ** 2 + (1 - part) * share**2 - counted * (part - share) ** 2
        variance += scale * spread
    return min(1 / even, share * (1 - share) / variance) if variance > 0 else 1 / even


def interval(share: float, seen: float) -> tuple[float, float]:
    """Wilson's 95% interval of a share that was found in `seen` draws."""
    z = 1.959964
    middle = share + z * z / (2 * seen)
    half = z * (share * (1 - share) / seen + z * z / (4 * seen * seen)) ** 0.5
    scale = 1 + z * z / seen
    # Rounding must not leave the share itself outside.
    low, high = (middle - half) / scale, (middle + half) / scale
    return max(0.0, min(low, share)), min(1.0, max(high, share))


def read_ranges(pid: int, huge: bool) -> list[Range]:
    """The mappings that may hold pages; [] if the process is gone or another user's.

    `huge` says that some are hugetlbfs's, which the names alone don't tell.
    """
    found = []
    try:
        maps = f"/proc/{pid}/maps"
        with open(maps, encoding="utf-8", errors="replace", newline="\n") as file:
            for line in file:
                words = line.split(maxsplit=5)
                path = words[5].rstrip("\n") if len(words) > 5 else ""
                # PROT_NONE is address space kept for later: CUDA and allocators keep terabytes.
                if words[1].startswith("---") or path.startswith(_PSEUDO):
                    continue
                if path.startswith("/dev/") and not path.startswith((*_SHARED, "/dev/hugepages")):
                    continue
                low, _, high = words[0].partition("-")
                kind = _kind_of_path(path)
                if huge and kind in ("shared", "file") and _is_huge(pid, words[0], path):
                    kind = "huge"
                found.append(Range(int(low, 16), int(high, 16), kind))
    except (OSError, ValueError, IndexError):
        return []
    return found


def _kind_of_path(path: str) -> str:
    if not path or path.startswith("["):
        return "anonymous"
    return "shared" if path.startswith(_SHARED) else "file"


def _is_huge(pid: int, addresses: str, path: str) -> bool:
    if path.startswith("/anon_hugepage"):
        return True
    try:
        return os.statvfs(f"/proc/{pid}/map_files/{addresses}").f_bsize >= _HUGE_BLOCK
    except OSError:
        return path.startswith("/dev/hugepages")


def describe(nodes: frozenset[int]) -> str:
    """Nodes as a person says them."""
    return f"node {format_list(nodes)}" if len(nodes) == 1 else f"nodes {format_list(nodes)}"
