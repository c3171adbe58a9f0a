"""A visible device: a PCI function or a part of one, as a runtime counts it. Pure.

An *ordinal* is a position in `Visible.handles`, which is what CUDA, HIP and SYCL call a device
index. It is never a driver's own index (NVML, KFD).
"""

from __future__ import annotations

from numabind._machine import Device, Partition
from numabind._problems import Problem
from numabind._record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


@record
class Handle:
    """A visible device: the PCI function and, where it is divided, the part of it."""

    device: Device
    partition: Partition | None = None

    @property
    def label(self) -> str:
        """The PCI address; of a part its UUID, else the address, a slash and its number."""
        part = self.partition
        if part is None:
            return self.device.pci
        return part.uuid or f"{self.device.pci}/{part.number}"

    @property
    def uuid(self) -> str | None:
        """The UUID by which a runtime knows it, or None."""
        return (self.partition.uuid if self.partition else self.device.uuid) or None

    @property
    def index(self) -> int | None:
        """The driver's number of it, or None."""
        return self.partition.index if self.partition else self.device.index


@record
class Visible:
    """The devices a process sees, by ordinal; `source` is the variable that chose them, if any.

    `remark` says for people what its text names that is not there, "" if nothing. `ordered` is
    False where the ordinals can't be trusted (`device-order-unknown`).
    """

    handles: tuple[Handle, ...]
    source: str | None = None
    ordered: bool = True
    problems: tuple[Problem, ...] = ()
    remark: str = ""


def is_number(text: str) -> bool:
    """Whether a text is a device number: decimal digits, not absurdly many."""
    return text.isascii() and text.isdigit() and len(text) < 10


def listed(
    value: str, handles: tuple[Handle, ...], find: Callable[[str], Handle | None] | None = None
) -> tuple[Handle, ...]:
    """The handles that a comma-separated list chooses, up to the first entry that names none.

    `find` reads an entry; by default it is a position in `handles`. A repeated one counts once.
    """
    find = find or (lambda entry: by_number(entry, handles))
    chosen: list[Handle] = []
    for entry in value.split(","):
        handle = find(entry.strip())
        if handle is None:
            break
        if handle not in chosen:
            chosen.append(handle)
    return tuple(chosen)


def by_number(entry: str, handles: tuple[Handle, ...]) -> Handle | None:
    """The handle at this position, or None."""
    number = int(entry) if is_number(entry) else len(handles)
    return handles[number] if number < len(handles) else None


def in_driver_order(handles: tuple[Handle, ...]) -> tuple[Handle, ...]:
    """By the driver's numbers where it numbers all of them, else as they are."""
    if any(handle.index is None for handle in handles):
        return handles
    return tuple(sorted(handles, key=lambda handle: handle.index or 0))


def find_uuid(text: str, devices: tuple[Device, ...]) -> Handle | None:
    """The device or part whose UUID begins so; None if not exactly one.

    Forms: GPU-<uuid>, MIG-<uuid>, and MIG-GPU-<uuid>/<GI>/<CI> of drivers before R470.
    """
    wanted = text.lower()
    parts = [Handle(device, part) for device in devices for part in device.partitions]
    if wanted.startswith("mig-gpu-"):
        uuid, _, rest = wanted.removeprefix("mig-").partition("/")
        found = [
            handle
            for handle in parts
            if (handle.device.uuid or "").lower() == uuid
            and handle.partition is not None
            and rest == f"{handle.partition.gpu_instance}/{handle.partition.compute_instance}"
        ]
    elif wanted.startswith(("mig-", "gpu-")) and len(wanted) > 4:
        wholes = [Handle(d) for d in devices if (d.uuid or "").lower().startswith(wanted)]
        found = [h for h in parts if (h.uuid or "").lower().startswith(wanted)] or wholes
        if len(found) > 1 and len(wholes) == 1 and {h.device for h in found} == {wholes[0].device}:
            found = wholes
    else:
        found = []
    return found[0] if len(found) == 1 else None
