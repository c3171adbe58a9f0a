"""Writes the sysfs and proc files of a machine that is described in a few lines, below any root.

    build(Shape(nodes=(NodeSpec(0, "0-3,8-11"), NodeSpec(1, "4-7,12-15", package=1)),
                cores=paired(8), gpus=(GpuSpec("0000:17:00.0", 0),)), root)

Names and texts are the kernel's: Documentation/ABI/stable/sysfs-devices-node,
ABI/testing/sysfs-devices-system-cpu, ABI/testing/sysfs-bus-pci, drivers/base/{node,topology,
cacheinfo}.c, and of NVIDIA's open modules kernel-open/nvidia/nv-procfs.c. Lists and masks are
written here by other code than numabind's, so that the two check each other.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from machines.spec import CardSpec, GpuSpec, NodeSpec, Shape, ids, text_list, text_mask

CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"


def build(shape: Shape, root: Path) -> Path:
    """Write the machine below `root`, which is made if it is not there. Returns `root`."""
    writer = _Writer(shape, root)
    writer.cpus()
    if "node" not in shape.omit:
        writer.nodes()
    writer.devices()
    if "proc" not in shape.omit:
        writer.proc()
    for path, text in shape.files:
        if text is None:
            (root / path).unlink()
        else:
            writer.write(path, text)
    return root


class _Writer:
    def __init__(self, shape: Shape, root: Path) -> None:
        self.shape, self.root = shape, root
        self.made: set[str] = set()
        self.above: dict[str, str] = {}
        present = sorted(n for node in shape.nodes for n in ids(node.cpus))
        self.present = present
        self.possible = ids(shape.possible_cpus or f"0-{present[-1]}")
        self.bits = self.possible[-1] + 1  # nr_cpu_ids
        self.online = set(present) - set(ids(shape.offline_cpus))
        self.home = {n: node for node in shape.nodes for n in ids(node.cpus)}
        self.core_of: dict[int, tuple[int, ...]] = {n: (n,) for n in present}
        self.texts: dict[tuple[int, ...], tuple[str, str]] = {}
        for core in shape.cores:
            members = tuple(ids(core))
            self.core_of.update((n, members) for n in members if n in self.home)

    def write(self, path: str, text: str | bytes) -> None:
        folder = path.rpartition("/")[0]
        if folder not in self.made:
            (self.root / folder).mkdir(parents=True, exist_ok=True)
            self.made.add(folder)
        file = os.open(f"{self.root}/{path}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.write(file, text.encode() if isinstance(text, str) else text)
        os.close(file)

    def lines(self, base: str, **files: object) -> None:
        for name, value in files.items():
            self.write(f"{base}/{name}", f"{value}\n")

    def link(self, path: str, target: str) -> None:
        """Make a relative link at `path` to `target`, both relative to the root."""
        full = self.root / path
        full.parent.mkdir(parents=True, exist_ok=True)
        full.symlink_to(os.path.relpath(target, os.path.dirname(path)))

    def sets(self, base: str, numbers: Iterable[int], *names: tuple[str, str]) -> None:
        """The same CPUs as (list file, mask file), each pair once."""
        key = tuple(numbers)
        if key not in self.texts:
            here = set(key) & self.online
            self.texts[key] = text_list(here), text_mask(here, self.bits)
        for files in names:
            self.lines(base, **dict(zip(files, self.texts[key], strict=True)))

    def cpus(self) -> None:
        self.lines(
            CPU,
            online=text_list(self.online),
            possible=text_list(self.possible),
            present=text_list(self.present),
            offline=text_list(set(self.possible) - self.online),
            kernel_max=8191,
        )
        packages: dict[int, list[int]] = {}
        numbers: dict[tuple[int, ...], int] = {}  # core_id counts from 0 in each package
        for n in self.present:
            inside = packages.setdefault(self.home[n].package, [])
            inside.append(n)
            if self.core_of[n] not in numbers:
                numbers[self.core_of[n]] = sum(self.core_of[m][0] == m for m in inside) - 1
        l3_of = {}
        for node in self.shape.nodes:
            for i, members in enumerate(node.l3 or (node.cpus,)):
                l3_of.update({n: (node.id << 8 | i, ids(members)) for n in ids(members)})
        for n in self.present:
            base = f"{CPU}/cpu{n}"
            if n:
                self.lines(base, online=int(n in self.online))
            else:
                (self.root / base).mkdir(parents=True, exist_ok=True)
            if "node" not in self.shape.omit:
                name = f"node{self.home[n].id}"
                self.link(f"{base}/{name}", f"{NODE}/{name}")
            if n not in self.online:  # the hotplug callbacks take topology and cache away
                continue
            if "topology" not in self.shape.omit:
                self.topology(n, packages[self.home[n].package], numbers[self.core_of[n]])
            if "cache" not in self.shape.omit:
                self.caches(n, *l3_of[n])

    def topology(self, n: int, package: list[int], core_id: int) -> None:
        base = f"{CPU}/cpu{n}/topology"
        self.lines(base, physical_package_id=self.home[n].package, core_id=core_id, die_id=0)
        self.sets(base, self.core_of[n], ("thread_siblings_list", "thread_siblings"))
        self.sets(base, package, ("core_siblings_list", "core_siblings"))
        if "package-lists" not in self.shape.omit:
            self.sets(base, self.core_of[n], ("core_cpus_list", "core_cpus"))
            self.sets(
                base, package, ("package_cpus_list", "package_cpus"), ("die_cpus_list", "die_cpus")
            )

    def caches(self, n: int, l3_id: int, l3: list[int]) -> None:
        own = self.core_of[n]
        table = (
            (1, "Data", 48, own[0], own),
            (1, "Instruction", 32, own[0], own),
            (2, "Unified", 2048, own[0], own),
            (3, "Unified", self.shape.l3_kib, l3_id, l3),
        )
        for i, (level, kind, size, number, shared) in enumerate(table):
            base = f"{CPU}/cpu{n}/cache/index{i}"
            self.lines(base, level=level, type=kind, size=f"{size}K", id=number)
            self.sets(base, shared, ("shared_cpu_list", "shared_cpu_map"))

    def distance(self, a: NodeSpec, b: NodeSpec) -> int:
        """10 to itself, 12 in the package, 21 across, 80 where a side has no CPUs."""
        if a.id == b.id:
            return 10
        if not (a.cpus and b.cpus):
            return 80
        return 12 if a.package == b.package else 21

    def nodes(self) -> None:
        nodes = self.shape.nodes
        known = [node.id for node in nodes]
        memory = text_list(node.id for node in nodes if node.memory_kib)
        self.lines(
            NODE,
            online=text_list(known),
            possible=self.shape.possible_nodes or text_list(range(max(known) + 1)),
            has_cpu=text_list(node.id for node in nodes if self.online & set(ids(node.cpus))),
            has_memory=memory,
            has_normal_memory=memory,
            has_generic_initiator=text_list(n.id for n in nodes if n.kind == "initiator"),
        )
        for node in nodes:
            base = f"{NODE}/node{node.id}"
            if "cpulist" in self.shape.omit:
                here = set(ids(node.cpus)) & self.online
                self.lines(base, cpumap=text_mask(here, self.bits))
            else:
                self.sets(base, ids(node.cpus), ("cpulist", "cpumap"))
            if "distance" not in self.shape.omit:
                line = node.distances or [self.distance(node, other) for other in nodes]
                self.lines(base, distance=" ".join(map(str, line)))
            self.write(f"{base}/meminfo", _meminfo(node.memory_kib, f"Node {node.id} "))
            for n in ids(node.cpus):
                self.link(f"{base}/cpu{n}", f"{CPU}/cpu{n}")

    def devices(self) -> None:
        (self.root / "sys/bus/pci/devices").mkdir(parents=True, exist_ok=True)
        nvidia = 0
        taken = {gpu.pci[:-5] for gpu in self.shape.gpus}
        for gpu in self.shape.gpus:
            domain, number, _ = gpu.pci.split(":")
            bus = top = int(number, 16)
            while f"{domain}:{top:02x}" in taken and top:
                top -= 1  # the free bus below a run of GPUs is where their root ports are
            above = f"sys/devices/pci{domain}:{top:02x}"
            if bus:
                port = f"{domain}:{top:02x}:{bus - top:02x}.0"
                above += f"/{port}"
                bridge = replace(
                    gpu, pci=port, vendor=0x8086, device=0x352A, klass=0x060400, driver="pcieport"
                )
                if above not in self.made:
                    self.device(bridge, above, _config(bridge, (top, bus, bus)))
            self.device(gpu, f"{above}/{gpu.pci}", _config(gpu))
            if gpu.driver == "nvidia" and "proc" not in self.shape.omit:
                self.nvidia(gpu, nvidia if gpu.minor is None else gpu.minor)
                nvidia += 1
            elif gpu.driver == "amdgpu":
                self.amd(gpu, f"{above}/{gpu.pci}")
            elif gpu.driver == "xe":
                minor = 128 + self.shape.gpus.index(gpu) if gpu.minor is None else gpu.minor
                self.lines(f"{above}/{gpu.pci}/drm/renderD{minor}", dev=f"226:{minor}")
                for tile in range(gpu.parts):
                    self.lines(f"{above}/{gpu.pci}/tile{tile}", physical_vram_size_bytes="0x0")
            elif gpu.driver == "habanalabs":
                index = self.shape.gpus.index(gpu) if gpu.minor is None else gpu.minor
                self.lines(f"{above}/{gpu.pci}/accel/accel{index}", dev=f"261:{index}")
                if gpu.module is not None:
                    self.lines(f"{above}/{gpu.pci}", module_id=gpu.module)
            elif gpu.driver == "devdrv_device":
                self.lines(f"{above}/{gpu.pci}", devdrv_sysfs_bdf_to_devid=self.ascend())
            self.above[gpu.pci] = above
        for card in self.shape.cards:
            self.card(card)
        if self.shape.kfd:
            self.kfd()

    def amd(self, gpu: GpuSpec, base: str) -> None:
        """amdgpu_gfx.c and amdgpu_gmc.c: the partition files; a render node for each partition."""
        if gpu.unique:
            self.lines(base, unique_id=gpu.unique, product_name=gpu.name)
        if gpu.modes:
            compute, memory = gpu.modes
            self.lines(base, current_compute_partition=compute, current_memory_partition=memory)
        minor = self.first_minor(gpu)
        self.lines(f"{base}/drm/renderD{minor}", dev=f"226:{minor}")

    def ascend(self) -> str:
        """devdrv_sysfs.c of Huawei's driver: each NPU has the table of all."""
        own = [gpu for gpu in self.shape.gpus if gpu.driver == "devdrv_device"]
        rows = [f"{gpu.pci[5:]}  {gpu.minor!s:<6} {gpu.minor!s:<5}" for gpu in own]
        return "\n".join(["bdf      udevid add_id", *rows])

    def first_minor(self, gpu: GpuSpec) -> int:
        if gpu.minor is not None:
            return gpu.minor
        before = self.shape.gpus[: self.shape.gpus.index(gpu)]
        return 128 + sum(other.parts for other in before)

    def kfd(self) -> None:
        """kfd_topology.c: a node for each NUMA node with CPUs, then one for each GPU partition."""
        base = "sys/class/kfd/kfd/topology/nodes"
        count = sum(bool(node.cpus) for node in self.shape.nodes)
        for number in range(count):
            self.lines(f"{base}/{number}", gpu_id=0, properties="cpu_cores_count 8\nsimd_count 0")
        for gpu in self.shape.gpus:
            if gpu.driver != "amdgpu":
                continue
            domain, bus, rest = gpu.pci.split(":")
            place = int(bus, 16) << 8 | int(rest[:2], 16) << 3 | int(rest[3:], 16)
            for part in range(gpu.parts):
                facts = {
                    "cpu_cores_count": 0,
                    "simd_count": 304 // gpu.parts,
                    "location_id": part << 28 | place,
                    "domain": int(domain, 16),
                    "drm_render_minor": self.first_minor(gpu) + part,
                    "unique_id": int(gpu.unique or "0", 16) + part,
                }
                text = "\n".join(f"{name} {value}" for name, value in facts.items())
                self.lines(f"{base}/{count}", gpu_id=4096 + count, properties=text)
                count += 1

    def card(self, card: CardSpec) -> None:
        domain, number, _ = card.pci.split(":")
        above = f"sys/devices/pci{domain}:{number}"
        if card.switch is not None:
            above = self.above[card.switch]
        function = GpuSpec(
            card.pci, card.numa_node, card.vendor, card.device, card.klass, driver=None
        )
        self.device(function, f"{above}/{card.pci}", _config(function))
        for name in card.names.split():
            (self.root / f"{above}/{card.pci}/{name}").mkdir(parents=True)

    def device(self, gpu: GpuSpec, base: str, config: bytes) -> None:
        self.lines(
            base,
            vendor=f"0x{gpu.vendor:04x}",
            device=f"0x{gpu.device:04x}",
            **{"class": f"0x{gpu.klass:06x}"},
            subsystem_vendor=f"0x{gpu.vendor:04x}",
            subsystem_device="0x0000",
            current_link_speed=gpu.link[0],
            current_link_width=gpu.link[1],
            max_link_speed=gpu.link[0],
            max_link_width=gpu.link[1],
        )
        self.write(f"{base}/config", config)
        if "numa_node" not in self.shape.omit:
            self.lines(base, numa_node=gpu.numa_node)
        near = self.local_cpus(gpu)
        self.lines(base, local_cpus=text_mask(near, self.bits))
        if not self.shape.omit & {"cpulist", "local_cpulist"}:
            self.lines(base, local_cpulist=text_list(near))
        if gpu.driver:
            driver = f"sys/bus/pci/drivers/{gpu.driver}"
            (self.root / driver).mkdir(parents=True, exist_ok=True)
            self.link(f"{base}/driver", driver)
        self.link(f"sys/bus/pci/devices/{gpu.pci}", base)

    def local_cpus(self, gpu: GpuSpec) -> set[int]:
        """local_cpus_show in drivers/pci/pci-sysfs.c: all online CPUs where the node is -1."""
        if gpu.local_cpulist is not None:
            return set(ids(gpu.local_cpulist))
        if gpu.numa_node < 0 or "node" in self.shape.omit:
            return self.online
        return {n for n in self.online if self.home[n].id == gpu.numa_node}

    def nvidia(self, gpu: GpuSpec, minor: int) -> None:
        base = f"proc/driver/nvidia/gpus/{gpu.pci}"
        told = f"GPU UUID: \t {gpu.unique}\n" if gpu.unique else ""
        self.write(
            f"{base}/information",
            f"Model: \t\t {gpu.name}\nIRQ:   \t\t {100 + minor}\n{told}"
            "Video BIOS: \t 96.00.89.00.01\nBus Type: \t PCIe\nDMA Size: \t 52 bits\n"
            f"DMA Mask: \t 0xfffffffffffff\nBus Location: \t {gpu.pci}\n"
            f"Device Minor: \t {minor}\nGPU Firmware: \t 550.54.15\nGPU Excluded:\t No\n",
        )
        if gpu.memory_node is not None:
            status = f"Node:      {gpu.memory_node}\nStatus:    online\n"
            self.write(f"{base}/numa_status", status)

    def proc(self) -> None:
        shape = self.shape
        memory = text_list(node.id for node in shape.nodes if node.memory_kib)
        cpus = self.online if shape.allowed_cpus is None else ids(shape.allowed_cpus)
        mems = ids(memory if shape.allowed_nodes is None else shape.allowed_nodes)
        width = 1024  # MAX_NUMNODES
        if "node" in shape.omit:
            mems, width = [0], 1
        self.write(
            "proc/self/status",
            "Name:\tpython3\nUmask:\t0022\nState:\tR (running)\nTgid:\t4242\nPid:\t4242\n"
            f"Threads:\t1\nCpus_allowed:\t{text_mask(cpus, self.bits)}\n"
            f"Cpus_allowed_list:\t{text_list(cpus)}\nMems_allowed:\t{text_mask(mems, width)}\n"
            f"Mems_allowed_list:\t{text_list(mems)}\n"
            "voluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t0\n",
        )
        self.lines("proc/self", cgroup=f"0::{shape.cgroup}")
        if shape.cpu_max is not None:
            self.lines(f"sys/fs/cgroup{shape.cgroup.rstrip('/')}", **{"cpu.max": shape.cpu_max})
        self.lines("proc/sys/kernel/random", boot_id=shape.boot_id)
        self.lines("proc/sys/kernel", hostname=shape.hostname, osrelease="6.8.0-45-generic")
        if "node" not in shape.omit:
            self.lines("proc/sys/kernel", numa_balancing=shape.numa_balancing)
        self.write("proc/meminfo", _meminfo(sum(node.memory_kib for node in shape.nodes), ""))


def _meminfo(kib: int, prefix: str) -> str:
    rows = {"MemTotal": kib, "MemFree": kib * 9 // 10}
    if prefix:
        rows["MemUsed"] = kib - rows["MemFree"]
    return "".join(f"{prefix}{name + ':':<15} {value:8d} kB\n" for name, value in rows.items())


def _config(gpu: GpuSpec, buses: tuple[int, ...] = ()) -> bytes:
    """The header of PCI configuration space; a bridge has primary, secondary, last bus."""
    head = bytearray(64)
    head[0:2], head[2:4] = gpu.vendor.to_bytes(2, "little"), gpu.device.to_bytes(2, "little")
    head[9:12] = gpu.klass.to_bytes(3, "little")
    if buses:
        head[0x0E] = 1
        head[0x18:0x1B] = bytes(buses)
    return bytes(head)
