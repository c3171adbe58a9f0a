"""Where a worker belongs, from a topology file alone: the rules again, without numabind."""

from __future__ import annotations

from numavm.topology import cpu_list


class Expected:
    """The machine of a topology file; `gpus` is what its guest lists, in bus order."""

    def __init__(self, topology: dict, gpus: list) -> None:
        smp = {"dies": 1, "threads": 1, **topology["smp"]}
        nodes = [
            (frozenset(cpu_list(node.get("cpus"))), bool(node.get("memory")))
            for node in topology["nodes"]
        ]
        if "numa=fake=" in topology.get("kernel_args", ""):
            nodes *= int(topology["kernel_args"].partition("numa=fake=")[2])
        self.nodes = nodes
        self.distance = topology.get("distance") or [
            [10 if i == j else 20 for j in range(len(nodes))] for i in range(len(nodes))
        ]
        self.gpus = [(pci, node) for pci, node in gpus]
        self.cpus = frozenset().union(*(cpus for cpus, _ in nodes))
        cores = len(self.cpus) // smp["threads"]
        last = topology.get("numbering") == "siblings-last"
        self.core = {c: c % cores if last else c // smp["threads"] for c in self.cpus}
        self.l3 = {c: self.core[c] // smp["cores"] for c in self.cpus}
        self.socket = {c: self.l3[c] // smp["dies"] for c in self.cpus}

    def nearest(self, start: int, able: list[int]) -> int:
        return min(able, key=lambda node: (self.distance[start][node], node))

    def home(self, pci: str) -> int | None:
        """The GPU's node; None where the firmware does not say and there are several."""
        node = dict(self.gpus)[pci]
        with_cpus = [i for i, (cpus, _) in enumerate(self.nodes) if cpus]
        if node < 0:
            return with_cpus[0] if len(with_cpus) == 1 else None
        return node

    def near(self, pci: str) -> tuple[list[int], list[int]] | None:
        """Nodes whose CPUs and nodes whose memory are the GPU's, in mode node."""
        home = self.home(pci)
        if home is None:
            return None
        with_cpus = [i for i, (cpus, _) in enumerate(self.nodes) if cpus]
        return [home if self.nodes[home][0] else self.nearest(home, with_cpus)], [home]

    def place(self, pci: str, mode: str) -> tuple[frozenset[int], list[int]] | None:
        """CPUs and memory nodes of this GPU's worker; None if nothing is to be bound."""
        near = self.near(pci)
        if near is None:
            return None
        (home,), memory = near
        cpus = self.nodes[home][0]
        if mode == "socket":
            package = self.socket[min(cpus)]
            whole = [
                i for i, (c, _) in enumerate(self.nodes) if c and self.socket[min(c)] == package
            ]
            cpus = frozenset().union(*(self.nodes[i][0] for i in whole))
            memory = whole if set(memory) <= set(whole) else memory
        rivals = [other for other, _ in self.gpus if self.near(other)[0] == [home]]
        number = rivals.index(pci)
        if mode == "exclusive":
            cores = self.cores(cpus)
            each, more = divmod(len(cores), len(rivals))
            first = number * each + min(number, more)
            mine = cores[first : first + each + (number < more)]
            cpus = frozenset(cpu for core in mine for cpu in core)
        elif mode == "core-complex":
            groups: dict[int, list[int]] = {}
            for cpu in sorted(cpus):
                groups.setdefault(self.l3[cpu], []).append(cpu)
            ranked = sorted(groups.values(), key=lambda group: (-len(group), group[0]))
            cpus = frozenset(ranked[number % len(ranked)])
        rich = [i for i, (c, has) in enumerate(self.nodes) if c and has]
        lent = {i if self.nodes[i][1] else self.nearest(i, rich) for i in memory}
        return cpus, sorted(lent)

    def cores(self, cpus: frozenset[int]) -> list[list[int]]:
        found: dict[int, list[int]] = {}
        for cpu in sorted(cpus):
            found.setdefault(self.core[cpu], []).append(cpu)
        return list(found.values())

    def budget(self, pci: str, mode: str, workers: list[str]) -> int:
        """Physical cores of the place, each over the workers that share it."""
        places = {worker: self.place(worker, mode)[0] for worker in {pci, *workers}}
        each = (
            1 / sum(1 for cpus in places.values() if not cpus.isdisjoint(core))
            for core in self.cores(places[pci])
        )
        return max(1, int(sum(each) + 1e-9))

    def policy(self, memory: str, nodes: list[int]) -> list:
        """The kernel's policy (of Linux 6.9 and later) for a memory option."""
        if memory in ("none", "local"):
            return ["default" if memory == "none" else "local", []]
        return ["preferred-many" if memory == "prefer" else memory, nodes]

    def pages(self, memory: str, cpus: frozenset[int], nodes: list[int]) -> list[int]:
        """The nodes that fresh pages may be on."""
        if memory not in ("none", "local"):
            return nodes
        rich = [i for i, (_, has) in enumerate(self.nodes) if has]
        own = [i for i, (c, _) in enumerate(self.nodes) if c & cpus]
        return sorted({i if i in rich else self.nearest(i, rich) for i in own})
