"""What this process may use, and what keeps it from more."""

from __future__ import annotations

from numabind._cpulist import format_list
from numabind._doctor.scene import Check, Scene, whole
from numabind._finding import Finding
from numabind._inherited import widest
from numabind._sysfs import CPU, NODE, parse_status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


class CpusNotAllowed(Check):
    """CPUs near a GPU that this process may not use."""

    name = "cpus-not-allowed"
    about = (
        "A scheduler, container or taskset gave this process no CPU near a GPU that it can see, "
        "so that GPU's worker is far from it whatever it does; or only some of them. Source: "
        "cpuset(7)."
    )

    def look(self, scene: Scene) -> Iterable[Finding]:
        """Serious for a node of a GPU with none of its CPUs, a note where some are missing."""
        allowed = scene.machine.allowed.cpus
        for node in scene.machine.nodes:
            missing = node.cpus - allowed
            if node.id not in scene.nodes_of_gpus or not missing:
                continue
            none = not node.cpus & allowed
            yield self.finding(
                "serious" if none else "note",
                f"{'none' if none else 'only some'} of the CPUs of node {node.id}, where a GPU is, "
                f"may be used: {format_list(missing)} are missing",
                f"/proc/self/status: Cpus_allowed_list = {format_list(allowed)}",
                "ask the scheduler for CPUs near the GPU (whole nodes, or --gres-flags="
                "enforce-binding, or Kubernetes' topology manager)",
            )


class MemoryNotAllowed(Check):
    """Memory near a GPU that this process may not use."""

    name = "memory-not-allowed"
    about = "A cpuset keeps this process from the memory of a GPU's node. Source: cpuset(7)."

    def look(self, scene: Scene) -> Iterable[Finding]:
        """Serious for each such node."""
        allowed = scene.machine.allowed.nodes
        for node in scene.machine.nodes:
            if node.id in scene.nodes_of_gpus and node.memory_bytes != 0 and node.id not in allowed:
                yield self.finding(
                    "serious",
                    f"memory of node {node.id}, where a GPU is, may not be used",
                    f"/proc/self/status: Mems_allowed_list = {format_list(allowed)}",
                    "widen cpuset.mems of this cgroup (docker --cpuset-mems, ConstrainRAMSpace)",
                )


class InheritedMask(Check):
    """A mask that is narrower than the cgroup's."""

    name = "inherited-mask"
    about = (
        "Something (srun --cpu-bind, mpirun, taskset, an OpenMP runtime) bound this process to "
        "fewer CPUs than its cgroup allows. numabind plans within that unless told "
        "--ignore-inherited. Source: sched_setaffinity(2)."
    )

    def look(self, scene: Scene) -> Iterable[Finding]:
        """A warning."""
        if not scene.root.live:
            return
        mask, most = scene.machine.allowed.cpus, widest(scene.machine)
        if mask != most:
            yield self.finding(
                "warning",
                f"this process was bound to CPUs {format_list(mask)} of its cgroup's "
                f"{format_list(most)} before it began",
                f"/proc/self/status: Cpus_allowed_list = {format_list(mask)}",
                "tell the other binder not to (srun --cpu-bind=none, mpirun --bind-to none), or "
                "pass --ignore-inherited",
            )


class CpuTime(Check):
    """The cgroup's cpu.max."""

    name = "cpu-time-limited"
    about = (
        "The cgroup's quota (cpu.max) is less than the cores of one GPU's node: more threads than"
        " that are stopped many times a second, all at once. Source: "
        "Documentation/admin-guide/cgroup-v2.rst."
    )

    def look(self, scene: Scene) -> Iterable[Finding]:
        """A note."""
        quota = scene.machine.allowed.cpu_quota
        sizes = [len(n.cpus) for n in scene.machine.nodes if n.id in scene.nodes_of_gpus and n.cpus]
        if quota is not None and sizes and quota < min(sizes):
            yield self.finding(
                "note",
                f"this cgroup may use {quota:g} CPUs' worth of time, less than the "
                f"{min(sizes)} CPUs of a GPU's node",
                f"cpu.max = {quota:g} CPUs",
                "raise the quota (docker --cpus, Kubernetes limits), or start fewer threads",
            )


