"""What planning answers: a placement for each worker, with its reasons."""

from __future__ import annotations

from numabind._cpulist import format_list
from numabind._options import Options
from numabind._problems import Problem
from numabind._record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SCHEMA = 1


@record
class Placement:
    """One worker's place.

    `device` is its PCI address, or the UUID of its MIG instance (then `pci` is the parent's);
    several are joined by commas.
    `node` is the NUMA node the device hangs off, None if unknown; `cpus` what to bind to, `bound`
    False if the mask is to be left as it is; `memory_nodes` and `memory_policy` likewise, "none"
    for leave alone. `threads` is the worker's budget. `reasons` says how each came about; `nics`
    are the RDMA NICs nearest to the device.
    """

    local_rank: int | None
    device: str | None
    pci: str | None
    uuid: str | None
    node: int | None
    cpus: frozenset[int]
    memory_nodes: frozenset[int]
    memory_policy: str
    threads: int
    bound: bool = True
    reasons: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    nics: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The JSON form; sets are kernel lists."""
        return {
            **self.__dict__,
            "cpus": format_list(self.cpus),
            "memory_nodes": format_list(self.memory_nodes),
            "reasons": list(self.reasons),
            "nics": list(self.nics),
            "problems": [p.as_dict() for p in self.problems],
        }


@record
class Plan:
    """The placements of a machine's workers, by local rank."""

    options: Options
    placements: tuple[Placement, ...]
    problems: tuple[Problem, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The JSON form, documented in docs/snapshot.md."""
        return {
            "schema": SCHEMA,
            "options": dict(self.options.__dict__),
            "placements": [placement.as_dict() for placement in self.placements],
            "problems": [p.as_dict() for p in self.problems],
        }
