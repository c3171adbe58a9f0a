"""NVIDIA: NVML through nvidia-ml-py where it answers, else /proc/driver/nvidia. Never CUDA.

    cat /proc/driver/nvidia/gpus/0000:17:00.0/information
        Model:           NVIDIA H100 80GB HBM3
        GPU UUID:        GPU-5d0c7a10-...
        Device Minor:    0
    cat /proc/driver/nvidia/gpus/0008:06:00.0/numa_status      (GPUs whose memory is a NUMA node)
        Node:      2
        Status:    online

NVML numbers GPUs in PCI bus order, and so do we where only /proc speaks. Like CUDA it leaves out
those that this process may not open (containers, Slurm's ConstrainDevices); access(2) tells without
opening them, since the kernel asks the device cgroup there too. nvmlDeviceGetNumaNodeId names the
GPU's own memory ("only applies to platforms where the GPUs are NUMA nodes", NVML API reference), so
it never says where host memory should go.

Visible devices: CUDA C++ Programming Guide, "CUDA Environment Variables" (CUDA_VISIBLE_DEVICES,
CUDA_DEVICE_ORDER); NVIDIA MIG User Guide, "CUDA Visible Devices".
"""

from __future__ import annotations

from numabind._address import bus_order, parse_address
from numabind._handle import Handle, Visible, by_number, find_uuid, is_number
from numabind._machine import Device, Partition
from numabind._problems import Problem, problem
from numabind._record import record, replace
from numabind._sysfs import NVIDIA, Root, parse_number, parse_status
from numabind._vendors import Identified

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

assigned = "CUDA_VISIBLE_DEVICES"


@record
class Facts:
    """What the driver knows of one GPU."""

    uuid: str | None = None
    index: int | None = None
    minor: int | None = None
    name: str | None = None
    memory_node: int | None = None
    near: frozenset[int] | None = None
    near_cpus: frozenset[int] | None = None
    partitions: tuple[Partition, ...] = ()


def identify(root: Root, devices: tuple[Device, ...], runtime: bool) -> Identified:
    """UUID, NVML index, minor, name, own memory node and MIG instances of NVIDIA's devices.

    `runtime` says whether NVML may be asked; it is only on the live machine.
    """
    facts = read_proc(root)
    problems: tuple[Problem, ...] = ()
    if runtime and root.live:
        try:
            answers = read_nvml()
        except NvmlUnavailableError as error:
            problems = (problem("nvml-unavailable", str(error)),)
        else:
            # What NVML does not list is hidden from this process, whatever /proc says.
            facts = {pci: replace(fact, index=None) for pci, fact in facts.items()}
            for pci, fact in answers.items():
                known = {name: value for name, value in fact.__dict__.items() if value is not None}
                facts[pci] = replace(facts.get(pci, Facts()), **known)
    near = {pci: fact.near for pci, fact in facts.items() if fact.near is not None}
    near_cpus = {pci: f.near_cpus for pci, f in facts.items() if f.near_cpus is not None}
    merged = tuple(_with_facts(device, facts.get(device.pci)) for device in devices)
    return Identified(merged, near, problems, near_cpus)


def _with_facts(device: Device, fact: Facts | None) -> Device:
    if fact is None:
        return device
    return replace(
        device,
        uuid=fact.uuid,
        index=fact.index,
        minor=fact.minor,
        name=fact.name,
        memory_node=fact.memory_node,
        partitions=fact.partitions,
    )


def read_proc(root: Root) -> dict[str, Facts]:
    """What /proc/driver/nvidia/gpus says, by PCI address; {} without the driver."""
    by_address = {}
    for name in root.listing(NVIDIA):
        try:
            by_address[str(parse_address(name))] = name
        except ValueError:
            continue
    facts = {}
    index = 0
    nodes = [name for name in root.listing("dev") if name[:6] == "nvidia" and name[6:].isdigit()]
    for pci in sorted(by_address, key=bus_order):
        base = f"{NVIDIA}/{by_address[pci]}"
        information = parse_status(root.text(f"{base}/information") or "")
        status = parse_status(root.text(f"{base}/numa_status") or "")
        minor = _number(information.get("Device Minor"))
        hidden = information.get("GPU Excluded") == "Yes" or (
            bool(nodes) and minor is not None and not root.usable(f"dev/nvidia{minor}")
        )
        facts[pci] = Facts(
            uuid=_clean_uuid(information.get("GPU UUID")),
            index=None if hidden else index,
            minor=minor,
            name=information.get("Model") or None,
            memory_node=_number(status.get("Node")),
        )
        index += not hidden
    return facts


def _clean_uuid(text: str | None) -> str | None:
    # Until a GPU is first opened the driver prints "GPU-????????-????-????-????-????????????".
    return text if text and "?" not in text else None


def _number(text: str | None) -> int | None:
    try:
        number = parse_number(text or "")
    except ValueError:
        return None
    return number if number >= 0 else None


class NvmlUnavailableError(Exception):
    """NVML did not answer; the text says why."""


