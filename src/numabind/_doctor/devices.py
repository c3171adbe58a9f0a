"""The GPUs' and NICs' links, interrupts and partitions."""

from __future__ import annotations

import os

from numabind._cpulist import format_list, parse_list
from numabind._doctor.scene import Check, Scene
from numabind._finding import Finding
from numabind._sysfs import PCI

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


class LinkBelowItsBest(Check):
    """PCI links."""

    name = "link-below-its-best"
    about = (
        "A GPU's PCI link has fewer lanes than both ends can do (a riser, a slot, a bad contact):"
        " every copy is slower by as much. A lower speed is normal while the GPU idles, so that "
        "is a note: look again under load. Source: PCI Express base specification, Link Status."
    )

    def look(self, scene: Scene) -> Iterable[Finding]:
        """A warning for a narrow link, a note for a slow one, of GPUs and the ports above them."""
        seen = set()
        for device in scene.gpus:
            # From the GPU up: each with the port that its link ends in.
            path = [device.pci, *reversed(_ports_above(scene, device.pci))]
            for pci, port in zip(path, [*path[1:], None], strict=True):
                if pci in seen or (port is None and pci != device.pci):
                    continue
                seen.add(pci)
                yield from self.link(scene, pci, port, device.pci)

    def link(self, scene: Scene, pci: str, port: str | None, gpu: str) -> Iterable[Finding]:
        """What is wrong with one link, whose other end is `port`."""
        base = f"{PCI}/{pci}"
        whose = pci if pci == gpu else f"{pci}, above {gpu},"
        width, most = _lanes(scene, pci, port)
        if 0 < width < most:
            yield self.finding(
                "warning",
                f"the link of {whose} has {width} of {most} lanes",
                f"/{base}/current_link_width = {width}",
                "reseat the card, check riser, slot and BIOS bifurcation (lspci -vv: LnkSta)",
            )
        speed, best = (
            scene.text(f"{base}/{which}_link_speed") or "" for which in ("current", "max")
        )
        if _rate(speed) and _rate(best) and _rate(speed) < _rate(best) and pci == gpu:
            yield self.finding(
                "note",
                f"the link of {whose} runs at {speed} of {best}",
                f"/{base}/current_link_speed = {speed}",
                "normal for an idle GPU: look again while it copies",
            )


def _lanes(scene: Scene, pci: str, port: str | None) -> tuple[int, int]:
    """The lanes of a link whose other end is `port`, and what both ends can do; 0 if unknown."""
    width = scene.number(f"{PCI}/{pci}/current_link_width") or 0
    ends = [scene.number(f"{PCI}/{end}/max_link_width") for end in (pci, port) if end]
    # 0 is "no link", and 255 what a device says that has fallen off the bus.
    most = min((count for count in ends if count and 0 < count < 255), default=0)
    return width, most


def _rate(text: str) -> float:
    """GT/s in "16.0 GT/s PCIe"; 0 for anything else."""
    number = text.split(" ", 1)[0]
    return float(number) if number.replace(".", "", 1).isdecimal() and number.isascii() else 0.0


def _ports_above(scene: Scene, pci: str) -> list[str]:
    """The PCI functions between a device and its root, by the path of its directory."""
    path = os.path.realpath(f"{scene.root.path}{PCI}/{pci}")
    parts = path.split("/")
    return [part for part in parts[:-1] if part.count(":") == 2 and part != pci]


class LinkBelowItsPeers(Check):
    """PCI links of equal GPUs."""

    name = "link-below-its-peers"
    about = (
        "A GPU's link does all that its slot can, but the slot has fewer lanes, or is of an older "
        "generation, than that of a GPU of the same model on this machine: its worker is the one "
        "that the others wait for. Source: Documentation/ABI/testing/sysfs-bus-pci."
    )

    def look(self, scene: Scene) -> Iterable[Finding]:
        """A warning for each GPU whose slot is the worse."""
        models: dict[tuple[int, int], list[tuple[str, int, float]]] = {}
        for device in scene.gpus:
            port = next(reversed(_ports_above(scene, device.pci)), None)
            width, most = _lanes(scene, device.pci, port)
            rates = [
                _rate(scene.text(f"{PCI}/{end}/max_link_speed") or "")
                for end in (device.pci, port)
                if end
            ]
            # A link below its slot's own best is another check's.
            if width and width == most and min(rates):
                model = (device.vendor_id, device.device_id)
                models.setdefault(model, []).append((device.pci, width, min(rates)))
        for slots in models.values():
            best, lanes_of_best, rate_of_best = max(slots, key=lambda slot: slot[1] * slot[2])
            for pci, width, rate in slots:
                if width * rate < lanes_of_best * rate_of_best:
                    yield self.finding(
                        "warning",
                        f"the slot of {pci} has {width} lanes of {rate:g} GT/s, that of its equal "
                        f"{best} has {lanes_of_best} of {rate_of_best:g}",
                        f"/{PCI}/{pci}/current_link_width = {width}",
                        "move it to a better slot; check risers and BIOS bifurcation",
                    )


