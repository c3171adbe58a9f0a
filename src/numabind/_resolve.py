"""Which device belongs to which worker. Pure.

An explicit GPU beats the local rank. A process that sees one device has that one, whatever its rank
(Ray, Slurm's --gpus-per-task, torchrun's virtual local rank).
"""

from __future__ import annotations

from numabind._address import parse_address
from numabind._errors import UsageError
from numabind._handle import Handle, Visible, find_uuid, is_number
from numabind._machine import Machine
from numabind._problems import Problem, problem
from numabind._record import record
from numabind._visible import TORCH, kinds_of, worker_devices

# More than any machine starts; a larger number is a slip, and would take hours to plan.
MOST_WORKERS = 1 << 16


@record
class Seat:
    """A worker and the device it was found to belong to; None if there is none.

    `others` are further devices of a worker that was given several.
    """

    local_rank: int | None
    handle: Handle | None
    problems: tuple[Problem, ...] = ()
    others: tuple[Handle, ...] = ()


def check_named(gpu: str | None, local_rank: int | None) -> None:
    """UsageError for a GPU name that has no known form, or a local rank that can't be one."""
    if local_rank is not None and not (type(local_rank) is int and local_rank >= 0):
        raise UsageError(f"local rank {local_rank!r:.60} is not a number from 0 up")
    if gpu is None:
        return
    if not isinstance(gpu, str):
        raise UsageError(f"GPU {gpu!r:.60} is not a text: name an ordinal as {str(gpu)!r:.60}")
    name = gpu.strip()
    if (name.isascii() and name.isdigit() and len(name) < 6) or (
        name.lower().startswith(("gpu-", "mig-")) and len(name) > 4
    ):
        return
    if kinds_of(name):
        if is_number(name.partition(":")[2]):
            return
        raise UsageError(f"GPU {gpu!r:.60}: a number is to follow the colon, as in cuda:1")
    try:
        parse_address(name)
    except ValueError:
        raise UsageError(
            f"GPU {gpu!r:.60} is not a UUID (GPU-…, MIG-…), a PCI address (0000:17:00.0), a "
            f"number among the visible devices or PyTorch's name ({', '.join(TORCH)}, a colon and "
            "a number); see `numabind show`"
        ) from None


def find_gpu(machine: Machine, seen: Visible, text: str) -> tuple[Handle | None, Problem | None]:
    """The device that a person named: UUID or unique beginning, PCI address, or visible ordinal.

    UUIDs and addresses may name any device of the machine, ordinals ("1", "cuda:1") the visible
    ones, which are to be those of the vendors that `kinds_of` the name. UsageError if the text is
    none of these; the problem says why a device of that name can't be told.
    """
    check_named(text, None)
    name = text.strip()
    ordinal = name.partition(":")[2] if kinds_of(name) else name
    if is_number(ordinal):
        number = int(ordinal)
        if not seen.ordered:
            return None, seen.problems[-1]
        if number < len(seen.handles):
            return seen.handles[number], None
        which = f"{seen.source} shows" if seen.source else "there are"
        return None, problem("device-not-found", f"GPU {name}: {which} {len(seen.handles)}")
    if name.lower().startswith(("gpu-", "mig-")):
        handle = find_uuid(name, machine.devices)
        if handle is not None:
            return handle, None
        return None, problem(
            "device-not-found", f"{name}: not exactly one device has a UUID that begins so"
        )
    pci = str(parse_address(name))
    for device in machine.devices:
        if device.pci == pci:
            return Handle(device), None
    return None, problem("device-not-found", f"{pci}: no display or accelerator function is there")


def seat_of_rank(
    machine: Machine,
    seen: Visible,
    local_rank: int | None,
    local_size: int | None,
    share: str | None,
) -> Seat:
    """The seat of the worker with this local rank among `local_size` (None if unknown)."""
    handles = seen.handles
    if not handles:
        if seen.source is not None and worker_devices(machine):
            cause = f"{seen.source} hides all {len(worker_devices(machine))} devices"
            cause += f": {seen.remark}" if seen.remark else ""
        else:
            cause = "no function of a GPU or accelerator is on the PCI bus"
        return Seat(local_rank, None, (problem("no-device", cause),))
    if not seen.ordered:
        return Seat(local_rank, None, seen.problems)
    if len(handles) == 1:
        return Seat(local_rank, handles[0], seen.problems)
    if local_rank is None:
        said = problem("no-local-rank", f"{len(handles)} devices are visible")
        return Seat(None, None, (said,))
    count = len(handles)
    if share == "cyclic":
        return Seat(local_rank, handles[local_rank % count], seen.problems)
    if share == "block" and local_size is not None and local_size > count:
        number = local_rank * count // local_size
        return Seat(local_rank, handles[min(number, count - 1)], seen.problems)
    if local_rank < count:
        crowded = local_size is not None and local_size > count
        too_many = (_too_many(local_size or 0, seen),) if crowded else ()
        return Seat(local_rank, handles[local_rank], seen.problems + too_many)
    if local_size is not None and local_size > count:
        return Seat(local_rank, None, (_too_many(local_size, seen),))
    said = problem("rank-without-device", f"local rank {local_rank}, but {_how_many(seen)}")
    return Seat(local_rank, None, (said,))


def seat_near(machine: Machine, local_rank: int | None, near: str) -> Seat:
    """The seat of a worker without a GPU, next to the NIC or disk of this name."""
    from numabind._near import find_near

    device, said = find_near(machine, near)
    if device is None:
        return Seat(local_rank, None, (said,) if said else ())
    return Seat(local_rank, Handle(device))


def seat_assigned(given: Visible, local_rank: int | None, named: bool) -> Seat:
    """The seat of a worker to whom a scheduler gave these devices: all of them.

    A local rank that a person `named` picks one, as it would among visible devices.
    """
    handles = given.handles
    if not handles or not given.ordered:
        return Seat(local_rank, None, given.problems)
    if named and local_rank is not None and len(handles) > 1:
        if local_rank < len(handles):
            return Seat(local_rank, handles[local_rank], given.problems)
        cause = f"local rank {local_rank}, but {given.source} assigned {len(handles)} devices"
        return Seat(local_rank, None, (*given.problems, problem("rank-without-device", cause)))
    return Seat(local_rank, handles[0], given.problems, handles[1:])


def _too_many(workers: int, seen: Visible) -> Problem:
    return problem("more-workers-than-devices", f"{workers} workers, {_how_many(seen)}")


def _how_many(seen: Visible) -> str:
    remark = f" ({seen.source}: {seen.remark})" if seen.remark else ""
    return f"{len(seen.handles)} visible devices{remark}"


def seats_of_all(
    machine: Machine,
    seen: Visible,
    workers: int | None,
    share: str | None,
    near: str | None = None,
) -> tuple[Seat, ...]:
    """A seat for each worker of a machine; by default one for each visible device.

    With `near` all sit next to that NIC or disk, by default one. UsageError for more workers than
    devices without `share`, and for a number that is no number of workers.
    """
    count = len(seen.handles)
    if workers is None:
        workers = max(1, count) if near is None else 1
    if not (type(workers) is int and 1 <= workers <= MOST_WORKERS):
        raise UsageError(f"workers must be 1 to {MOST_WORKERS}, not {workers}")
    if near is not None:
        return tuple(seat_near(machine, rank, near) for rank in range(workers))
    if share is None and workers > count > 0:
        raise UsageError(
            f"{workers} workers for {count} visible devices: start at most {count}, or say how to "
            "share with --share block or --share cyclic"
        )
    return tuple(seat_of_rank(machine, seen, rank, workers, share) for rank in range(workers))
