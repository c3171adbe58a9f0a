"""Which of the machine's devices a process may see, and in which order. Pure; no runtime is asked.

Sources: CUDA C++ Programming Guide, "CUDA Environment Variables" (CUDA_VISIBLE_DEVICES,
CUDA_DEVICE_ORDER); NVIDIA MIG User Guide, "CUDA Visible Devices"; ROCm, "GPU isolation techniques"
(ROCR_VISIBLE_DEVICES before HIP_VISIBLE_DEVICES, CUDA_VISIBLE_DEVICES as HIP's other name); oneAPI
Level Zero specification, "Affinity Mask".

An *ordinal* is a position in the list that this module returns, which is what CUDA and HIP call a
device index. It is never NVML's index.
"""

from __future__ import annotations

from numabind._machine import Device, Machine, Partition
from numabind._problems import Problem, problem
from numabind._record import record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# Where a machine has accelerators of several vendors, workers belong to the first of these.
_PREFERENCE = ("nvidia", "amd", "habana", "intel")


@record
class Handle:
    """A visible device: the PCI function and, under MIG, the instance of it."""

    device: Device
    partition: Partition | None = None

    @property
    def label(self) -> str:
        """The UUID of the instance, else the PCI address."""
        return self.partition.uuid if self.partition else self.device.pci


@record
class Visible:
    """The devices a process sees, by ordinal; `source` is the variable that chose them, if any.

    `ordered` is False where the ordinals can't be trusted (`device-order-unknown`).
    """

    handles: tuple[Handle, ...]
    source: str | None = None
    ordered: bool = True
    problems: tuple[Problem, ...] = ()


def worker_devices(machine: Machine) -> tuple[Device, ...]:
    """The physical devices that workers of this machine are dealt over, in bus order.

    One vendor's: a board's display adapter and an integrated GPU are not among them.
    """
    able = [device for device in machine.devices if device.computes]
    vendors = {device.vendor for device in able}
    for vendor in _PREFERENCE:
        if vendor in vendors:
            break
    else:
        vendor = min(vendors) if vendors else ""
    return tuple(device for device in able if device.vendor == vendor)


def visible_if_given(
    machine: Machine, environ: Mapping[str, str], names: tuple[str, ...]
) -> Visible:
    """The devices that a scheduler assigned, whether or not it wrote them into the environment.

    `names` are what it would have written, without an order: that is the environment's, where it
    names them, else by number.
    """
    devices = worker_devices(machine)
    variable = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "HIP_VISIBLE_DEVICES"}.get(
        devices[0].vendor if devices else "", ""
    )
    written = [entry.strip() for entry in environ.get(variable, "").split(",")]
    chosen = [entry for entry in written if entry in names]
    if len(chosen) < len(names):
        chosen = sorted(names, key=lambda name: (len(name), name))
    if variable:
        seen = visible(machine, {**environ, variable: ",".join(chosen)})
    else:
        every = visible(machine, environ).handles
        numbers = [int(name) for name in names if name.isascii() and name.isdigit()]
        seen = Visible(tuple(every[number] for number in numbers if number < len(every)))
    problems = seen.problems
    if len(seen.handles) < len(names) and not any(handle.partition for handle in seen.handles):
        cause = f"Ray assigned GPU {', '.join(names)}; this machine has {len(devices)}"
        problems = (*problems, problem("device-not-found", cause))
    return replace(seen, source="Ray", problems=problems)


def present_devices(devices: tuple[Device, ...]) -> tuple[Device, ...]:
    """Those that the driver shows this process: a container is lent some of what sysfs lists."""
    shown = tuple(device for device in devices if device.index is not None)
    return shown or devices


def visible(machine: Machine, environ: Mapping[str, str]) -> Visible:
    """The visible devices of a process with this environment, in the order of its ordinals."""
    devices = present_devices(worker_devices(machine))
    if not devices:
        return Visible(())
    vendor = devices[0].vendor
    if vendor == "nvidia":
        return _cuda(devices, environ)
    if vendor == "amd":
        return _rocm(devices, environ)
    if vendor == "intel":
        return _level_zero(devices, environ)
    if vendor == "habana":
        return _plain(devices, environ, "HABANA_VISIBLE_DEVICES")
    return Visible(tuple(Handle(device) for device in devices))


def _cuda(devices: tuple[Device, ...], environ: Mapping[str, str]) -> Visible:
    variable = "CUDA_VISIBLE_DEVICES"
    value = environ.get(variable)
    ordered, problems = _cuda_order(devices, environ)
    every = tuple(Handle(device) for device in devices)
    if value is None:
        return Visible(every, None, ordered, problems)
    handles, by_number = _select(value, devices)
    if not by_number:
        ordered, problems = True, ()
    return Visible(handles, variable, ordered, problems)


