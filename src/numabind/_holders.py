"""Which processes hold which GPUs: the drivers' lists, else the device files that are open.

NVIDIA's list is NVML's, AMD's is KFD's in sysfs. A device file is found by its number in sysfs:
/dev/dri/renderD129 (AMD, also of partitions; Intel), /dev/accel/accel3 or /dev/hl3 (Gaudi).
"""

from __future__ import annotations

import os

from numabind import _proc
from numabind._address import parse_address
from numabind._errors import MachineError
from numabind._machine import Device, Machine
from numabind._record import record
from numabind._sysfs import PCI, Root

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any


_FIRST_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO of include/linux/proc_ns.h


@record
class Holders:
    """Who holds GPUs, and who could not be seen.

    `found`: for each process the PCI addresses, and "nvml", "kfd" or "files", who says so.
    `strangers` are numbers by a driver that mean a process of another PID namespace, though one
    here has the same;
    `unseen` counts other users' processes whose files this process may not see.
    """

    found: dict[int, tuple[frozenset[str], str]]
    strangers: tuple[int, ...] = ()
    unseen: int = 0


def holders(machine: Machine, pids: Iterable[int] | None = None) -> Holders:
    """Who holds a GPU; with `pids` only those are looked at.

    Files of other users' processes can only be seen with CAP_SYS_PTRACE. /dev/kfd is all AMD GPUs'
    at once, so it counts only where a process has no file of a single one.
    """
    listed = _by_nvml(machine)
    strangers = tuple(pid for pid in listed or {} if _is_stranger(pid, "/dev/nvidia"))
    found = {
        pid: (devices, "nvml") for pid, devices in (listed or {}).items() if pid not in strangers
    }
    amd = frozenset(d.pci for d in machine.devices if d.vendor == "amd" and d.computes)
    if amd:
        for pid, devices in _by_kfd().items():
            if pid not in found and os.path.exists(f"/proc/{pid}"):
                if _is_stranger(pid, "/dev/kfd"):
                    strangers = (*strangers, pid)
                else:
                    found[pid] = devices, "kfd"
    others = any(d.computes and (listed is None or d.vendor != "nvidia") for d in machine.devices)
    unseen = _unseen(found) if pids is None and others else 0
    files = device_files(machine.devices, Root("/"))
    for pid in _proc.processes() if pids is None else pids:
        if files and pid not in found:
            opened = opened_by(pid, files, amd)
            if opened:
                found[pid] = (opened, "files")
    return Holders(found, strangers, unseen)


def _by_kfd() -> dict[int, frozenset[str]]:
    from numabind._vendors.amd import read_processes

    try:
        return read_processes(Root("/"))
    except MachineError:
        return {}  # a security module keeps it: the open files remain


def _is_stranger(pid: int, file: str) -> bool:
    """Whether a number by a driver, which counts as the host does, is an unrelated process's here.

    One that holds a GPU has a device file open whose name begins with `file`.
    """
    try:
        if os.readlink("/proc/self/ns/pid") == _FIRST_NAMESPACE:
            return False
    except OSError:
        return False
    opened = _proc.open_files(pid)
    return bool(opened) and not any(path.startswith(file) for path in opened)


def _unseen(found: dict[int, tuple[frozenset[str], str]]) -> int:
    """How many processes of other users can't be looked at; kernel threads have no VmSize."""
    if _proc.may_trace():
        return 0
    count = 0
    for pid in _proc.processes():
        try:
            other = os.stat(f"/proc/{pid}").st_uid != os.geteuid()
        except OSError:
            continue  # it ended
        count += other and pid not in found and "VmSize" in _proc.status(pid)
    return count


def opened_by(pid: int, files: dict[str, str], amd: frozenset[str]) -> frozenset[str]:
    """The PCI addresses of the GPUs whose device files a process has open."""
    paths = _proc.open_files(pid)
    devices = frozenset(files[path] for path in paths if path in files)
    return devices or (amd if "/dev/kfd" in paths else frozenset())


def device_files(devices: tuple[Device, ...], root: Root) -> dict[str, str]:
    """PCI addresses by device file: of NVIDIA by its minor, of the others by sysfs.

    ls /sys/bus/pci/devices/0000:c1:00.0/drm                 card1 renderD129
    ls /sys/bus/pci/devices/0000:19:00.0/{accel,habanalabs}  accel0   hl0 hl_controlD0
    """
    files = {}
    for device in devices:
        if not device.computes:
            continue
        if device.vendor == "nvidia" and device.minor is not None:
            files[f"/dev/nvidia{device.minor}"] = device.pci
        for kind, folder in (("drm", "/dev/dri"), ("accel", "/dev/accel"), ("habanalabs", "/dev")):
            for name in root.listing(f"{PCI}/{device.pci}/{kind}"):
                files[f"{folder}/{name}"] = device.pci
        for part in device.partitions:
            # amdgpu gives a partition a render node that is no child of the PCI function.
            if part.minor is not None:
                files[f"/dev/dri/renderD{part.minor}"] = device.pci
    return files


def _by_nvml(machine: Machine) -> dict[int, frozenset[str]] | None:
    """NVML's compute and graphics processes; None where NVML does not answer."""
    if not any(d.vendor == "nvidia" and d.computes for d in machine.devices):
        return None
    try:
        import pynvml
    except ImportError:
        return None
    if not hasattr(pynvml, "NVMLError"):
        return None  # another module of that name
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError, OSError):
        return None
    try:
        return _ask(pynvml)
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def _ask(pynvml: Any) -> dict[int, frozenset[str]]:
    found: dict[int, frozenset[str]] = {}
    lists = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            bus = pynvml.nvmlDeviceGetPciInfo(handle).busId
            pci = str(parse_address(bus.decode() if isinstance(bus, bytes) else bus))
        except (pynvml.NVMLError, ValueError):
            continue  # fell off the bus
        for function in lists:
            for process in _running(pynvml, function, handle):
                found[process.pid] = found.get(process.pid, frozenset()) | {pci}
    return found


def _running(pynvml: Any, function: str, handle: Any) -> Any:
    """The processes by one of NVML's lists; () where this driver or GPU has none."""
    # A driver older than nvidia-ml-py lacks the newest version of a function.
    mismatch = getattr(pynvml, "NVMLLibraryMismatchError", pynvml.NVMLError)
    for name in (function, f"{function}_v2"):
        try:
            return getattr(pynvml, name)(handle)
        except mismatch:
            continue
        except (pynvml.NVMLError, AttributeError):
            break
    return ()