class InterruptsElsewhere(Check):
    """Interrupts on another node."""

    name = "interrupts-elsewhere"
    about = (
        "The interrupts of a GPU or NIC are served by CPUs of another node than its own: each "
        "completion crosses the socket. Source: Documentation/core-api/irq/irq-affinity.rst."
    )

    def look(self, scene: Scene) -> Iterable[Finding]:
        """A warning for each GPU and NIC, with one of its interrupts as evidence."""
        if not scene.several_nodes:
            return
        nodes = {node.id: node.cpus for node in scene.machine.nodes}
        for pci in scene.names(PCI):
            kind = (scene.text(f"{PCI}/{pci}/class") or "")[2:4]
            if kind not in ("02", "03", "12"):
                continue
            number = scene.number(f"{PCI}/{pci}/numa_node")
            near = nodes.get(-1 if number is None else number)
            if not near:
                continue
            away = [
                (irq, cpus)
                for irq in scene.names(f"{PCI}/{pci}/msi_irqs")
                if (cpus := self.served_by(scene, irq)) and not cpus & near
            ]
            if away:
                irq, cpus = away[0]
                yield self.finding(
                    "warning",
                    f"{len(away)} interrupts of {pci}, on node {number}, are served elsewhere",
                    f"/proc/irq/{irq}/effective_affinity_list = {format_list(cpus)}",
                    f"echo {format_list(near)} > /proc/irq/{irq}/smp_affinity_list, for each "
                    "(irqbalance --banirq keeps them there)",
                )

    def served_by(self, scene: Scene, irq: str) -> frozenset[int]:
        """The CPUs that serve an interrupt that was requested; else none."""
        # An interrupt that nobody requested has no directory of its handler's name.
        for name in ("effective_affinity_list", "smp_affinity_list"):
            text = scene.text(f"proc/irq/{irq}/{name}")
            if text:
                try:
                    return parse_list(text)
                except ValueError:
                    return frozenset()
        return frozenset()


class IrqBalance(Check):
    """irqbalance."""

    name = "irqbalance-runs"
    about = (
        "irqbalance moves interrupts every ten seconds after its own idea of load, also onto "
        "cores that exclusive workers were given. Source: irqbalance(1)."
    )

    def look(self, scene: Scene) -> Iterable[Finding]:
        """A note where locality matters."""
        if not scene.matters:
            return
        for pid in scene.names("proc"):
            if pid.isdecimal() and scene.text(f"proc/{pid}/comm") == "irqbalance":
                yield self.finding(
                    "note",
                    "irqbalance moves interrupts between CPUs",
                    f"/proc/{pid}/comm = irqbalance",
                    "leave it, or ban the workers' cores: IRQBALANCE_BANNED_CPULIST in "
                    "/etc/default/irqbalance",
                )
                return


class MultiInstance(Check):
    """MIG."""

    name = "multi-instance"
    about = (
        "A GPU is split into MIG instances. CUDA shows a process one instance only, by its UUID; "
        "all of a GPU's instances share its node and its link. Source: NVIDIA MIG user guide."
    )

    def look(self, scene: Scene) -> Iterable[Finding]:
        """A note for each such GPU."""
        for device in scene.gpus:
            if device.vendor == "nvidia" and device.partitions:
                count = len(device.partitions)
                yield self.finding(
                    "note",
                    f"{device.pci} is split into {count} MIG instances, which share its node's "
                    "cores and its link",
                    f"NVML: {device.partitions[0].uuid} is one of them",
                    "give each worker one: CUDA_VISIBLE_DEVICES=MIG-…; mode exclusive parts cores "
                    "by GPU, not by instance",
                )


CHECKS: tuple[Check, ...] = (
    LinkBelowItsBest(),
    LinkBelowItsPeers(),
    InterruptsElsewhere(),
    IrqBalance(),
    MultiInstance(),
)
