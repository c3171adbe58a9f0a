"""Settings of the kernel, and what its memory looks like now."""

from __future__ import annotations

from numabind._cpulist import format_list
from numabind._doctor.scene import Check, Scene, whole
from numabind._finding import Finding
from numabind._hazards import GIB, LOW, read_free
from numabind._sysfs import CPU, NODE

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


class NodesNotReal(Check):
    """numa=off and numa=fake."""

    name = "nodes-not-real"
    about = (
        "The kernel was told at boot to ignore the nodes that the firmware has (numa=off, "
        "numa=noacpi), so nothing can be near or far, or to make some up (numa=fake=N), which say "
        "nothing of what is near. Source: Documentation/arch/x86/x86_64/boot-options.rst."
    )

    def look(self, scene: Scene) -> Iterable[Finding]:
        """A warning on a machine with GPUs; a note for nodes of a single package ignored."""
        path = "proc/cmdline"
        packages = {cpu.package for cpu in scene.machine.cpus}
        for word in (scene.text(path) or "").split():
            ignored = word in ("numa=off", "numa=noacpi")
            if not scene.gpus or not (ignored or word.startswith("numa=fake=")):
                continue
            yield self.finding(
                "note" if ignored and len(packages) < 2 else "warning",
                "the kernel ignores the NUMA nodes of this machine" if ignored else
                "the NUMA nodes are made up by the kernel",
                f"/{path}: {word}",
                f"take {word} off the kernel's command line (/etc/default/grub) and reboot",
            )  # fmt: skip


class Governor(Check):
    """The CPUs' frequency."""

    name = "cpus-kept-slow"
    about = (
        "The cpufreq governor powersave keeps CPUs near a GPU at their lowest frequency: CPU "
        "optimizers, data loaders and the threads that launch kernels are slow. Under the drivers "
        "intel_pstate and amd-pstate-epp that name means something else, and the preference "
        "`power` is the one that costs. Source: Documentation/admin-guide/pm/cpufreq.rst, "
        "intel_pstate.rst."
    )

    def look(self, scene: Scene) -> Iterable[Finding]:
        """A warning for powersave, a note for the preference power; each once."""
        near = scene.near_cpus
        slow: dict[tuple[str, str], tuple[str, set[int]]] = {}
        for policy in scene.names(f"{CPU}/cpufreq"):
            base = f"{CPU}/cpufreq/{policy}"
            words = (scene.text(f"{base}/related_cpus") or "").split()
            cpus = {cpu for cpu in map(whole, words) if cpu in near}
            how = self.slow(scene, base)
            if cpus and how is not None:
                slow.setdefault(how, (base, set()))[1].update(cpus)
        for (name, value), (base, cpus) in slow.items():
            lowest = name == "scaling_governor"
            yield self.finding(
                "warning" if lowest else "note",
                f"CPUs {format_list(frozenset(cpus))}, near a GPU, "
                + ("stay at their lowest frequency" if lowest else "prefer saving power to speed"),
                f"/{base}/{name} = {value}",
                f"echo performance > {name} of each, there (or cpupower frequency-set -g "
                "performance)",
            )

    def slow(self, scene: Scene, base: str) -> tuple[str, str] | None:
        """The file that makes the CPUs of a policy slow, and what is in it; None if none does."""
        if scene.text(f"{base}/scaling_driver") in ("intel_pstate", "amd-pstate-epp"):
            name, costs = "energy_performance_preference", "power"
        else:
            name, costs = "scaling_governor", "powersave"
        return (name, costs) if scene.text(f"{base}/{name}") == costs else None


class Swap(Check):
    """Memory that is bound to a node, and swap."""

    name = "bound-memory-swaps"
    about = (
        "Memory policy `bind` allows a node only. When that is full and there is swap, the kernel "
        "writes pages out while other nodes have memory free. Source: "
        "Documentation/admin-guide/mm/numa_memory_policy.rst; sysctl/vm.rst, swappiness."
    )

    def look(self, scene: Scene) -> Iterable[Finding]:
        """A warning for the largest process under `bind`, or for workers that will be."""
        lines = (scene.text("proc/swaps") or "").splitlines()[1:]
        swaps = [line.split()[0] for line in lines if line.strip()]
        swappiness = scene.number("proc/sys/vm/swappiness")
        if not swaps or swappiness == 0 or not scene.several_nodes:
            return
        evidence = f"/proc/swaps: {swaps[0]}"
        evidence += f"; /proc/sys/vm/swappiness = {swappiness}"
        remedy = "--memory prefer; or swapoff -a, or memory.swap.max = 0 in the workers' cgroup"
        bound = [each for each in scene.large_processes() if each.policy.startswith("bind:")]
        for each in [each for each in bound if self.swaps(scene, each.pid)][:1]:
            nodes = each.policy.removeprefix("bind:")
            cause = f"{each.text} may be on node {nodes} only, and is swapped out when that is full"
            yield self.finding("warning", cause, evidence, remedy)
            return
        if scene.environ.get("NUMABIND_MEMORY", "").strip() == "bind" and self.swaps(scene, "self"):
            cause = "workers get memory of their node only, and are swapped out when that is full"
            yield self.finding("warning", cause, f"NUMABIND_MEMORY = bind; {evidence}", remedy)

    def swaps(self, scene: Scene, process: str) -> bool:
        """Whether a process's cgroup lets it swap."""
        limits = (
            scene.number(f"{directory}/memory.swap.max")
            for directory, version2 in scene.cgroups("memory", process)
            if version2
        )
        return 0 not in limits


CHECKS: tuple[Check, ...] = (
    NumaBalancing(),
    ZoneReclaim(),
    TransparentHugePages(),
    NodeMemory(),
    HugePagePools(),
    NodesNotReal(),
    Governor(),
    Swap(),
)
