"""Where each GPU hangs, by the speed of its copies from each node's memory. Pure.

The rule is verdict.py's: a node is told from another only if at least FEWEST rounds all say so and
the middle one by more than LEAST. A GPU's place is the fastest node and all that can't be told from
it; if nothing is left to be far from, the place can't be told.
"""

from __future__ import annotations

from numabind._bench.results import Copy, Samples
from numabind._bench.verdict import FEWEST, mean, ratio
from numabind._cpulist import format_list
from numabind._record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from numabind._machine import Machine


@record
class Place:
    """What measuring says of one GPU.

    `nodes` are where it hangs, empty if that can't be told; `rates` GiB/s by node, the mean of both
    directions; `firmware` the node that the firmware names, `cause` why nothing can be told.
    """

    gpu: str
    nodes: tuple[int, ...]
    rates: tuple[tuple[int, Samples], ...]
    firmware: int | None = None
    cause: str = ""

    @property
    def text(self) -> str:
        """The answer in one line."""
        if not self.nodes:
            return f"{self.gpu}: can't tell: {self.cause}"
        word = "node" if len(self.nodes) == 1 else "nodes"
        return f"{self.gpu}: {word} {format_list(frozenset(self.nodes))}"

    def as_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "gpu": self.gpu,
            "nodes": list(self.nodes),
            "cause": self.cause or None,
            "firmware": self.firmware,
            "rates_gib_s": {str(node): rate.as_dict() for node, rate in self.rates},
        }


def locate(gpu: str, rates: Mapping[int, Samples], firmware: int | None = None) -> Place:
    """Find a GPU's node from its rates by node."""
    table = tuple(sorted(rates.items()))
    if len(rates) < 2:
        return Place(gpu, (), table, firmware, "fewer than two nodes could be measured")
    rounds = min(len(rate.values) for rate in rates.values())
    if rounds < FEWEST:
        cause = f"{rounds} rounds were measured, {FEWEST} are needed"
        return Place(gpu, (), table, firmware, cause)
    best = max(rates, key=lambda node: (rates[node].median, -node))
    near, noise = [], 0.0
    for node, rate in table:
        found = ratio(rates[best], rate)
        if node == best or found is None or not (found.clear and found.median > 1):
            near.append(node)
        if node != best and found is not None:
            noise = max(noise, found.noise)
    if len(near) == len(table):
        cause = f"the nodes differ by no more than the noise ({noise:.0%})"
        return Place(gpu, (), table, firmware, cause)
    return Place(gpu, tuple(near), table, firmware)


def places(copies: Sequence[Copy], firmware: Mapping[str, int | None]) -> tuple[Place, ...]:
    """The place of each GPU of `firmware`, from pinned copies of each alone in both directions."""
    found = []
    for gpu, said in firmware.items():
        mine = [c for c in copies if c.gpu == gpu and c.pinned and c.arrangement is None]
        rates = {}
        for node in sorted({c.node for c in mine if c.node is not None}):
            both = [c.rate for c in mine if c.node == node]
            known = [rate for rate in both if rate is not None]
            average = mean(known) if known and len(known) == len(both) else None
            if average is not None:
                rates[node] = average
        found.append(locate(gpu, rates, said))
    return tuple(found)


def doubtful(machine: Machine) -> tuple[str, ...]:
    """The GPUs whose node the firmware does not tell, or tells to be the same for all. Pure.

    Two or more GPUs all on one node are doubtful on a machine with several, as VMs show it.
    """
    gpus = [device for device in machine.devices if device.computes]
    if len([node for node in machine.nodes if node.cpus]) < 2:
        return ()
    told = {device.node for device in gpus}
    alike = len(gpus) > 1 and len(told) == 1
    return tuple(device.pci for device in gpus if alike or device.node is None)


def map_text(found: Sequence[Place], header: Iterable[str]) -> str:
    """A NUMABIND_MAP file: a line for each GPU that has a place, and the evidence as comments."""
    lines = [f"# {line}" for line in header]
    for place in found:
        lines.append("")
        word = "nothing" if place.firmware is None else f"node {place.firmware}"
        lines.append(f"# {place.gpu}: the firmware says {word}; GiB/s by node, pinned, both ways:")
        lines += [
            f"#   node {node}: {rate.median:.2f} ({rate.low:.2f} to {rate.high:.2f}, "
            f"{len(rate.values)} rounds)"
            for node, rate in place.rates
        ]
        if place.nodes:
            lines.append(f"{place.gpu}   nodes={format_list(frozenset(place.nodes))}")
        else:
            lines.append(f"# can't tell: {place.cause}")
    return "\n".join(lines) + "\n"
