"""When something else bound this process first: noticed, planned within, or widened on request.

srun --cpu-bind, mpirun, torchrun --numa-binding, taskset and OpenMP leave a process with a mask
that is narrower than its cgroup's. The kernel lets a process widen that again, up to the cgroup.
"""

from __future__ import annotations

from numabind._cpulist import format_list
from numabind._machine import Machine
from numabind._options import Options
from numabind._placement import Placement
from numabind._plan import plan_seats
from numabind._problems import problem
from numabind._record import replace
from numabind._resolve import Seat, seat_near, seat_of_rank
from numabind._sysfs import Root, read_cpuset, read_isolated
from numabind._visible import visible, worker_devices

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_OPENMP = {
    *("OMP_PROC_BIND", "OMP_PLACES", "KMP_AFFINITY", "GOMP_CPU_AFFINITY", "OMP_NUM_THREADS"),
}
# who, the variable that gives it away, how to make it stop
_BINDERS = (
    ("Slurm", "SLURM_CPU_BIND", "srun --cpu-bind=none"),
    ("Open MPI", "OMPI_COMM_WORLD_LOCAL_RANK", "mpirun --bind-to none"),
    ("MPICH", "MPI_LOCALRANKID", "mpiexec -bind-to none"),
    ("torchrun", "TORCHELASTIC_RUN_ID", "torchrun without --numa-binding"),
    ("OpenMP", "OMP_PROC_BIND", "OMP_PROC_BIND unset"),
    ("OpenMP", "KMP_AFFINITY", "KMP_AFFINITY unset"),
    ("OpenMP", "GOMP_CPU_AFFINITY", "GOMP_CPU_AFFINITY unset"),
)


def widest(machine: Machine) -> frozenset[int]:
    """The CPUs that this process could have: its cgroup's, if the mask it was born with is less.

    The mask itself where the cgroup does not say, or says less. CPUs that the kernel was booted to
    keep for others (isolcpus=) are nobody's unless the mask has them.
    """
    mask = machine.allowed.cpus
    online = frozenset(cpu.id for cpu in machine.cpus)
    if mask == online:
        return mask
    here = Root("/")
    limit = ((read_cpuset(here) or mask) & online) - (read_isolated(here) - mask)
    return limit if mask < limit else mask


def place(
    machine: Machine,
    seats: tuple[Seat, ...],
    options: Options,
    environ: Mapping[str, str],
    local_size: int | None = None,
) -> tuple[Placement, ...]:
    """Place workers within the mask they were born with, or within all that they could have.

    The latter under `ignore_inherited`; else, where it would change a place, each worker has the
    problem `launcher-bound`. What can undo a place later is said, too (`_hazards`).
    """
    placements = _place(machine, seats, options, environ, local_size)
    if options.memory != "bind" and not _OPENMP & environ.keys():
        return placements
    from numabind._hazards import full_nodes, one_thread, openmp_crowds

    on = [device.node for device in worker_devices(machine)]
    said = []
    for placement in placements:
        shared = options.mode != "exclusive" and on.count(placement.node) > 1
        dangers = openmp_crowds(environ, shared) if placement.bound else ()
        if placement.memory_policy == "bind":
            dangers += full_nodes(Root("/"), placement.memory_nodes)
        if placement.bound and options.threads != "auto":
            dangers += one_thread(environ, placement.threads)
        said.append(replace(placement, problems=(*placement.problems, *dangers)))
    return tuple(said)


def _place(
    machine: Machine,
    seats: tuple[Seat, ...],
    options: Options,
    environ: Mapping[str, str],
    local_size: int | None,
) -> tuple[Placement, ...]:
    within = plan_seats(machine, seats, options, local_size).placements
    most = widest(machine)
    mask = machine.allowed.cpus
    if most == mask:
        return within
    wide = replace(machine, allowed=replace(machine.allowed, cpus=most))
    free = plan_seats(wide, seats, options, local_size).placements
    if options.ignore_inherited:
        return free
    found = [entry for entry in _BINDERS if environ.get(entry[1], "").lower() not in _OFF]
    who = " or ".join(dict.fromkeys(name for name, _, _ in found)) or "something"
    cause = f"{who} bound this process to CPUs {format_list(mask)} of its cgroup's "
    cause += format_list(most)
    remedy = " or ".join([*(how for _, _, how in found), "numabind's --ignore-inherited"])
    placements = []
    for less, more in zip(within, free, strict=True):
        if less.cpus == more.cpus or not more.bound:
            placements.append(less)
            continue
        said = problem(
            "launcher-bound",
            f"{cause}; without that, the worker's place would be {format_list(more.cpus)}",
            f"If that is not wanted: {remedy} (ignore_inherited=True).",
        )
        placements.append(replace(less, problems=(*less.problems, said)))
    return tuple(placements)


def place_all(
    machine: Machine, options: Options, environ: Mapping[str, str], workers: int | None
) -> tuple[Placement, ...]:
    """The places of all workers; by default one for each device that this environment shows."""
    if options.near is not None:
        seats = tuple(seat_near(machine, rank, options.near) for rank in range(workers or 1))
        return place(machine, seats, options, environ)
    seen = visible(machine, environ)
    count = workers or max(1, len(seen.handles))
    ranks = range(count)
    seats = tuple(seat_of_rank(machine, seen, rank, count, options.share) for rank in ranks)
    return place(machine, seats, options, environ)


_OFF = ("", "none", "no", "false", "disabled")