def _cuda_order(
    devices: tuple[Device, ...], environ: Mapping[str, str]
) -> tuple[bool, tuple[Problem, ...]]:
    """Whether CUDA's numbering is the bus order, and what is to be said about it.

    FASTEST_FIRST, the default, keeps bus order among equals.
    """
    order = environ.get("CUDA_DEVICE_ORDER", "FASTEST_FIRST").strip().upper()
    models = {(device.vendor_id, device.device_id) for device in devices}
    unread = any(device_id == 0 for _, device_id in models)
    if order == "PCI_BUS_ID" or len(devices) == 1 or (len(models) == 1 and not unread):
        return True, ()
    if unread:
        return True, (problem("device-order-assumed", "sysfs does not name the GPUs' models"),)
    names = sorted({d.name or f"{d.vendor_id:04x}:{d.device_id:04x}" for d in devices})
    return False, (
        problem(
            "device-order-unknown",
            f"the GPUs are of unlike models ({', '.join(names)}) and CUDA_DEVICE_ORDER is "
            f"{environ.get('CUDA_DEVICE_ORDER') or 'not set'}",
        ),
    )


def _select(value: str, devices: tuple[Device, ...]) -> tuple[tuple[Handle, ...], bool]:
    """Apply a CUDA_VISIBLE_DEVICES list; also whether any entry was a number.

    The list ends at the first entry that names nothing; an entry that names a device a second time
    makes the whole list empty; with MIG only the first instance is enumerated.
    """
    chosen: list[Handle] = []
    by_number = False
    for entry in value.split(","):
        handle = _one(entry.strip(), devices)
        if handle is None:
            break
        by_number = by_number or entry.strip().isdigit()
        if any(handle == other for other in chosen):
            return (), by_number
        chosen.append(handle)
    first = next((handle for handle in chosen if handle.partition), None)
    return ((first,) if first else tuple(chosen)), by_number


def _one(entry: str, devices: tuple[Device, ...]) -> Handle | None:
    if entry.isascii() and entry.isdigit() and len(entry) < 10:
        number = int(entry)
        return Handle(devices[number]) if number < len(devices) else None
    return find_uuid(entry, devices)


def find_uuid(text: str, devices: tuple[Device, ...]) -> Handle | None:
    """The device or MIG instance whose UUID begins so; None if not exactly one.

    Forms: GPU-<uuid>, MIG-<uuid>, and MIG-GPU-<uuid>/<GI>/<CI> of drivers before R470.
    """
    wanted = text.lower()
    if wanted.startswith("mig-gpu-"):
        uuid, _, rest = wanted.removeprefix("mig-").partition("/")
        found = [
            Handle(device, part)
            for device in devices
            for part in device.partitions
            if (device.uuid or "").lower() == uuid
            and rest == f"{part.gpu_instance}/{part.compute_instance}"
        ]
    elif wanted.startswith("mig-") and len(wanted) > 4:
        found = [
            Handle(device, part)
            for device in devices
            for part in device.partitions
            if part.uuid.lower().startswith(wanted)
        ]
    elif wanted.startswith("gpu-") and len(wanted) > 4:
        found = [Handle(d) for d in devices if (d.uuid or "").lower().startswith(wanted)]
    else:
        found = []
    return found[0] if len(found) == 1 else None


def _rocm(devices: tuple[Device, ...], environ: Mapping[str, str]) -> Visible:
    """ROCr filters first; HIP numbers and filters what is left."""
    source = None
    left = tuple(Handle(device) for device in devices)
    inner = next((v for v in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES") if v in environ), None)
    for variable in ("ROCR_VISIBLE_DEVICES", inner):
        if variable is not None and variable in environ:
            left, _ = _select(environ[variable], tuple(handle.device for handle in left))
            source = variable
    return Visible(left, source)


def _level_zero(devices: tuple[Device, ...], environ: Mapping[str, str]) -> Visible:
    """ZE_AFFINITY_MASK: "0,2" or "0.1" (device.subdevice); order and repeats don't count."""
    value = environ.get("ZE_AFFINITY_MASK")
    if value is None:
        return Visible(tuple(Handle(device) for device in devices))
    numbers = {entry.strip().partition(".")[0] for entry in value.split(",")}
    kept = tuple(Handle(d) for i, d in enumerate(devices) if str(i) in numbers)
    return Visible(kept, "ZE_AFFINITY_MASK")


def _plain(devices: tuple[Device, ...], environ: Mapping[str, str], variable: str) -> Visible:
    value = environ.get(variable)
    if value is None or value.strip() == "all":
        return Visible(tuple(Handle(device) for device in devices))
    return Visible(_select(value, devices)[0], variable)
