"""The machine drawn: packages hold nodes, nodes hold L3 groups, those hold cores and threads.

Devices hang where they hang. All is HTML boxes: text stays text, and nothing needs a script.
"""

from __future__ import annotations

from numabind._cpulist import format_list
from numabind._handle import Handle
from numabind._machine import Cpu, Device, Machine, Nic, Node
from numabind._report.crew import COLOURS, Crew
from numabind._report.markup import Html, count, details, join, scrolls, section, size, tag
from numabind._report.text import part_kind, part_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TypeVar

    Item = TypeVar("Item")
    Key = TypeVar("Key")

STEPS = 8  # shades of a heat map: .h0 to .h7 in page.css
_KINDS = {"cpu": "", "gpu": "GPU memory", "memory": "memory only"}


def machine_section(machine: Machine, crew: Crew) -> Html:
    """The drawing, its key, and all devices in detail."""
    picture = _Picture(machine, crew)
    return section(
        "machine",
        "Machine",
        _key(crew, machine),
        tag("div", *picture.packages(), class_="packages"),
        *picture.apart(),
        _allowed(machine),
        _device_table(machine) if machine.devices else None,
    )


def shown_nodes(machine: Machine) -> tuple[Node, ...]:
    """The nodes that hold something. A GB200 keeps 28 for GPU partitions, and they are empty."""
    used = {number for device in machine.devices for number in (device.node, *device.near_nodes)}
    return tuple(n for n in machine.nodes if n.cpus or n.memory_bytes != 0 or n.id in used)


