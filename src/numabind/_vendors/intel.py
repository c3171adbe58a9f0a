"""Intel GPUs (Data Center GPU Max, Flex, Arc): tiles from the driver's files. Never Level Zero.

    ls /sys/bus/pci/devices/0000:18:00.0        tile0 tile1 …            (xe)
    ls /sys/class/drm/card1/gt                  gt0 gt1                  (i915, one a tile on Max)

Level Zero counts tiles as devices unless ZE_FLAT_DEVICE_HIERARCHY=COMPOSITE (the default is FLAT
since the drivers of 2024; COMBINED counts alike). ZE_AFFINITY_MASK is a set, so order and repeats
don't count. FLAT: "0,3" are tiles, "0.1" names none. COMPOSITE: "0" is a card, "0.1" a tile of it;
a card of which several tiles are named is one device (Level Zero specification, "Affinity Mask"
and "Device Hierarchy Mode"). The DPC++ runtime applies ONEAPI_DEVICE_SELECTOR to what is left
(`selector`). No file of the kernel has the UUIDs that Level Zero makes, so there are none here.
"""

from __future__ import annotations

from numabind._handle import Handle, Visible, is_number
from numabind._machine import Device, Partition
from numabind._pci import is_intel_max
from numabind._problems import problem
from numabind._record import replace
from numabind._sysfs import PCI, Root
from numabind._vendors import Identified
from numabind._vendors.selector import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

MASK = "ZE_AFFINITY_MASK"
SELECTOR = "ONEAPI_DEVICE_SELECTOR"
# What Ray writes.
assigned = SELECTOR


def identify(root: Root, devices: tuple[Device, ...], _runtime: bool) -> Identified:
    """Render minor and tiles; from files alone."""
    found = []
    for device in devices:
        base = f"{PCI}/{device.pci}"
        tiles = _count(root.listing(base), "tile")
        minor = None
        for name in root.listing(f"{base}/drm"):
            if name.startswith("renderD") and is_number(name[7:]):
                minor = int(name[7:])
            if not tiles and name.startswith("card") and is_intel_max(device.device_id):
                tiles = _count(root.listing(f"{base}/drm/{name}/gt"), "gt")
        parts = tuple(Partition("", number=n) for n in range(tiles)) if tiles > 1 else ()
        found.append(replace(device, minor=minor, partitions=parts))
    return Identified(tuple(found), {})


def _count(names: list[str], stem: str) -> int:
    return sum(name.startswith(stem) and is_number(name[len(stem) :]) for name in names)


def _composite(environ: Mapping[str, str]) -> bool:
    return environ.get("ZE_FLAT_DEVICE_HIERARCHY", "").strip().upper() == "COMPOSITE"


def handles(devices: tuple[Device, ...], environ: Mapping[str, str]) -> tuple[Handle, ...]:
    """Tiles, or whole cards under COMPOSITE."""
    if _composite(environ):
        return tuple(Handle(device) for device in devices)
    found: list[Handle] = []
    for device in devices:
        found += [Handle(device, tile) for tile in device.partitions] or [Handle(device)]
    return tuple(found)


def visible(devices: tuple[Device, ...], environ: Mapping[str, str]) -> Visible:
    """What ZE_AFFINITY_MASK leaves, and ONEAPI_DEVICE_SELECTOR of that, in the machine's order."""
    left = _by_mask(devices, environ)
    value = environ.get(SELECTOR, "").strip()
    if not value:
        return left
    try:
        return Visible(select(value, left.handles), SELECTOR)
    except ValueError as error:
        said = problem("selector-not-understood", f"{SELECTOR}: {error}")
        return Visible(left.handles, SELECTOR, ordered=False, problems=(said,))


def _by_mask(devices: tuple[Device, ...], environ: Mapping[str, str]) -> Visible:
    """What ZE_AFFINITY_MASK leaves, in the machine's order."""
    every = handles(devices, environ)
    value = environ.get(MASK, "").strip()
    if not value:
        return Visible(every)
    entries = {entry.strip() for entry in value.split(",")}
    if not _composite(environ):
        # Where no card has tiles, "1.0" is card 1 in either hierarchy.
        if not any(device.partitions for device in devices):
            entries = {entry.removesuffix(".0") for entry in entries}
        return Visible(tuple(h for n, h in enumerate(every) if str(n) in entries), MASK)
    chosen = []
    for number, device in enumerate(devices):
        tiles = [t for t in device.partitions if f"{number}.{t.number}" in entries]
        if str(number) in entries or len(tiles) > 1:
            chosen.append(Handle(device))
        elif tiles:
            chosen.append(Handle(device, tiles[0]))
        elif not device.partitions and f"{number}.0" in entries:
            chosen.append(Handle(device))
    return Visible(tuple(chosen), MASK)
