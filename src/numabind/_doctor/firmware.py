"""What the firmware says of nodes and GPUs."""

from __future__ import annotations

from numabind._cpulist import format_list
from numabind._doctor.scene import Check, Scene
from numabind._finding import Finding
from numabind._sysfs import PCI

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


class UnknownNode(Check):
    """GPUs without a node."""

    name = "no-numa-node"
    about = (
        "The firmware (or the hypervisor of a VM) says numa_node -1 for a GPU and no smaller set "
        "of local CPUs, so nobody knows which node is near it, and numabind binds nothing rather "
        "than guess. Source: Documentation/ABI/testing/sysfs-bus-pci."
    )

    def look(self, scene: Scene) -> Iterable[Finding]:
        """Serious for each GPU whose node is unknown; a note where something else told it."""
        if not scene.several_nodes:
            return
        for device in scene.gpus:
            if device.numa_node is not None and device.numa_node >= 0:
                continue
            value = "not there" if device.numa_node is None else str(device.numa_node)
            evidence = f"/{PCI}/{device.pci}/numa_node = {value}"
            remedy = (
                "a firmware update or its NUMA setting; in a VM have the host expose the topology; "
                "or name the place in a NUMABIND_MAP file"
            )
            if not device.near_nodes:
                cause = f"nobody knows which node is near {device.pci}: its worker is not bound"
                yield self.finding("serious", cause, evidence, remedy)
            else:
                nodes = format_list(frozenset(device.near_nodes))
                cause = f"the firmware does not know the node of {device.pci}; {nodes} by "
                cause += str(device.node_source)
                yield self.finding("note", cause, evidence, remedy)


class Contradictions(Check):
    """What discovery found wrong."""

    name = "machine-contradicts-itself"
    about = (
        "Two sources of the system disagree, or an override does not fit it: a GPU's numa_node "
        "and local_cpulist, nodes that share CPUs, a NUMABIND_MAP or NUMABIND_SNAPSHOT of another"
        " machine. `numabind show` says the same."
    )

    def look(self, scene: Scene) -> Iterable[Finding]:
        """A warning for each problem of the machine; NVML's absence is a note."""
        for said in scene.machine.problems:
            weight = "note" if said.name == "nvml-unavailable" else "warning"
            yield self.finding(weight, said.cause, said.name, said.remedy)


class NodesPerPackage(Check):
    """NPS and SNC against where GPUs are."""

    name = "gpus-crowd-one-node"
    about = (
        "A package that the BIOS splits into several nodes (AMD NPS2 and NPS4, Intel SNC) while "
        "all its GPUs hang off one of them: workers bound to that node share a part of the "
        "package's cores and memory channels, and the rest idles. Source: vendors' tuning guides "
        "(NPS, SNC)."
    )

    def look(self, scene: Scene) -> Iterable[Finding]:
        """A warning for a package with two or more GPUs on one of its nodes."""
        machine = scene.machine
        package_of = {cpu.node: cpu.package for cpu in machine.cpus if cpu.package is not None}
        packages: dict[int, list[int]] = {}
        for node in machine.nodes:
            package = package_of.get(node.id)
            if node.cpus and package is not None:
                packages.setdefault(package, []).append(node.id)
        for package, nodes in sorted(packages.items()):
            gpus = [d for d in scene.gpus if d.node in nodes]
            used = {d.node for d in gpus}
            if len(nodes) > 1 and len(gpus) > 1 and len(used) == 1:
                one = gpus[0].node
                yield self.finding(
                    "warning",
                    f"all {len(gpus)} GPUs of package {package} hang off node {one}, one of its "
                    f"{len(nodes)}: their workers share 1/{len(nodes)} of its cores and channels",
                    f"/{PCI}/{gpus[0].pci}/numa_node = {one}, nodes "
                    f"{format_list(frozenset(nodes))} on package {package}",
                    "BIOS: one node for each package (NPS1, SNC off); or --mode socket",
                )


class OnePackage(Check):
    """All GPUs on one package."""

    name = "gpus-on-one-package"
    about = (
        "All GPUs hang off one package of several. The others' cores and memory are far from "
        "every GPU: good for data loading at best."
    )

    def look(self, scene: Scene) -> Iterable[Finding]:
        """A note."""
        of = {cpu.node: cpu.package for cpu in scene.machine.cpus if cpu.package is not None}
        packages = set(of.values())
        used = {of.get(device.node) for device in scene.gpus if device.node is not None}
        if len(packages) > 1 and len(scene.gpus) > 1 and len(used) == 1 and None not in used:
            (package,) = used
            yield self.finding(
                "note",
                f"all {len(scene.gpus)} GPUs are on package {package} of {len(packages)}",
                ", ".join(f"{d.pci}: node {d.node}" for d in scene.gpus[:4]),
                "keep what feeds GPUs on that package, and give the rest to other work",
            )


class FlatGuest(Check):
    """Virtual machines that hide where GPUs are."""

    name = "guest-hides-topology"
    about = (
        "A virtual machine with several GPUs that shows one node only, or all GPUs on one of its "
        "nodes: the host's sockets and PCI tree were likely not passed on, and nothing in the "
        "guest can tell which GPUs are far. Source: QEMU documentation, pxb-pcie (numa_node) and "
        "-numa; the hypervisor flag of /proc/cpuinfo."
    )

    def look(self, scene: Scene) -> Iterable[Finding]:
        """A warning for several nodes, a note for one."""
        gpus = scene.gpus
        if len(gpus) < 2 or not _is_guest(scene):
            return
        used = {device.near_nodes for device in gpus}
        nodes = [node.id for node in scene.machine.nodes if node.cpus]
        if len(used) != 1 or len(used.pop()) != 1:
            return
        several = len(nodes) > 1
        shown = f"all on one node of {len(nodes)}" if several else "and one node"
        yield self.finding(
            "warning" if several else "note",
            f"this virtual machine has {len(gpus)} GPUs {shown}, which is seldom so on its host",
            f"/proc/cpuinfo: flags: hypervisor; /{PCI}/{gpus[0].pci}/numa_node = "
            f"{gpus[0].numa_node}",
            "have the host pass on its nodes and PCI roots (QEMU: -numa with pinned CPUs, a "
            "pxb-pcie with numa_node for each socket; a cloud's NUMA-aware instance type), or "
            "name the places in a NUMABIND_MAP file",
        )


def _is_guest(scene: Scene) -> bool:
    for line in (scene.text("proc/cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            return "hypervisor" in value.split()
    return scene.root.exists("proc/device-tree/hypervisor")


CHECKS: tuple[Check, ...] = (
    UnknownNode(),
    Contradictions(),
    NodesPerPackage(),
    OnePackage(),
    FlatGuest(),
)