def read_nvml() -> dict[str, Facts]:
    """What NVML says of each GPU, by PCI address. NvmlUnavailableError if it does not answer."""
    try:
        import pynvml
    except ImportError:
        raise NvmlUnavailableError("nvidia-ml-py is not installed") from None
    if not hasattr(pynvml, "NVMLError"):
        raise NvmlUnavailableError("the module pynvml is not the one of nvidia-ml-py")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NvmlUnavailableError(f"NVML says: {error}") from None
    except OSError as error:
        raise NvmlUnavailableError(f"libnvidia-ml can't be loaded: {error}") from None
    try:
        return _ask_all(pynvml)
    except pynvml.NVMLError as error:
        raise NvmlUnavailableError(f"NVML says: {error}") from None
    finally:
        pynvml.nvmlShutdown()


def _ask_all(pynvml: Any) -> dict[str, Facts]:
    def ask(function: str, *arguments: Any) -> Any:
        """The answer, or None where this driver or GPU has none."""
        try:
            return getattr(pynvml, function)(*arguments)
        except (pynvml.NVMLError, AttributeError):
            return None

    facts = {}
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = ask("nvmlDeviceGetHandleByIndex", index)
        bus = ask("nvmlDeviceGetPciInfo", handle) if handle is not None else None
        try:
            pci = str(parse_address(_text(bus.busId if bus is not None else None)))
        except ValueError:
            continue  # a GPU that fell off the bus: the others still count
        facts[pci] = Facts(
            uuid=_text(ask("nvmlDeviceGetUUID", handle)) or None,
            index=index,
            minor=ask("nvmlDeviceGetMinorNumber", handle),
            name=_text(ask("nvmlDeviceGetName", handle)) or None,
            memory_node=_own_node(ask("nvmlDeviceGetNumaNodeId", handle)),
            near=_words_to_numbers(ask("nvmlDeviceGetMemoryAffinity", handle, 16, 0)),
            near_cpus=_words_to_numbers(ask("nvmlDeviceGetCpuAffinity", handle, 128)),
            partitions=tuple(_instances(ask, handle)),
        )
    return facts


def _instances(ask: Callable[..., Any], handle: Any) -> list[Partition]:
    mode = ask("nvmlDeviceGetMigMode", handle)
    if not mode or not mode[0]:
        return []
    found = []
    for number in range(ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
        instance = ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
        uuid = _text(ask("nvmlDeviceGetUUID", instance)) if instance is not None else ""
        if uuid:
            found.append(
                Partition(
                    uuid,
                    ask("nvmlDeviceGetGpuInstanceId", instance),
                    ask("nvmlDeviceGetComputeInstanceId", instance),
                )
            )
    return found


def _text(value: Any) -> str:
    # nvidia-ml-py before 11.5 answers in bytes.
    return value.decode() if isinstance(value, bytes) else value or ""


def _own_node(value: int | None) -> int | None:
    return value if value is not None and 0 <= value < 1 << 16 else None


def _words_to_numbers(words: Any) -> frozenset[int] | None:
    """NVML's mask of nodes or CPUs, an array of C unsigned longs; None if it is empty."""
    found = {
        64 * i + bit for i, word in enumerate(words or ()) for bit in range(64) if word >> bit & 1
    }
    return frozenset(found) or None


def handles(devices: tuple[Device, ...], _environ: Mapping[str, str]) -> tuple[Handle, ...]:
    """The GPUs; an instance under MIG is seen only when it is named."""
    return tuple(Handle(device) for device in devices)


def visible(devices: tuple[Device, ...], environ: Mapping[str, str]) -> Visible:
    """What CUDA_VISIBLE_DEVICES leaves, in its order."""
    value = environ.get(assigned)
    ordered, problems = _cuda_order(devices, environ)
    if value is None:
        return Visible(handles(devices, environ), None, ordered, problems)
    chosen, numbered, remark = _select(value, devices)
    if not numbered:
        ordered, problems = True, ()
    return Visible(chosen, assigned, ordered, problems, remark)


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


def _select(value: str, devices: tuple[Device, ...]) -> tuple[tuple[Handle, ...], bool, str]:
    """Apply a CUDA_VISIBLE_DEVICES list; also whether any entry was a number, and what is amiss.

    The list ends at the first entry that names nothing; an entry that names a device a second time
    makes the whole list empty; with MIG only the first instance is enumerated.
    """
    chosen: list[Handle] = []
    by_number = False
    remark = ""
    for entry in value.split(","):
        name = entry.strip()
        handle = _one(name, devices)
        if handle is None:
            remark = _why_not(name, value, devices)
            break
        by_number = by_number or name.isdigit()
        if any(handle == other for other in chosen):
            return (), by_number, f"{name!r:.60} names a device twice, so CUDA shows none"
        chosen.append(handle)
    first = next((handle for handle in chosen if handle.partition), None)
    if first and len(chosen) > 1:
        remark = "of MIG instances CUDA shows the first only"
    return ((first,) if first else tuple(chosen)), by_number, remark


def _why_not(name: str, value: str, devices: tuple[Device, ...]) -> str:
    """Why an entry ends the list; "" for the usual ways to hide all."""
    if value.strip().lower() in ("", "-1", "none", "void", "nodevfiles"):
        return ""
    why = "names no device here"
    if is_number(name):
        why = f"is past the last of {len(devices)}"
    elif name.lower().startswith("mig-") and not any(device.partitions for device in devices):
        why = "is no MIG instance that is known here (NVML, nvidia-ml-py, knows them)"
    return f"{name!r:.60} {why}, and the list ends there"


def _one(entry: str, devices: tuple[Device, ...]) -> Handle | None:
    if is_number(entry):
        return by_number(entry, handles(devices, {}))
    return find_uuid(entry, devices)