class _Picture:
    """One machine on the way to its drawing."""

    def __init__(self, machine: Machine, crew: Crew) -> None:
        self.machine, self.crew = machine, crew
        self.cpus = _by(machine.cpus, lambda cpu: cpu.node)
        self.shown = shown_nodes(machine)
        self.most = max((node.memory_bytes or 0 for node in self.shown), default=0)
        # What hangs off a node, by its kind; another kind of device is one more line.
        self.hanging = (
            ("GPU", [device for device in machine.devices if device.computes]),
            ("Not for workers", [device for device in machine.devices if not device.computes]),
            ("NIC", [_as_device(nic) for nic in machine.nics]),
            ("NVMe", [_as_device(disk) for disk in machine.disks]),
        )

    def packages(self) -> list[Html]:
        """A box for each package, or for each set of packages that share a node."""
        homes = _by(self.shown, lambda node: self.home(node.id) if node.cpus else None)
        cards = []
        for home in sorted((h for h in homes if h is not None), key=sorted):
            nodes = homes[home]
            cpus = [cpu for node in nodes for cpu in self.cpus.get(node.id, ())]
            names = f"Package{'s' if len(home) > 1 else ''} {format_list(home)}"
            title = names if home else "Package unknown"
            facts = (count(len(nodes), "node"), *_counts(cpus))
            cards.append(_package(title, " · ".join(facts), [self.node(node) for node in nodes]))
        without = homes.get(None, [])
        if without:
            cards.append(
                _package(
                    "Nodes without CPUs",
                    count(len(without), "node"),
                    [self.node(node) for node in without],
                    few=True,
                )
            )
        homeless = self.cpus.get(None, [])
        if homeless:
            title = "CPUs without a node"
            cards.append(_package(title, " · ".join(_counts(homeless)), [self.groups(homeless)]))
        return cards

    def home(self, node: int) -> frozenset[int]:
        numbers = {cpu.package for cpu in self.cpus.get(node, ())}
        return frozenset(number for number in numbers if number is not None)

    def node(self, node: Node) -> Html:
        cpus = self.cpus.get(node.id, [])
        head = tag("header", tag("h4", f"Node {node.id}"), tag("span", " · ".join(_counts(cpus))))
        if not cpus:
            head = tag("header", tag("h4", f"Node {node.id}"), tag("span", _KINDS[node.kind]))
        owners = [d.pci for d in self.machine.devices if d.memory_node == node.id]
        return tag(
            "article",
            head,
            tag("p", "CPUs ", tag("code", format_list(node.cpus)), class_="cpus") if cpus else None,
            self.groups(cpus) if cpus else None,
            self.memory(node),
            tag("p", "memory of ", tag("code", ", ".join(owners)), class_="cpus")
            if owners
            else None,
            *(self.hang(kind, devices, node.id) for kind, devices in self.hanging),
            class_="node",
        )

    def groups(self, cpus: list[Cpu]) -> Html:
        """The L3 groups of these CPUs side by side."""
        groups = _by(cpus, lambda cpu: cpu.l3)
        boxes = []
        for first, members in sorted(groups.items(), key=lambda item: item[1][0].id):
            ids = frozenset(cpu.id for cpu in members)
            label: object = "caches unknown"
            if first is not None:
                label = (
                    "one L3" if len(groups) == 1 else join(("L3 ", tag("code", format_list(ids))))
                )
            drawn = tag(
                "div", *self.cores(members), class_="cores", role="img", aria_label=self.told(ids)
            )
            boxes.append(tag("div", tag("p", label), drawn, class_="l3"))
        return tag("div", *boxes, class_="l3s")

    def cores(self, cpus: list[Cpu]) -> list[Html]:
        cores = _by(cpus, _core)
        return [
            tag("span", *(self.thread(cpu) for cpu in threads), class_="core")
            for _, threads in sorted(cores.items())
        ]

    def thread(self, cpu: Cpu) -> Html:
        workers = self.crew.on_cpu.get(cpu.id, ())
        barred = cpu.id not in self.machine.allowed.cpus
        what = self.crew.name(workers) if workers else "not allowed" if barred else "free"
        style = self.crew.style(workers) or ("barred" if barred else None)
        title = f"CPU {cpu.id}: {what}"
        return tag("i", self.crew.short(workers), class_=style, data_n=cpu.id, title=title)

    def told(self, cpus: frozenset[int]) -> str:
        """What the boxes show, for who can't see them."""
        allowed = self.machine.allowed.cpus
        told = _by(
            sorted(cpus), lambda n: self.crew.on_cpu.get(n) or ("free" if n in allowed else "bar")
        )
        names = {"free": "free", "bar": "not allowed"}
        return "; ".join(
            f"{names[who] if isinstance(who, str) else self.crew.name(who)}: "
            f"CPUs {format_list(frozenset(ids))}"
            for who, ids in told.items()
        )

    def memory(self, node: Node) -> Html:
        """A bar as long as the node's memory is, and whose pages go there."""
        amount = "none" if node.memory_bytes == 0 else size(node.memory_bytes)
        share = 100 * (node.memory_bytes or 0) // self.most if self.most else 0
        bar = tag("span", tag("span", style=f"width:{share}%"), class_="bar", aria_hidden="true")
        workers = self.crew.on_memory.get(node.id, ())
        return tag(
            "div",
            tag("span", "Memory ", tag("b", amount)),
            bar,
            tag("span", tag("span", "pages of ", class_="sr"), self.crew.chips(workers))
            if workers
            else None,
            class_="memory",
        )

    def hang(self, kind: str, devices: list[Device], node: int) -> Html | None:
        here = [device for device in devices if device.node == node]
        if not here:
            return None
        cards = (self.device(kind, device) for device in here)
        return tag("ul", *cards, class_="devices", aria_label=f"{kind} on node {node}")

    def device(self, kind: str, device: Device) -> Html:
        workers = self.crew.of_device(device.pci) if device.computes else ()
        title = kind if device.index is None else f"{kind} {device.index}"
        parts = [
            tag(
                "li",
                self.crew.chips(self.crew.of_device(device.pci, (Handle(device, part).label,))),
                f"{part_kind(device)} {part_name(part)} ",
                tag("code", part.uuid) if part.uuid else None,
            )
            for part in device.partitions
        ]
        near = format_list(frozenset(device.near_nodes))
        return tag(
            "li",
            tag("span", tag("b", title), self.crew.chips(workers), class_="top"),
            tag("code", device.pci),
            tag("bdi", device_name(device), class_="soft"),
            tag("span", f"near nodes {near}", class_="soft")
            if device.node is None and near
            else None,
            tag("ul", *parts) if parts else None,
            class_="device" + (f" w{workers[0] % COLOURS}" if workers else ""),
        )

    def apart(self) -> list[Html]:
        """Devices that hang off no known node, and nodes that hold nothing."""
        parts = []
        for kind, devices in self.hanging:
            loose = [device for device in devices if device.node is None]
            if loose:
                title = f"{kind}: where {'it hangs' if len(loose) == 1 else 'they hang'} is unknown"
                cards = tag("ul", *(self.device(kind, d) for d in loose), class_="devices")
                parts.append(_package(title, count(len(loose), "device"), [cards], few=True))
        empty = frozenset(n.id for n in self.machine.nodes) - {n.id for n in self.shown}
        if empty:
            words = "Nodes ", tag("code", format_list(empty)), " hold neither CPUs nor memory."
            parts.append(tag("p", *words, class_="hint"))
        if not self.machine.devices:
            parts.append(tag("p", "No GPU or accelerator on the PCI bus.", class_="hint"))
        return parts


def device_name(device: Device) -> str:
    """Its name, or the PCI numbers of vendor and model."""
    return device.name or f"{device.vendor} {device.vendor_id:04x}:{device.device_id:04x}"


def _as_device(nic: Nic) -> Device:
    """A NIC with what a device's box shows."""
    name = ", ".join(nic.names) or None
    return Device(
        nic.pci,
        "",
        computes=False,
        node=nic.node,
        name=name,
        vendor_id=nic.vendor_id,
        device_id=nic.device_id,
    )


def _package(title: str, facts: str, nodes: list[Html], few: bool = False) -> Html:
    head = tag("header", tag("h3", title), tag("span", facts))
    wide = " wide" if len(nodes) > 2 or few else ""
    return tag(
        "div", head, tag("div", *nodes, class_="nodes"), class_=f"package{wide}", role="group",
        aria_label=title,
    )  # fmt: skip


