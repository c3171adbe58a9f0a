"""Where each worker goes, and why. Pure: no I/O, no environment.

Where PyTorch defines a mode (`torchrun --numa-binding`, torch.numa) and is right, the answer is
PyTorch's; docs/placement.md lists the differences.
"""

from __future__ import annotations

from numabind._cpulist import format_list
from numabind._handle import Handle, Visible
from numabind._machine import Cpu, Device, Machine
from numabind._options import Options, make_options
from numabind._place import Place, Surroundings, join
from numabind._placement import Placement, Plan
from numabind._problems import Problem, problem
from numabind._record import replace
from numabind._resolve import Seat, seats_of_all
from numabind._visible import every_handle, without_displays, worker_devices

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from typing_extensions import Unpack

    from numabind._near import Nearest
    from numabind._options import OptionWords


def plan(
    machine: Machine,
    workers: int | None = None,
    visible: Visible | None = None,
    **options: Unpack[OptionWords],
) -> Plan:
    """Place the workers of a machine.

    `workers` is how many there are (default: one for each device); `visible` which devices they
    see (default: all); `options` are the fields of `Options`. Raises UsageError for an unknown
    option or value, and for more workers than devices without `share`.
    """
    chosen = make_options(options)
    seen = visible
    if seen is None:
        seen = Visible(every_handle(machine))
    seats = seats_of_all(machine, seen, workers, chosen.share, chosen.near)
    return plan_seats(machine, seats, chosen)


def plan_seats(
    machine: Machine, seats: tuple[Seat, ...], options: Options, local_size: int | None = None
) -> Plan:
    """Place workers whose devices are known.

    `local_size` tells how many workers the machine has when `seats` are not all of them; the unseen
    ones count against the thread budget as if dealt over the GPUs, each first a GPU of its own.
    """
    here = _Planner(machine, options)
    placements = [here.placement(seat) for seat in seats]
    used = [placement.cpus for placement in placements]
    unseen = max(0, (local_size or 0) - len(seats))
    if unseen:
        used += here.unseen(seats, unseen)
    total = max(len(seats), local_size or 0)
    sharers = here.sharers(used)
    placements = [replace(p, threads=here.threads(p.cpus, sharers, total)) for p in placements]
    return Plan(options, tuple(placements), machine.problems)


