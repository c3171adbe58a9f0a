"""Settings of the kernel, and what its memory looks like now."""

from __future__ import annotations

from numabind._cpulist import format_list
from numabind._doctor.scene import Check, Scene
from numabind._finding import Finding
from numabind._hazards import GIB, LOW, read_free
from numabind._sysfs import NODE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


class NumaBalancing(Check):
    """kernel.numa_balancing."""

    name = "numa-balancing"
    about = (
        "kernel.numa_balancing unmaps pages now and then to see who touches them, and moves them "
        "there. Threads that are bound gain nothing; offload buffers that are not pinned pay page"
        " faults, and follow whichever thread copied last. A memory policy of its own (numabind's "
        "prefer and bind) exempts a thread. Source: Documentation/admin-guide/sysctl/kernel.rst; "
        "vma_policy_mof in mm/mempolicy.c."
    )

    def look(self, scene: Scene) -> Iterable[Finding]:
        """A warning where it is on and there are GPUs, a note where there are none."""
        path = "proc/sys/kernel/numa_balancing"
        value = scene.number(path)
        if value and scene.several_nodes:
            # A policy of its own (prefer, bind) exempts a process: vma_policy_mof in mempolicy.c.
            moved = [each for each in scene.large_processes() if each.policy == "default"]
            yield self.finding(
                "warning" if scene.gpus else "note",
                "the kernel moves pages that are not pinned after the threads that touch them"
                + (f": {moved[0].text}, say" if moved else ""),
                f"/{path} = {value}",
                "sysctl kernel.numa_balancing=0 (and in /etc/sysctl.d to keep it so)",
            )


class ZoneReclaim(Check):
    """vm.zone_reclaim_mode."""

    name = "zone-reclaim"
    about = (
        "With vm.zone_reclaim_mode a node that is full throws out its page cache, and may write "
        "and swap, before memory of another node is used: large allocations stall. Source: "
        "Documentation/admin-guide/sysctl/vm.rst."
    )

    def look(self, scene: Scene) -> Iterable[Finding]:
        """A warning where it is on."""
        path = "proc/sys/vm/zone_reclaim_mode"
        value = scene.number(path)
        if value and scene.several_nodes:
            yield self.finding(
                "warning",
                "an allocation on a full node first reclaims that node's page cache",
                f"/{path} = {value}",
                "sysctl vm.zone_reclaim_mode=0",
            )


class TransparentHugePages(Check):
    """Transparent huge pages."""

    name = "no-huge-pages"
    about = (
        "Without transparent huge pages, host buffers of many GiB are made of 4 KiB pages: "
        "touching and registering them takes long, and CPU optimizers miss the TLB. `madvise` is "
        "enough for allocators that ask. Source: Documentation/admin-guide/mm/transhuge.rst."
    )

    def look(self, scene: Scene) -> Iterable[Finding]:
        """A note where they are off on a machine with GPUs."""
        path = "sys/kernel/mm/transparent_hugepage/enabled"
        text = scene.text(path) or ""
        if "[never]" in text and scene.gpus:
            yield self.finding(
                "note",
                "large host buffers are made of 4 KiB pages",
                f"/{path} = {text}",
                f"echo madvise > /{path}",
            )


class NodeMemory(Check):
    """Free memory of the GPUs' nodes."""

    name = "node-memory-low"
    about = (
        "A GPU's node that is nearly full: memory policy `prefer` then spills to other nodes, and"
        " `bind` has the kernel kill the worker. Free is MemFree and the page cache that is not "
        "in use (Inactive(file)), by the node's meminfo."
    )

    def look(self, scene: Scene) -> Iterable[Finding]:
        """A warning for each node of a GPU that has less than a twentieth free."""
        if not scene.several_nodes:
            return
        free = {node.id: read_free(scene.root, node.id) for node in scene.machine.nodes}
        for node in scene.nodes_of_gpus:
            left, total = free.get(node) or (None, None)
            if left is None or not total or left >= LOW * total:
                continue
            others = [(have[0], other) for other, have in free.items() if have and other != node]
            most = max(others, default=None)
            more = f"; node {most[1]} has {most[0] / GIB:.1f} GiB" if most else ""
            yield self.finding(
                "warning",
                f"node {node}, where a GPU is, has {left / GIB:.1f} of {total / GIB:.1f} GiB "
                f"free{more}",
                f"/{NODE}/node{node}/meminfo",
                "see whose it is (numastat -p NAME, numabind status PID); echo 1 > "
                "/proc/sys/vm/drop_caches gives up page cache",
            )


class HugePagePools(Check):
    """Where reserved huge pages are."""

    name = "huge-pages-elsewhere"
    about = (
        "Huge pages that were reserved (hugetlbfs) on nodes without a GPU only: who asks for them"
        " near a GPU gets them far from it, or none. Source: "
        "Documentation/admin-guide/mm/hugetlbpage.rst."
    )

    def look(self, scene: Scene) -> Iterable[Finding]:
        """A warning for each page size whose pool misses a node of a GPU."""
        if not scene.matters:
            return
        pools: dict[str, dict[int, int]] = {}
        for node in scene.machine.nodes:
            for size in scene.names(f"{NODE}/node{node.id}/hugepages"):
                count = scene.number(f"{NODE}/node{node.id}/hugepages/{size}/nr_hugepages")
                if count is not None:
                    pools.setdefault(size, {})[node.id] = count
        for size, counts in sorted(pools.items()):
            lacking = [node for node in scene.nodes_of_gpus if counts.get(node) == 0]
            having = [node for node, count in counts.items() if count]
            if not lacking or not having:
                continue
            where = f"/{NODE}/node{lacking[0]}/hugepages/{size}/nr_hugepages"
            yield self.finding(
                "warning",
                f"{size} are reserved on node {format_list(frozenset(having))}, none on node "
                f"{format_list(frozenset(lacking))}, where GPUs are",
                f"{where} = 0",
                f"echo N > {where}",
            )


CHECKS: tuple[Check, ...] = (
    NumaBalancing(),
    ZoneReclaim(),
    TransparentHugePages(),
    NodeMemory(),
    HugePagePools(),
)
