"""Binds next to devices of several vendors, and to a NIC; says what the kernel has afterwards."""

import os

import kernel
from kernel import say

import numabind

PCI = "/sys/bus/pci/devices"


def by_class(start):
    """The first function whose class begins so."""
    for pci in sorted(os.listdir(PCI)):
        with open(f"{PCI}/{pci}/class") as file:
            if file.read().startswith(start):
                return pci
    return None


machine = numabind.discover()
for device in machine.devices:
    say(device=device.pci, vendor=device.vendor, node=device.node, computes=device.computes)
wanted = [("gpu", name) for name in ("cuda:0", "cuda:1", "xpu:0", "xpu:1", "hpu:0", "1")]
wanted += [("near", by_class("0x0207")), ("near", by_class("0x0108"))]
for option, name in wanted:
    with numabind.bind(**{option: name}) as binding:
        say(
            option=option,
            name=name,
            pci=binding.pci,
            bound=binding.bound,
            cpus=kernel.affinity(),
            policy=kernel.mempolicy(),
            problems=[problem.name for problem in binding.problems],
        )