class _Planner:
    """The planning of one machine under one set of options."""

    def __init__(self, machine: Machine, options: Options) -> None:
        self.machine = machine
        self.options = options
        self.cpu = {cpu.id: cpu for cpu in machine.cpus}
        self.physical = without_displays(worker_devices(machine))
        self.around = Surroundings(machine, options.mode)

    def placement(self, seat: Seat) -> Placement:
        if seat.handle is not None and seat.others:
            return self.together(seat, (seat.handle, *seat.others))
        machine, handle = self.machine, seat.handle
        device = handle.device if handle else None
        kept = Placement(
            local_rank=seat.local_rank,
            device=handle.label if handle else None,
            pci=device.pci if device else None,
            uuid=device.uuid if device else None,
            node=device.node if device else None,
            cpus=machine.allowed.cpus,
            memory_nodes=frozenset(),
            memory_policy="none",
            threads=1,
            bound=False,
            problems=seat.problems,
        )
        only = [node for node in machine.nodes if node.cpus]
        if device is None and len(only) == 1:
            place: Place | None = self.around.around((only[0].id,), only[0].cpus)
            # With one node to be on, having no GPU costs nothing and is no problem.
            said_by_seat = tuple(p for p in seat.problems if p.name != "no-device")
            kept = replace(kept, node=only[0].id, problems=said_by_seat)
        else:
            place = self.around.place(device) if device else None
        if place is None:
            if device is None:
                return replace(kept, reasons=("no device, so no place: nothing is bound",))
            cause = f"{device.pci}: numa_node is {device.numa_node}"
            if device.local_cpus is not None:
                cause += f" and local_cpulist says {format_list(device.local_cpus) or 'nothing'}"
            return replace(
                kept,
                reasons=("the device's node is unknown: nothing is bound",),
                problems=(*kept.problems, problem("no-numa-node", cause)),
            )
        cpus, why, said = self.cpus(device, place)
        memory, policy, why_memory, said_memory = self.memory(place)
        nearest = self.nearest_nics(device)
        why_nic = (f"nearest NIC {nearest.text}",) if nearest else ()
        return replace(
            kept,
            cpus=cpus or machine.allowed.cpus,
            bound=bool(cpus),
            memory_nodes=memory,
            memory_policy=policy,
            reasons=(*self.origin(device), *place.reasons, *why, *why_memory, *why_nic),
            problems=(*kept.problems, *place.problems, *said, *said_memory, *self.one_node()),
            nics=nearest.names if nearest else (),
        )

    def nearest_nics(self, device: Device | None) -> Nearest | None:
        """The RDMA NICs nearest to a GPU; the module is loaded where there are NICs only."""
        if device is None or not device.computes or not self.machine.nics:
            return None
        from numabind._near import nearest_nics

        return nearest_nics(self.machine, device)

    def together(self, seat: Seat, handles: tuple[Handle, ...]) -> Placement:
        """The place of a worker with several devices: all that is near any of them.

        If one's node is unknown, nothing is bound. A label, address or UUID is all of them, joined
        by commas.
        """
        ones = [self.placement(Seat(seat.local_rank, handle)) for handle in handles]
        problems = [*seat.problems, *(p for one in ones for p in one.problems)]
        places = [self.around.place(handle.device) for handle in handles]
        nodes = {one.node for one in ones}
        if None not in places and len({place.nodes for place in places if place}) > 1:
            pairs = zip(ones, places, strict=True)
            where = (f"{one.device} is on node {join(at.nodes)}" for one, at in pairs if at)
            problems.append(problem("devices-on-several-nodes", ", ".join(where)))
        near = [one for one in ones if one.bound and None not in places]
        policy = next((one.memory_policy for one in near if one.memory_nodes), "none")
        return replace(
            ones[0],
            device=",".join(one.device or "?" for one in ones),
            pci=",".join(dict.fromkeys(one.pci or "?" for one in ones)),
            uuid=",".join(dict.fromkeys(one.uuid for one in ones if one.uuid)) or None,
            node=min(nodes, key=str) if len(nodes) == 1 else None,
            cpus=frozenset().union(*(one.cpus for one in near or ones)),
            bound=bool(near),
            memory_nodes=frozenset().union(*(one.memory_nodes for one in near)),
            memory_policy=policy,
            reasons=tuple(dict.fromkeys(why for one in ones for why in one.reasons)),
            nics=tuple(dict.fromkeys(nic for one in ones for nic in one.nics)),
            problems=tuple(dict.fromkeys(problems)),
        )

    def one_node(self) -> tuple[Problem, ...]:
        if len(self.machine.nodes) > 1:
            return ()
        how = "has one NUMA node" if self.machine.host.numa else "shows no NUMA nodes"
        return (problem("one-node", f"the kernel {how}"),)

    def origin(self, device: Device | None) -> tuple[str, ...]:
        if device is None:
            return ("no device; the machine's only node with CPUs is taken",)
        where = f"node {device.node}" if device.node is not None else "several nodes"
        return (f"{device.pci} is on {where}, says {device.node_source}",)

    # -- which of its CPUs

    def cpus(
        self, device: Device | None, place: Place
    ) -> tuple[frozenset[int], tuple[str, ...], tuple[Problem, ...]]:
        allowed = self.machine.allowed.cpus
        mine = place.cpus & allowed
        if not mine:
            cause = (
                f"node {join(place.nodes)} has CPUs {format_list(place.cpus)}, this process may "
                f"use {format_list(allowed)}"
            )
            return frozenset(), (), (problem("cpus-not-allowed", cause),)
        problems: list[Problem] = []
        reasons: list[str] = []
        if mine != place.cpus:
            cause = f"{len(mine)} of the {len(place.cpus)} CPUs on node {join(place.nodes)}"
            problems.append(problem("cpus-reduced", f"{cause} are allowed: {format_list(mine)}"))
        if self.options.reserve:
            left = mine - self.reserved(place.cpus)
            if left:
                reasons.append(f"{self.options.reserve} cores of each node left to the system")
                mine = left
            else:
                cause = f"{self.options.reserve} cores reserved, {len(self.cores(mine))} allowed"
                problems.append(problem("reserve-too-large", cause))
        if self.options.mode == "exclusive":
            mine, why, said = self.exclusive(device, place, mine)
        elif self.options.mode == "core-complex":
            mine, why, said = self.core_complex(device, place, mine)
        else:
            why, said = f"mode {self.options.mode}: CPUs {format_list(mine)}", None
        reasons.append(why)
        if said is not None:
            problems.append(said)
        if not self.options.smt:
            mine = frozenset(min(core) for core in self.cores(mine))
            reasons.append(f"one SMT sibling of each core: {format_list(mine)}")
        return mine, tuple(reasons), tuple(problems)

    def cores(self, cpus: Iterable[int]) -> list[list[int]]:
        """CPUs grouped by physical core, each group and the list sorted by lowest CPU."""
        return self.groups(cpus, self.core_of)

    def core_of(self, cpu: Cpu) -> int:
        """The number of a CPU's physical core; its own where the kernel does not say."""
        return cpu.id if cpu.core is None else cpu.core

    def groups(self, cpus: Iterable[int], key: Any) -> list[list[int]]:
        found: dict[int, list[int]] = {}
        for number in sorted(cpus):
            found.setdefault(key(self.cpu[number]), []).append(number)
        return [found[name] for name in sorted(found)]

    def reserved(self, cpus: frozenset[int]) -> set[int]:
        """The lowest cores of each node; of all its cores, so that two jobs leave the same ones."""
        taken: set[int] = set()
        for node in self.groups(cpus, lambda cpu: -1 if cpu.node is None else cpu.node):
            for core in self.cores(node)[: self.options.reserve]:
                taken.update(core)
        return taken

    def rivals(self, device: Device | None, place: Place) -> tuple[list[Device], int]:
        """The physical devices in the same place, hidden ones included, and this one's number.

        Hidden GPUs count so that two jobs on a machine, each seeing some, don't overlap.
        """
        if device is None:
            return [], 0
        there = []
        for other in self.physical:
            near = self.around.place(other)
            if near is not None and near.cpus == place.cpus:
                there.append(other)
        pcis = [other.pci for other in there]
        if device.pci not in pcis:
            return [*there, device], len(there)
        return there, pcis.index(device.pci)

    def exclusive(
        self, device: Device | None, place: Place, mine: frozenset[int]
    ) -> tuple[frozenset[int], str, Problem | None]:
        """Contiguous blocks of cores, the remainder to the lowest (torch.numa's rule)."""
        rivals, number = self.rivals(device, place)
        cores, count = self.cores(mine), max(1, len(rivals))
        if len(cores) < count:
            cause = f"{len(cores)} cores for {count} GPUs on node {join(place.nodes)}"
            why = f"mode exclusive not possible: CPUs {format_list(mine)}, shared"
            return mine, why, problem("too-few-cores", cause)
        each, more = divmod(len(cores), count)
        first = number * each + min(number, more)
        block = cores[first : first + each + (number < more)]
        cpus = frozenset(cpu for core in block for cpu in core)
        why = f"mode exclusive: share {number + 1} of {count}, {len(block)} of {len(cores)} cores"
        return cpus, f"{why}: {format_list(cpus)}", self.overlap(device, place)

    def overlap(self, device: Device | None, place: Place) -> Problem | None:
        """The problem of a device elsewhere whose place has some of the same CPUs."""
        for other in self.physical if device is not None else ():
            near = self.around.place(other)
            if near is not None and near.cpus != place.cpus and near.cpus & place.cpus:
                shared = format_list(near.cpus & place.cpus)
                return problem("places-overlap", f"{other.pci} is near CPUs {shared}, too")
        return None

    def core_complex(
        self, device: Device | None, place: Place, mine: frozenset[int]
    ) -> tuple[frozenset[int], str, Problem | None]:
        """The i-th GPU takes L3 group i modulo their number, largest first (torch.numa's rule)."""
        if any(self.cpu[number].l3 is None for number in mine):
            cause = f"CPUs {format_list(mine)} have no cache files"
            why = f"mode core-complex not possible: CPUs {format_list(mine)}"
            return mine, why, problem("no-l3-groups", cause)
        groups = self.groups(mine, lambda cpu: cpu.l3)
        groups.sort(key=lambda group: (-len(group), group[0]))
        _, number = self.rivals(device, place)
        cpus = frozenset(groups[number % len(groups)])
        why = f"mode core-complex: L3 group {number % len(groups) + 1} of {len(groups)}"
        return cpus, f"{why}: {format_list(cpus)}", None

    # -- which memory

    def memory(
        self, place: Place
    ) -> tuple[frozenset[int], str, tuple[str, ...], tuple[Problem, ...]]:
        policy = self.options.memory
        if policy == "none":
            return frozenset(), "none", ("memory policy left alone",), ()
        problems: list[Problem] = []
        found: set[int] = set()
        for number in place.memory:
            node = self.machine.node(number)
            if node is not None and node.memory_bytes != 0 and node.kind != "gpu":
                found.add(number)
                continue
            lender = self.around.nearest(number, lambda n: n.memory_bytes != 0 and n.kind == "cpu")
            if lender is not None:
                found.add(lender.id)
                own = "is the GPU's own" if node and node.kind == "gpu" else "has no memory"
                cause = f"node {number} {own}; node {lender.id} is the nearest CPU node with memory"
                problems.append(problem("memory-lent", cause))
        allowed = frozenset(found) & self.machine.allowed.nodes
        if not allowed:
            cause = (
                f"Mems_allowed is {format_list(self.machine.allowed.nodes) or 'empty'}, the memory "
                f"near the GPU is on node {format_list(found) or 'none'}"
            )
            problems.append(problem("memory-not-allowed", cause))
            return frozenset(), "none", ("memory policy left alone",), tuple(problems)
        why = f"memory policy {policy}, node {format_list(allowed)}"
        return allowed, policy, (why,), tuple(problems)

    # -- how many threads

    def unseen(self, seats: tuple[Seat, ...], count: int) -> list[frozenset[int]]:
        """The CPUs of `count` workers that this one can't see, nearest devices first."""
        taken = [h.device for seat in seats for h in (seat.handle, *seat.others) if h]
        seen = {device.pci for device in taken}
        mine = [self.around.place(device) for device in taken]
        others = [device for device in self.physical if device.pci not in seen]
        others.sort(key=lambda device: self.around.place(device) not in mine)
        devices = [*others, *taken]
        if not devices:
            return [self.placement(seats[0]).cpus] * count
        rounds = (devices[i % len(devices)] for i in range(count))
        return [self.placement(Seat(None, Handle(device))).cpus for device in rounds]

    def sharers(self, used: list[frozenset[int]]) -> dict[int, int]:
        """How many of these sets hold each physical core, by the core's lowest CPU here."""
        count: dict[int, int] = {}
        for cpus in used:
            for core in {self.core_of(self.cpu[cpu]) for cpu in cpus}:
                count[core] = count.get(core, 0) + 1
        return count

    def threads(self, cpus: frozenset[int], sharers: dict[int, int], workers: int) -> int:
        """Physical cores over the workers that share each of them, within cpu.max over all."""
        cores = {self.core_of(self.cpu[cpu]) for cpu in cpus}
        total = sum(1 / max(1, sharers.get(core, 0)) for core in cores)
        quota = self.machine.allowed.cpu_quota
        if quota is not None:
            total = min(total, quota / max(1, workers))
        return max(1, int(total + 1e-9))
