"""Which of the machine's devices a process may see, and in which order. Pure; no runtime is asked.

Each vendor's rules stand with its reader in `_vendors`; docs/accelerators.md lists them.
"""

from __future__ import annotations

from numabind._handle import Handle, Visible
from numabind._machine import Device, Machine
from numabind._problems import problem
from numabind._record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# Where a machine has accelerators of several vendors, workers belong to the first of these.
_PREFERENCE = ("nvidia", "amd", "habana", "intel")
# What PyTorch calls the devices of each vendor: torch.device("xpu:0"). ROCm answers to "cuda".
TORCH = {
    "cuda": ("nvidia", "amd", "metax"),
    "hip": ("amd",),
    "xpu": ("intel",),
    "hpu": ("habana",),
    "npu": ("huawei",),
    "mlu": ("cambricon",),
    "musa": ("mthreads",),
    "tpu": ("google",),
    "neuron": ("amazon",),
    "ve": ("nec",),
}
# What stands before the numbers in a variable that a scheduler writes (Ray, intel_gpu.py).
_PREFIXES = {"ONEAPI_DEVICE_SELECTOR": "level_zero:"}


def worker_devices(machine: Machine, kinds: tuple[str, ...] = ()) -> tuple[Device, ...]:
    """The physical devices that workers of this machine are dealt over, in bus order.

    One vendor's: a board's display adapter and an integrated GPU are not among them. Vendors with
    accelerators (PCI class 12xx, 0302) come before those with display cards only. `kinds` narrows
    it to these vendors.
    """
    able = [d for d in machine.devices if d.computes and (not kinds or d.vendor in kinds)]
    vendors = {device.vendor for device in able}
    if len(vendors) > 1:
        dedicated = {d.vendor for d in able if d.pci_class >> 16 == 0x12 or _is_3d(d)}
        vendors = dedicated or vendors
    for vendor in _PREFERENCE:
        if vendor in vendors:
            break
    else:
        vendor = min(vendors) if vendors else ""
    return tuple(device for device in able if device.vendor == vendor)


def _is_3d(device: Device) -> bool:
    return device.pci_class >> 8 == 0x0302


def without_displays(devices: tuple[Device, ...]) -> tuple[Device, ...]:
    """The devices but for those of class VGA (0300), if others have a class without a display.

    That is how a workstation's display card differs from the accelerators beside it. A runtime
    counts it, but no cores are set aside for it.
    """
    able = tuple(device for device in devices if device.pci_class >> 8 != 0x0300)
    return able or devices


def kinds_of(name: str | None) -> tuple[str, ...]:
    """The vendors that a device name such as "xpu:0" can mean; () for any other name."""
    kind, colon, _ = (name or "").strip().lower().partition(":")
    return TORCH.get(kind, ()) if colon else ()


def visible_if_given(
    machine: Machine, environ: Mapping[str, str], names: tuple[str, ...]
) -> Visible:
    """The devices that a scheduler assigned, whether or not it wrote them into the environment.

    `names` are what it would have written, without an order: that is the environment's, where it
    names them, else by number.
    """
    from numabind._vendors import reader

    devices = worker_devices(machine)
    variable = reader(devices[0].vendor).assigned if devices else ""
    prefix = _PREFIXES.get(variable, "")
    now = environ.get(variable, "").removeprefix(prefix)
    written = [entry.strip() for entry in now.split(",")]
    chosen = [entry for entry in written if entry in names]
    if len(chosen) < len(names):
        chosen = sorted(names, key=lambda name: (len(name), name))
    if variable:
        seen = visible(machine, {**environ, variable: prefix + ",".join(chosen)})
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


def every_handle(machine: Machine) -> tuple[Handle, ...]:
    """What workers of the machine are dealt over where no environment chooses."""
    devices = present_devices(without_displays(worker_devices(machine)))
    if not devices:
        return ()
    from numabind._vendors import reader

    return reader(devices[0].vendor).handles(devices, {})


def visible(machine: Machine, environ: Mapping[str, str], kinds: tuple[str, ...] = ()) -> Visible:
    """The visible devices of a process with this environment, in the order of its ordinals.

    `kinds` narrows them to these vendors, where a machine has several.
    """
    devices = present_devices(worker_devices(machine, kinds))
    if not devices:
        return Visible(())
    from numabind._vendors import reader

    return reader(devices[0].vendor).visible(devices, environ)
