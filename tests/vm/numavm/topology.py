# SPDX-License-Identifier: MIT
"""QEMU's arguments for the CPUs, nodes, distances and PCI devices of a topology file."""

from __future__ import annotations

import re
import struct

from numavm.kernel import Error
from numavm.pci import KINDS, PciFunction


def parse_size(text):
    m = re.fullmatch(r"(\d+)\s*([KMG]?)i?B?", str(text))
    if not m:
        raise Error("bad size: %r" % text)
    return int(m[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[m[2]]


def cpu_list(text):
    out = []
    for part in filter(None, str(text or "").split(",")):
        lo, _, hi = part.partition("-")
        out += range(int(lo), int(hi or lo) + 1)
    return out


def spans(numbers):
    """[0, 1, 2, 5] -> ["0-2", "5"]."""
    out = []
    for n in sorted(numbers):
        if out and out[-1][1] == n - 1:
            out[-1][1] = n
        else:
            out.append([n, n])
    return ["%d-%d" % (a, b) if b > a else str(a) for a, b in out]


def madt(smp, order):
    """An ACPI MADT like QEMU's, with the CPUs in another order.

    Linux numbers CPUs in MADT order.  QEMU lists SMT siblings next to each other; most real
    servers list the first thread of every core, then the second ones, so that a core is
    CPUs 0 and 64, say.  The guest kernel takes this table from the initrd in place of QEMU's
    (CONFIG_ACPI_TABLE_UPGRADE), because its OEM revision is higher.
    """

    def apic_id(index):
        out, shift = 0, 0
        for key in ("threads", "cores", "dies", "sockets"):
            out |= index % smp[key] << shift
            index //= smp[key]
            shift += (smp[key] - 1).bit_length()
        return out

    body = struct.pack("<II", 0xFEE00000, 1)
    for index in order:
        body += struct.pack("<BBBBI", 0, 8, index, apic_id(index), 1)
    body += struct.pack("<BBBBII", 1, 12, 0, 0, 0xFEC00000, 0)
    for irq, gsi, flags in ((0, 2, 0), (5, 5, 13), (9, 9, 13), (10, 10, 13), (11, 11, 13)):
        body += struct.pack("<BBBBIH", 2, 10, 0, irq, gsi, flags)
    body += struct.pack("<BBBHB", 4, 6, 255, 0, 1)
    table = bytearray(
        struct.pack(
            "<4sIBB6s8sI4sI", b"APIC", 36 + len(body), 1, 0, b"BOCHS ", b"BXPC    ", 2, b"BXPC", 1
        )
        + body
    )
    table[9] = -sum(table) & 255
    return bytes(table)


def topology_args(topo, pass_fds, proxy_ok):
    """QEMU arguments for the CPUs, nodes, distances and PCI devices of a topology."""
    smp = dict(topo.get("smp", {}))
    nodes = topo["nodes"]
    cpus = [c for n in nodes for c in cpu_list(n.get("cpus"))]
    if sorted(cpus) != list(range(len(cpus))):
        raise Error("the nodes' cpus must be 0..n-1, each once")
    for key in ("sockets", "dies", "cores", "threads"):
        smp.setdefault(key, 1)
    if smp["sockets"] * smp["dies"] * smp["cores"] * smp["threads"] != len(cpus):
        raise Error("smp says %r but the nodes have %d cpus" % (smp, len(cpus)))
    # order[linux CPU number] = QEMU's CPU index
    order = list(range(len(cpus)))
    if topo.get("numbering", "siblings-adjacent") == "siblings-last":
        order = sorted(order, key=lambda i: (i % smp["threads"], i))
    args = ["-smp", "%d,%s" % (len(cpus), ",".join("%s=%d" % kv for kv in smp.items()))]
    functions, fake_ids = [], {}
    devices = topo.get("devices", [])
    for d in devices:
        if d["kind"] not in KINDS:
            raise Error("unknown device kind %r; known: %s" % (d["kind"], ", ".join(sorted(KINDS))))
    shared = proxy_ok and any(KINDS[d["kind"]][0] == "proxy" for d in devices)
    total = 0
    for i, n in enumerate(nodes):
        size = parse_size(n.get("memory", 0))
        total += size
        spec = "node,nodeid=%d" % i
        spec += "".join(",cpus=" + x for x in spans(order[c] for c in cpu_list(n.get("cpus"))))
        if size:
            # x-pci-proxy-dev sends RAM's descriptors to its peer, so RAM must have one.
            args += [
                "-object",
                "memory-backend-%s,id=m%d,size=%d"
                % ("memfd,share=on" if shared else "ram", i, size),
            ]
            spec += ",memdev=m%d" % i
        if "initiator" in n:
            spec += ",initiator=%d" % n["initiator"]
        args += ["-numa", spec]
    for i, row in enumerate(topo.get("distance", [])):
        for j, value in enumerate(row):
            if i != j:
                args += ["-numa", "dist,src=%d,dst=%d,val=%d" % (i, j, value)]
    initiators = [i for i, n in enumerate(nodes) if n.get("cpus")]
    for kind, key, unit in (("latency", "latency_ns", ""), ("bandwidth", "bandwidth_mb", "M")):
        for src, row in zip(initiators, topo.get("hmat", {}).get(key, [])):
            for dst, value in enumerate(row):
                args += [
                    "-numa",
                    "hmat-lb,initiator=%d,target=%d,hierarchy=memory,"
                    "data-type=access-%s,%s=%d%s" % (src, dst, kind, kind, value, unit),
                ]
    args += ["-m", str(total >> 20)]
    hosts, switches, ports = {}, {}, 0
    for i, d in enumerate(devices):
        node = d.get("node")
        key = (node, d.get("root", 0))
        if node is None:
            parent = "pcie.0"  # no _PXM in ACPI: sysfs says numa_node -1
        elif key not in hosts:
            parent = hosts[key] = "host%d" % len(hosts)
            args += [
                "-device",
                "pxb-pcie,id=%s,bus=pcie.0,bus_nr=%d,numa_node=%d"
                % (parent, 0x10 + 0x10 * (len(hosts) - 1), node),
            ]
        else:
            parent = hosts[key]
        if "switch" in d:
            sw = (key, d["switch"])
            if sw not in switches:
                switches[sw] = "sw%d" % len(switches)
                args += [
                    "-device",
                    "pcie-root-port,id=rp%d,bus=%s,chassis=%d,slot=%d"
                    % (ports, parent, ports + 1, ports),
                    "-device",
                    "x3130-upstream,id=%s,bus=rp%d" % (switches[sw], ports),
                ]
                ports += 1
            args += [
                "-device",
                "xio3130-downstream,id=rp%d,bus=%s,chassis=%d,slot=%d"
                % (ports, switches[sw], ports + 1, ports),
            ]
        else:
            args += [
                "-device",
                "pcie-root-port,id=rp%d,bus=%s,chassis=%d,slot=%d"
                % (ports, parent, ports + 1, ports),
            ]
        model, ids = KINDS[d["kind"]]
        if model == "proxy" and proxy_ok:
            f = PciFunction(ids)
            functions.append(f)
            pass_fds.append(f.peer.fileno())
            model = "x-pci-proxy-dev,fd=%d" % f.peer.fileno()
        elif model == "proxy":
            model = "pci-testdev"
            fake_ids[ports] = ids
        args += ["-device", "%s,id=dev%d,bus=rp%d" % (model, i, ports)]
        ports += 1
    table = madt(smp, order) if order != sorted(order) else None
    return args, functions, table, fake_ids