def _counts(cpus: list[Cpu]) -> tuple[str, ...]:
    cores = {_core(cpu) for cpu in cpus}
    return count(len(cores), "core"), count(len(cpus), "CPU")


def _core(cpu: Cpu) -> int:
    return cpu.id if cpu.core is None else cpu.core


def _by(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """The items by their key, in order of appearance."""
    found: dict[Key, list[Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def _key(crew: Crew, machine: Machine) -> Html:
    """What the boxes mean, and a choice of what stands in them."""
    threads = max((len(core) for core in _by(machine.cpus, _core).values()), default=1)
    boxes = tag("span", *[tag("i")] * threads, class_="core")
    said = f" a core of {threads} hardware threads" if threads > 1 else " a core"
    words = [tag("li", boxes, said)]
    alone = sorted({who for who in crew.on_cpu.values() if len(who) == 1})
    words += [
        tag("li", tag("i", crew.short(who), class_=crew.style(who)), f" {crew.name(who)} alone")
        for who in alone[:COLOURS]
    ]
    words += [
        tag("li", tag("i", crew.short(who), class_=crew.style(who)), f" shared by {crew.name(who)}")
        for who in list(crew.shared)[:COLOURS]
    ]
    taken = crew.on_cpu.keys()
    allowed = machine.allowed.cpus
    if allowed - taken:
        words.append(tag("li", tag("i"), " no worker"))
    if frozenset(cpu.id for cpu in machine.cpus) - allowed - taken:
        words.append(tag("li", tag("i", class_="barred"), " not allowed"))
    choices = (
        tag("label", tag("input", type="radio", name="box", id=name, checked=name == "ranks"), said)
        for name, said in (("ranks", "ranks"), ("numbers", "CPU numbers"))
    )
    return tag(
        "div",
        tag("ul", *words),
        tag(
            "div",
            tag("span", "In the boxes:", id="boxes"),
            *choices,
            role="radiogroup",
            aria_labelledby="boxes",
        ),
        class_="key",
    )


def _allowed(machine: Machine) -> Html:
    allowed = machine.allowed
    words: list[object] = [
        *("This process may use CPUs ", tag("code", format_list(allowed.cpus) or "none")),
        *(" and memory on nodes ", tag("code", format_list(allowed.nodes) or "none")),
    ]
    if allowed.cpu_quota is not None:
        words.append(f", {allowed.cpu_quota:g} CPUs' worth of time")
    words.append(".")
    if machine.offline_cpus:
        words += [" Offline: CPUs ", tag("code", format_list(machine.offline_cpus)), "."]
    return tag("p", *words, class_="hint")


def _device_table(machine: Machine) -> Html:
    head = ("PCI address", "Name", "Node", "Said by", "Local CPUs", "Driver", "UUID")
    rows = []
    for device in machine.devices:
        near = format_list(frozenset(device.near_nodes)) or "unknown"
        local = None if device.local_cpus is None else format_list(device.local_cpus) or "none"
        cells = (
            tag("bdi", device_name(device)),
            near if device.node is None else device.node,
            device.node_source or "–",
            tag("code", local or "–"),
            tag("bdi", device.driver or "–"),
            tag("code", device.uuid or "–"),
        )
        address = tag("th", tag("code", device.pci), scope="row")
        rows.append(tag("tr", address, *(tag("td", cell) for cell in cells)))
    table = tag(
        "table",
        tag("caption", "Devices"),
        tag("thead", tag("tr", *(tag("th", word, scope="col") for word in head))),
        tag("tbody", *rows),
        class_="devs",
    )
    return details("All devices in detail", scrolls("Devices in detail", table))


def distances_section(machine: Machine) -> Html | None:
    """The kernel's distances as a heat map; None where there are no two nodes to be apart."""
    nodes = shown_nodes(machine)
    if len(nodes) < 2:
        return None
    if any(len(node.distances) != len(machine.nodes) for node in nodes):
        said = tag("p", "The kernel shows no distances between the nodes.", class_="hint")
        return section("distances", "Distances", said)
    ids = [node.id for node in nodes]
    rows = {start: [machine.distance(start, end) for end in ids] for start in ids}
    steps = sorted({distance for row in rows.values() for distance in row})
    shade = {value: i * (STEPS - 1) // max(1, len(steps) - 1) for i, value in enumerate(steps)}
    body = (
        tag(
            "tr",
            tag("th", str(start), scope="row"),
            *(tag("td", str(value), class_=f"h{shade[value]}") for value in row),
        )
        for start, row in rows.items()
    )
    hint = tag(
        "p",
        "From the node at the left to the node above, as the firmware tells the kernel: "
        "10 is the node itself, 20 twice as far.",
        class_="hint",
    )
    corner = tag("td", tag("span", "from, to", class_="sr"))
    table = tag(
        "table",
        tag("caption", "Distances between nodes", class_="sr"),
        tag("thead", tag("tr", corner, *(tag("th", str(number), scope="col") for number in ids))),
        tag("tbody", *body),
        class_="heat",
    )
    return section("distances", "Distances", hint, scrolls("Distances between nodes", table))
