"""ONEAPI_DEVICE_SELECTOR, which the DPC++ runtime applies to what Level Zero left. Pure.

    level_zero:0,2      level_zero:gpu      *:*      level_zero:*.*      level_zero:*;!level_zero:1

Terms are parted by semicolons; of one without "!" every device that any such term names is chosen,
and those that a term with "!" names are taken away; with "!" alone all others are. Numbers are
positions in the list without the variable; "0.1" is a sub-device (a tile), chosen as a device of
its own. The machine's order stays, in whichever order devices are named. PyTorch's xpu devices are
those of Level Zero, so terms of other backends choose none of them. Empty is not set. Sources:
intel/llvm, sycl/doc/EnvironmentVariables.md and sycl/source/detail/device_filter.cpp.
"""

from __future__ import annotations

from numabind._handle import Handle, is_number

_BACKENDS = ("level_zero", "opencl", "cuda", "hip", "native_cpu", "esimd_emulator", "offload")
_TYPES = ("gpu", "cpu", "fpga", "acc", "npu")


def select(value: str, roots: tuple[Handle, ...]) -> tuple[Handle, ...]:
    """The handles that a selector chooses of these. ValueError names a term without a known form.

    A sub-device of a root that has none (a tile, a card with one) is nothing.
    """
    chosen: dict[Handle, None] = {}
    discarded: set[Handle] = set()
    accepts = False
    for term in value.lower().split(";"):
        text = term.strip()
        if not text:
            continue
        named = _named(text.removeprefix("!").strip(), roots)
        if text[0] == "!":
            discarded.update(named)
        else:
            accepts = True
            chosen.update(dict.fromkeys(named))
    every = [*chosen] if accepts else roots
    left = [handle for handle in every if handle not in discarded]
    order = [handle.device.pci for handle in roots]

    def position(handle: Handle) -> tuple[int, int]:
        if handle in roots or handle.partition is None:
            return roots.index(handle), -1
        return order.index(handle.device.pci), handle.partition.number or 0

    return tuple(sorted(left, key=position))


def _named(term: str, roots: tuple[Handle, ...]) -> list[Handle]:
    """What "level_zero:0,1.*" names."""
    backend, colon, entries = term.partition(":")
    if not colon or backend not in ("*", *_BACKENDS) or not entries.strip():
        raise ValueError(f"{term!r:.60} is not BACKEND:DEVICES, as in level_zero:0")
    found: list[Handle] = []
    for entry in entries.split(","):
        top, *below = entry.strip().split(".")
        ours = top in ("*", "gpu") or is_number(top)
        if not ours and top not in _TYPES:
            raise ValueError(f"{entry!r:.60} is no number, type or * of a device")
        if len(below) > 1 or (below and not (below[0] == "*" or is_number(below[0]))):
            raise ValueError(f"{entry!r:.60} names parts of a tile, whose number is not known here")
        if below and not (is_number(top) or (top == "*" and below[0] == "*")):
            raise ValueError(f"{entry!r:.60} wants a number before a sub-device")
        if backend not in ("*", "level_zero") or not ours:
            continue
        for number, root in enumerate(roots):
            if top in ("*", "gpu") or int(top) == number:
                found += _parts(root, below[0]) if below else [root]
    return found


def _parts(root: Handle, which: str) -> list[Handle]:
    if root.partition is not None:
        return []
    tiles = root.device.partitions
    return [Handle(root.device, t) for t in tiles if which == "*" or t.number == int(which)]