class MemoryLimit(Check):
    """The cgroup's memory.max."""

    name = "memory-limited"
    about = (
        "The cgroup may have less memory (memory.max) than one GPU's node: offload buffers that "
        "fit the node don't fit the limit. When it is nearly reached the kernel throws out page "
        "cache, and then kills. Source: Documentation/admin-guide/cgroup-v2.rst."
    )

    def look(self, scene: Scene) -> Iterable[Finding]:
        """A note for the tightest limit; a warning where less than a twentieth of it is left."""
        near = [node for node in scene.machine.nodes if node.id in scene.nodes_of_gpus]
        sizes = [node.memory_bytes for node in near if node.memory_bytes]
        limits = [
            (limit, directory, version2)
            for directory, version2 in scene.cgroups("memory")
            if (limit := scene.number(f"{directory}/{_MEMORY[version2][0]}")) is not None
            and limit > 0
        ]
        if not sizes or not limits or not scene.several_nodes:
            return
        limit, directory, version2 = min(limits)
        name, usage, cache = _MEMORY[version2]
        used = scene.number(f"{directory}/{usage}")
        for line in (scene.text(f"{directory}/memory.stat") or "").splitlines():
            label, _, number = line.partition(" ")
            if label == cache and used is not None:
                used -= whole(number) or 0
        full = used is not None and used > limit - limit // 20
        if full or limit < min(sizes):
            had = "" if used is None else f" and has {used / _GIB:.1f}"
            yield self.finding(
                "warning" if full else "note",
                f"this cgroup may have {limit / _GIB:.1f} GiB of memory{had}; a GPU's node has "
                f"{min(sizes) / _GIB:.1f}",
                f"/{directory}/{name} = {limit}",
                "raise the limit (docker --memory, Kubernetes limits, srun --mem), or offload less",
            )


# By version of the cgroup's file system: limit, usage, and the page cache that is not in use.
_MEMORY = {
    True: ("memory.max", "memory.current", "inactive_file"),
    False: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
_GIB = 1 << 30


class IsolatedCpus(Check):
    """isolcpus and nohz_full."""

    name = "isolated-cpus"
    about = (
        "CPUs near a GPU that the scheduler leaves alone (isolcpus=, an isolated cpuset): threads "
        "that are bound to them are not moved to a free one, but all stay where they began. On "
        "nohz_full= CPUs each system call costs more. Source: "
        "Documentation/admin-guide/kernel-parameters.txt; Documentation/timers/no_hz.rst."
    )

    def look(self, scene: Scene) -> Iterable[Finding]:
        """A warning for isolated CPUs that a worker would get, a note for nohz_full ones."""
        isolated = scene.cpus(f"{CPU}/isolated") & scene.near_cpus
        adaptive = (scene.cpus(f"{CPU}/nohz_full") & scene.near_cpus) - isolated
        if isolated:
            yield self.finding(
                "warning",
                f"threads on CPUs {format_list(isolated)}, near a GPU, are not spread over them",
                f"/{CPU}/isolated = {format_list(scene.cpus(f'{CPU}/isolated'))}",
                "start workers without these CPUs (taskset, a cpuset), or boot without isolcpus=",
            )
        if adaptive:
            yield self.finding(
                "note",
                f"system calls cost more on CPUs {format_list(adaptive)}, near a GPU",
                f"/{CPU}/nohz_full = {format_list(scene.cpus(f'{CPU}/nohz_full'))}",
                "boot without nohz_full=, which serves one thread a CPU that makes no system calls",
            )


class MemoryPolicyDenied(Check):
    """A seccomp filter in the way."""

    name = "memory-policy-denied"
    about = (
        "A seccomp profile (Docker's default without CAP_SYS_NICE) refuses the memory-policy "
        "calls: numabind binds the CPUs, and first touch by bound threads does most of the rest. "
        "Source: moby's default seccomp profile."
    )

    def look(self, scene: Scene) -> Iterable[Finding]:
        """A warning where the kernel answers EPERM or ENOSYS to get_mempolicy."""
        if not scene.root.live:
            return
        from numabind import _syscalls

        try:
            _syscalls.get_memory_policy()
        except PermissionError:
            mode = parse_status(scene.text("proc/self/status") or "").get("Seccomp", "?")
            yield self.finding(
                "warning" if scene.several_nodes else "note",
                "this container may not set a memory policy",
                f"get_mempolicy: EPERM; /proc/self/status: Seccomp = {mode}",
                "docker run --cap-add SYS_NICE (Kubernetes: securityContext.capabilities.add)",
            )
        except OSError:
            return  # a kernel without NUMA: there is no policy to set


class NoTopology(Check):
    """A container without /sys."""

    name = "no-topology"
    about = (
        "/sys does not show this machine's nodes, though the kernel has several: a container "
        "without sysfs, or with its own. Nothing can be placed then."
    )

    def look(self, scene: Scene) -> Iterable[Finding]:
        """Serious where nodes are missing that Mems_allowed speaks of."""
        if scene.root.exists(NODE) or not scene.root.exists("proc/self/status"):
            return
        text = parse_status(scene.text("proc/self/status") or "").get("Mems_allowed_list", "0")
        if text not in ("", "0"):
            yield self.finding(
                "serious",
                f"the nodes of this machine can't be seen, but memory of nodes {text} is allowed",
                f"/{NODE}: not there",
                "mount sysfs into the container read-only",
            )


CHECKS: tuple[Check, ...] = (
    NoTopology(),
    CpusNotAllowed(),
    MemoryNotAllowed(),
    InheritedMask(),
    CpuTime(),
    MemoryLimit(),
    IsolatedCpus(),
    MemoryPolicyDenied(),
)
