"""AMD: the amdgpu driver's files beside each PCI function. Never HIP or ROCr.

    cat /sys/bus/pci/devices/0000:c1:00.0/unique_id
        3d6b1a52b86bd7d1
    ls /sys/bus/pci/devices/0000:c1:00.0/drm
        card1  renderD129

ROCm's name for a GPU is "GPU-" and that number (ROCR_VISIBLE_DEVICES, rocminfo "Uuid"), and it
numbers GPUs in the order of its KFD nodes, which is bus order where no partitioning is in use.
"""

from __future__ import annotations

from numabind._machine import Device
from numabind._record import replace
from numabind._sysfs import PCI, Root
from numabind._vendors import Identified

VENDOR = "amd"


def identify(root: Root, devices: tuple[Device, ...], _runtime: bool) -> Identified:
    """UUID, render minor and name of AMD's devices; from files alone, so no runtime is needed."""
    found = []
    driven = 0
    nodes = [name for name in root.listing("dev/dri") if name.startswith("renderD")]
    for device in devices:
        base = f"{PCI}/{device.pci}"
        unique = root.text(f"{base}/unique_id")
        minor = _render_minor(root, base)
        hidden = bool(nodes) and minor is not None and not root.usable(f"dev/dri/renderD{minor}")
        index = None
        if device.computes and device.driver == "amdgpu" and not hidden:
            index, driven = driven, driven + 1
        found.append(
            replace(
                device,
                uuid=f"GPU-{unique}" if unique else None,
                minor=minor,
                name=root.text(f"{base}/product_name") or None,
                index=index,
            )
        )
    return Identified(tuple(found), {})


def _render_minor(root: Root, base: str) -> int | None:
    for name in root.listing(f"{base}/drm"):
        tail = name.removeprefix("renderD")
        if tail != name and tail.isascii() and tail.isdigit():
            return int(tail)
    return None
