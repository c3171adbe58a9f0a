"""Who is where: the workers of a plan as labels and colours, for the drawing and the tables.

A colour never says anything alone: the label stands in or beside it.
"""

from __future__ import annotations

from numabind._cpulist import format_list
from numabind._placement import Placement, Plan
from numabind._report.markup import Html, join, tag, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

COLOURS = 8  # --w0 to --w7 in page.css; the ninth worker has the first's colour, and its own number


class Crew:
    """The workers of a plan, by their place in it."""

    def __init__(self, plan: Plan) -> None:
        self.placements = plan.placements
        self.on_cpu: dict[int, tuple[int, ...]] = {}
        self.on_memory: dict[int, tuple[int, ...]] = {}
        self.shared: dict[tuple[int, ...], int] = {}
        for worker, placement in enumerate(plan.placements):
            for cpu in placement.cpus if placement.bound else ():
                self.on_cpu[cpu] = (*self.on_cpu.get(cpu, ()), worker)
            for node in placement.memory_nodes:
                self.on_memory[node] = (*self.on_memory.get(node, ()), worker)
        for workers in self.on_cpu.values():
            if len(workers) > 1:
                self.shared.setdefault(workers, len(self.shared))

    def of_device(self, pci: str, uuids: Iterable[str] = ()) -> tuple[int, ...]:
        """The workers of a device; with `uuids`, those of its partitions of that name."""
        wanted = set(uuids)
        return tuple(
            worker
            for worker, placement in enumerate(self.placements)
            if (wanted & set(_parts(placement.device)) if wanted else pci in _parts(placement.pci))
        )

    def of_devices(self, addresses: Iterable[str]) -> tuple[int, ...]:
        """The workers of any of these devices."""
        return tuple(sorted({worker for pci in addresses for worker in self.of_device(pci)}))

    def label(self, worker: int) -> str:
        """ "3", or "·" for a worker without a rank."""
        rank = self.placements[worker].local_rank
        return "·" if rank is None else str(rank)

    def name(self, workers: tuple[int, ...]) -> str:
        """ "rank 3", "ranks 0-3", "the worker"."""
        ranks = {self.placements[worker].local_rank for worker in workers}
        known = frozenset(rank for rank in ranks if rank is not None)
        if len(known) != len(ranks):
            return "the worker"
        return f"rank{'s' if len(known) > 1 else ''} {format_list(known)}"

    def short(self, workers: tuple[int, ...]) -> str:
        """What fits in a core's box: "3", "0-3", or "5×" where there is no room for more."""
        if len(workers) < 2:
            return self.label(workers[0]) if workers else ""
        listed = self.name(workers).rpartition(" ")[2]
        return listed if len(listed) <= 4 else f"{len(workers)}×"

    def style(self, workers: tuple[int, ...]) -> str | None:
        """The class that colours them."""
        if not workers:
            return None
        return f"s{self.shared[workers]}" if workers in self.shared else f"w{workers[0] % COLOURS}"

    def chips(self, workers: Iterable[int]) -> Html:
        """Their numbers, each on its colour."""
        return join(
            tag(
                "span",
                tag("span", "rank ", class_="sr"),
                self.label(worker),
                class_=f"chip w{worker % COLOURS}",
            )
            for worker in workers
        )

    def css(self) -> Html:
        """Rules for the boxes of CPUs that several workers share: a stripe of each one's colour."""
        rules = []
        for workers, number in self.shared.items():
            shown = workers[:COLOURS]
            stops = ",".join(
                f"var(--w{worker % COLOURS}) {100 * i // len(shown)}% "
                f"{100 * (i + 1) // len(shown)}%"
                for i, worker in enumerate(shown)
            )
            rules.append(f"i.s{number}{{background-image:linear-gradient(90deg,{stops})}}")
        return Html("\n".join(rules))


def _parts(label: str | None) -> list[str]:
    return label.split(",") if label else []


def is_near(placement: Placement) -> bool:
    """Whether the plan puts this worker near its device."""
    apart = {said.name for said in placement.problems} & {"devices-on-several-nodes"}
    return placement.bound and placement.device is not None and not apart


def memory_text(placement: Placement) -> Html:
    """ "prefer: node 0", "none"."""
    nodes = placement.memory_nodes
    if not nodes:
        return text(placement.memory_policy)
    word = "node" if len(nodes) == 1 else "nodes"
    return text(f"{placement.memory_policy}: {word} {format_list(nodes)}")
