"""PCI addresses: a device's identity, whatever a driver or a runtime numbers it."""

from __future__ import annotations

from numabind._record import record


@record
class Address:
    """A PCI address. The domain may exceed four hexadecimal digits (VMD, large machines)."""

    domain: int
    bus: int
    slot: int
    function: int

    def __str__(self) -> str:
        return f"{self.domain:04x}:{self.bus:02x}:{self.slot:02x}.{self.function:x}"


def parse_address(text: str) -> Address:
    """Read "0000:17:00.0", "00000000:17:00.0" (NVML's way) or "17:00.0". ValueError otherwise."""
    head, dot, function = text.strip().partition(".")
    parts = head.split(":")
    if len(parts) == 2:
        parts.insert(0, "0")
    widths = (8, 2, 2)
    fields = [*parts, function]
    hexadecimal = all(part and all(c in "0123456789abcdefABCDEF" for c in part) for part in fields)
    if not dot or len(parts) != 3 or not hexadecimal or len(function) != 1:
        raise ValueError(f"{text!r} is not a PCI address such as 0000:17:00.0")
    if any(len(part) > width for part, width in zip(parts, widths, strict=True)):
        raise ValueError(f"{text!r} is not a PCI address such as 0000:17:00.0")
    domain, bus, slot = (int(part, 16) for part in parts)
    if slot > 31 or int(function, 16) > 7:
        raise ValueError(f"{text!r} is not a PCI address: slot above 1f or function above 7")
    return Address(domain, bus, slot, int(function, 16))


def bus_order(pci: str) -> tuple[int, int, int, int]:
    """The sort key by which drivers number devices: domain, bus, slot, function."""
    address = parse_address(pci)
    return (address.domain, address.bus, address.slot, address.function)
