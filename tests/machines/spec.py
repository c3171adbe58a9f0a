"""What a machine is made of, for `build`: a few lines for each, all frozen."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

Omit = Literal[
    "node",  # a kernel without NUMA: no node directory, no nodeN links
    "cpulist",  # nodes and devices have masks only
    "cache",  # no cache directories (many VMs)
    "package-lists",  # kernels before 5.3: neither package_cpus nor core_cpus
    "topology",  # no topology directories at all
    "distance",
    "proc",  # no /proc
    "local_cpulist",  # devices have local_cpus only
    "numa_node",  # devices have no numa_node: a kernel without NUMA
]


@dataclass(frozen=True)
class NodeSpec:
    """One NUMA node. `cpus` includes those that the shape takes offline.

    `l3` lists the CPUs of each L3; () is one L3 for the whole node. `kind` "initiator" puts the
    node in has_generic_initiator. `distances` is the kernel's line; None derives it.
    """

    id: int
    cpus: str = ""
    package: int = 0
    memory_kib: int = 256 << 20
    l3: tuple[str, ...] = ()
    kind: Literal["cpu", "memory", "gpu", "initiator"] = "cpu"
    distances: tuple[int, ...] | None = None


@dataclass(frozen=True)
class GpuSpec:
    """One PCI function. `local_cpulist` None is what the kernel derives from `numa_node`.

    `uuid` None derives a fixed one; "" is a driver that does not tell. `memory_node` is the GPU's
    own memory (numa_status). `driver` None is an unbound function. `parts` are AMD's compute
    partitions under `modes` ("CPX", "NPS4"), or Intel's tiles; `module` is a Gaudi's module id.
    """

    pci: str
    numa_node: int = -1
    vendor: int = 0x10DE
    device: int = 0x2330
    klass: int = 0x030200
    name: str = "NVIDIA H100 80GB HBM3"
    driver: str | None = "nvidia"
    local_cpulist: str | None = None
    uuid: str | None = None
    minor: int | None = None
    memory_node: int | None = None
    link: tuple[str, int] = ("32.0 GT/s PCIe", 16)
    parts: int = 1
    modes: tuple[str, str] | None = None
    module: int | None = None

    @property
    def unique(self) -> str:
        """The UUID: the given one, or one that depends on the address only."""
        if self.uuid is not None:
            return self.uuid
        made = uuid.uuid5(uuid.NAMESPACE_OID, self.pci)
        return f"{made.int >> 64:016x}" if self.vendor == 0x1002 else f"GPU-{made}"


@dataclass(frozen=True)
class CardSpec:
    """A NIC or NVMe controller, with what the kernel calls it: "infiniband/mlx5_0 net/eth0".

    `switch` names a GPU's address: the two are behind one PCIe switch.
    """

    pci: str
    numa_node: int = -1
    names: str = ""
    klass: int = 0x020700
    vendor: int = 0x15B3
    device: int = 0x1021
    switch: str | None = None


@dataclass(frozen=True)
class Shape:
    """A machine. Lists are written as the kernel writes them: "0-3,8".

    `cores` names the SMT siblings; a CPU in none is a core alone. `kfd` writes AMD's topology.
    `files` adds or, with None, removes files at the end: ("sys/.../cpulist", "0-\\n").
    """

    nodes: tuple[NodeSpec, ...]
    cores: tuple[str, ...] = ()
    gpus: tuple[GpuSpec, ...] = ()
    cards: tuple[CardSpec, ...] = ()
    kfd: bool = False
    offline_cpus: str = ""
    possible_cpus: str | None = None
    possible_nodes: str | None = None
    allowed_cpus: str | None = None
    allowed_nodes: str | None = None
    l3_kib: int = 32768
    cgroup: str = "/user.slice"
    cpu_max: str | None = None
    boot_id: str = "5f6ac3a2-7c1e-4f7e-9d58-0c8f3b1f2a10"
    hostname: str = "machine"
    numa_balancing: int = 0
    omit: frozenset[Omit] = frozenset()
    files: tuple[tuple[str, str | None], ...] = ()

    def without(self, *what: Omit) -> Shape:
        """The same machine with these parts not written."""
        return replace(self, omit=self.omit | frozenset(what))


def ids(text: str) -> list[int]:
    """The numbers of "0-3,8", in that order."""
    pairs = (part.partition("-") for part in text.split(",") if part)
    return [n for low, _, high in pairs for n in range(int(low), int(high or low) + 1)]


def text_list(numbers: Iterable[int]) -> str:
    """%*pbl of lib/vsprintf.c: "0-3,8"."""
    runs: list[list[int]] = []
    for n in sorted(set(numbers)):
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ",".join(f"{a}-{b}" if b > a else str(a) for a, b in runs)


def text_mask(numbers: Iterable[int], bits: int) -> str:
    """%*pb of lib/vsprintf.c: words of 32 bits, as many digits as `bits` asks for."""
    width = (bits + 3) // 4
    digits = f"{sum(1 << n for n in set(numbers)):0{width}x}"
    first = width % 8 or 8
    return ",".join([digits[:first], *(digits[i : i + 8] for i in range(first, width, 8))])


def paired(cores: int, first: int = 0) -> tuple[str, ...]:
    """SMT siblings numbered N and N + cores, as x86 firmware does."""
    return tuple(f"{n},{n + cores}" for n in range(first, first + cores))


def adjacent(cores: int, threads: int = 2) -> tuple[str, ...]:
    """SMT siblings numbered one after the other, as POWER and most VMs do."""
    return tuple(f"{n * threads}-{n * threads + threads - 1}" for n in range(cores))
