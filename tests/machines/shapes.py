"""Every machine that the tests know, by name: `SHAPES["hgx_h100"]`, and generators for the others.

A comment names the public source of a machine: of its nodes, CPUs and which GPU is where. What the
source does not say (PCI addresses, memory, caches, often the GPU model) is made up. "Made up" alone
is a machine that could be.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from machines.spec import GpuSpec, NodeSpec, Shape, adjacent, paired, text_list

GIB = 1 << 20  # in KiB

A100 = GpuSpec("", device=0x20B2, name="NVIDIA A100-SXM4-80GB", link=("16.0 GT/s PCIe", 16))
A100_PCIE = replace(A100, device=0x20B5, name="NVIDIA A100 80GB PCIe")
H100 = GpuSpec("")
GB200 = replace(H100, device=0x2941, name="NVIDIA GB200")
V100 = replace(A100, device=0x1DB1, name="Tesla V100-SXM2-16GB", link=("8.0 GT/s PCIe", 16))
P100 = replace(V100, device=0x15F8, name="Tesla P100-PCIE-16GB")
RTX3090 = replace(A100, device=0x2204, klass=0x030000, name="NVIDIA GeForce RTX 3090")
L40S = replace(A100, device=0x26B9, name="NVIDIA L40S")
T400 = replace(A100, device=0x1FF2, klass=0x030000, name="NVIDIA T400 4GB")
MI300X = replace(
    H100, vendor=0x1002, device=0x74A1, klass=0x120000, name="AMD Instinct MI300X", driver="amdgpu"
)
BMC = replace(V100, vendor=0x1A03, device=0x2000, klass=0x030000, name="", driver="ast")


def span(first: int, count: int) -> str:
    """The `count` CPUs from `first` on: "16-31"."""
    return text_list(range(first, first + count))


def smt(first: int, count: int, offset: int) -> str:
    """The same with their siblings `offset` higher: "0-3,8-11"; offset 0 is no SMT."""
    return (
        span(first, count) if not offset else f"{span(first, count)},{span(first + offset, count)}"
    )


def even_nodes(
    nodes: int, cores: int, *, offset: int = 0, l3_cores: int = 0, packages: int = 0
) -> tuple[NodeSpec, ...]:
    """Nodes of `cores` cores each in order, L3s of `l3_cores` (0: one a node)."""
    packages = packages or nodes
    step = l3_cores or cores
    return tuple(
        NodeSpec(
            n,
            smt(n * cores, cores, offset),
            n * packages // nodes,
            l3=tuple(smt(c, step, offset) for c in range(n * cores, (n + 1) * cores, step)),
        )
        for n in range(nodes)
    )


def gpus(kind: GpuSpec, addresses: str, nodes: Sequence[int]) -> tuple[GpuSpec, ...]:
    """One GPU of this kind for each address, on the node of the same place."""
    pairs = zip(addresses.split(), nodes, strict=True)
    return tuple(replace(kind, pci=_pci(a), numa_node=n) for a, n in pairs)


def _pci(address: str) -> str:
    if ":" in address:
        return address
    return f"0000:{address}:00.0"


def pytorch_grid(
    sockets: int, nodes_per_socket: int, gpus_per_node: int, l3_per_node: int, cores_per_l3: int
) -> Shape:
    """The machines of PyTorch's test/test_numa_binding.py, numbered as there.

    CPUs count up by socket, node, L3, core, two adjacent threads a core; GPUs by node. Their PCI
    addresses are made up.
    """
    nodes = []
    size = 2 * cores_per_l3
    for n in range(sockets * nodes_per_socket):
        first = n * l3_per_node * size
        starts = range(first, first + l3_per_node * size, size)
        l3 = tuple(span(start, size) for start in starts)
        cpus = span(first, l3_per_node * size)
        nodes.append(NodeSpec(n, cpus, n // nodes_per_socket, l3=l3))
    count = len(nodes) * gpus_per_node
    buses = " ".join(f"{3 + 3 * i:02x}" for i in range(count))
    on = [n for n in range(len(nodes)) for _ in range(gpus_per_node)]
    cores = adjacent(len(nodes) * l3_per_node * cores_per_l3)
    return Shape(tuple(nodes), cores, gpus(H100, buses, on))


def big(nodes: int = 64, cpus: int = 4096) -> Shape:
    """A machine to measure scaling on: SMT N/N + half, 8-core L3s, a GPU on every node. Made up."""
    cores = cpus // 2
    each = cores // nodes
    l3_cores = 8 if each % 8 == 0 else 0
    specs = even_nodes(nodes, each, offset=cores, l3_cores=l3_cores, packages=max(nodes // 4, 1))
    buses = " ".join(f"{3 + 3 * i:02x}" for i in range(nodes))
    return Shape(specs, paired(cores), gpus(H100, buses, range(nodes)))


def even_odd(cores: int, addresses: str, on: Sequence[int], kind: GpuSpec) -> Shape:
    """Two sockets of which one has the even CPUs, the other the odd ones; siblings N/N + cores."""
    lists = [text_list(range(n, 2 * cores, 2)) for n in (0, 1)]
    nodes = tuple(NodeSpec(n, lists[n], n) for n in (0, 1))
    return Shape(nodes, paired(cores), gpus(kind, addresses, on))


def memory_nodes(numbers: Iterable[int], kind: str, gib: int) -> tuple[NodeSpec, ...]:
    """Nodes without CPUs: "gpu" memory, other "memory", or an "initiator"."""
    return tuple(NodeSpec(n, memory_kib=gib * GIB, kind=kind) for n in numbers)  # type: ignore[arg-type]


_GB_GPUS = tuple(
    replace(GB200, pci=pci, numa_node=node, memory_node=memory)
    for pci, node, memory in (
        ("0008:06:00.0", 0, 2),
        ("0009:06:00.0", 0, 10),
        ("0018:01:00.0", 1, 18),
        ("0019:01:00.0", 1, 26),
    )
)
_GRACE = (NodeSpec(0, span(0, 72), 0, 480 * GIB), NodeSpec(1, span(72, 72), 1, 480 * GIB))
_SIXTEEN = (NodeSpec(0, "0-7"), NodeSpec(1, "8-15", 1))
_TWO = Shape(_SIXTEEN, gpus=gpus(H100, "17 b3", (0, 1)))
_DUAL64 = Shape(
    even_nodes(2, 64, offset=128, l3_cores=8),
    paired(128),
    gpus(H100, "07 0f 47 4e 87 90 b7 bd", (0, 0, 0, 0, 1, 1, 1, 1)),
)

SHAPES: dict[str, Shape] = {
    # Made up: a laptop; firmware of one-node machines gives devices -1.
    "one_node": Shape(
        (NodeSpec(0, "0-15", 0, 32 * GIB),),
        adjacent(8),
        gpus(
            replace(RTX3090, device=0x2520, name="NVIDIA GeForce RTX 3060 Laptop GPU"), "01", (-1,)
        ),
    ),
    # Made up: 2x64 cores, 8-core L3s, siblings N/N+128, four GPUs a node.
    "two_socket": _DUAL64,
    # Made up: 2x48 cores, two sub-NUMA clusters a socket, a GPU on each.
    "snc2_smt": Shape(
        even_nodes(4, 24, offset=96, packages=2),
        paired(96),
        gpus(L40S, "16 2a 97 ab", (0, 1, 2, 3)),
    ),
    # vllm-project/vllm#25848: GPUs on nodes 0 (0-23,144-167) and 2 (48-71,192-215).
    "snc3": Shape(
        even_nodes(6, 24, offset=144, packages=2), paired(144), gpus(H100, "19 5d", (0, 2))
    ),
    # NVIDIA DGX A100 User Guide, topology: 2 EPYC 7742 in NPS4, GPUs on 3,3,1,1,7,7,5,5.
    "nps4": Shape(
        even_nodes(8, 16, offset=128, l3_cores=4, packages=2),
        paired(128),
        gpus(A100, "07 0f 47 4e 87 90 b7 bd", (3, 3, 1, 1, 7, 7, 5, 5)),
        l3_kib=16384,
    ),
    # vllm-project/vllm#39361: GPU memory is nodes 2,10,18,26 of 34.
    "gb200": Shape(
        (*_GRACE, *memory_nodes((2, 10, 18, 26), "gpu", 188)),
        gpus=_GB_GPUS,
        possible_nodes="0-33",
        l3_kib=116736,
    ),
    # kubernetes/kubernetes#135581: the same with all 34 nodes online, 28 of them without memory.
    "gb200_all_online": Shape(
        (
            *_GRACE,
            *(
                NodeSpec(n, memory_kib=188 * GIB if n % 8 == 2 else 0, kind="initiator")
                for n in range(2, 34)
            ),
        ),
        gpus=_GB_GPUS,
        l3_kib=116736,
    ),
    # bytedance/xpu-perf#129: lscpu of a GH200 has nodes 0-8, CPUs on node 0 only.
    "gh200": Shape(
        (
            NodeSpec(0, span(0, 72), 0, 480 * GIB),
            NodeSpec(1, memory_kib=95 * GIB, kind="initiator"),
            *memory_nodes(range(2, 9), "initiator", 0),
        ),
        gpus=(
            replace(
                H100,
                pci="0009:01:00.0",
                numa_node=0,
                device=0x2342,
                name="NVIDIA GH200 480GB",
                memory_node=1,
            ),
        ),
        l3_kib=116736,
    ),
    # LLNL Lassen (mpibind's coral-lassen.xml): POWER9, SMT4, nodes 0 and 8, GPU memory 252-255.
    "power9": Shape(
        (
            *(
                NodeSpec(
                    8 * n,
                    span(88 * n, 88),
                    8 * n,
                    l3=tuple(span(c, 8) for c in range(88 * n, 88 * n + 88, 8)),
                )
                for n in (0, 1)
            ),
            *memory_nodes((252, 253, 254, 255), "gpu", 16),
        ),
        adjacent(44, 4),
        tuple(
            replace(V100, pci=pci, numa_node=node, memory_node=memory)
            for pci, node, memory in (
                ("0004:04:00.0", 0, 255),
                ("0004:05:00.0", 0, 254),
                ("0035:03:00.0", 8, 253),
                ("0035:04:00.0", 8, 252),
            )
        ),
        l3_kib=10240,
    ),
    # oneapi-src/unified-memory-framework#1289: Xeon Max, flat SNC4, HBM nodes 8-15. GPUs made up.
    "xeon_max": Shape(
        (*even_nodes(8, 12, offset=96, packages=2), *memory_nodes(range(8, 16), "memory", 16)),
        paired(96),
        gpus(L40S, "16 97", (0, 4)),
    ),
    # Made up: node 1 has CPUs and a GPU but no DIMM.
    "memoryless": replace(_TWO, nodes=(_SIXTEEN[0], replace(_SIXTEEN[1], memory_kib=0))),
    # Made up: a CXL expander is node 2.
    "cpuless": replace(_TWO, nodes=(*_SIXTEEN, *memory_nodes((2,), "memory", 128))),
    # Made up: the second GPU hangs off a node without CPUs, so its local_cpulist is empty.
    "gpu_on_cpuless": replace(
        _TWO,
        nodes=(
            *_SIXTEEN,
            NodeSpec(2, memory_kib=128 * GIB, kind="memory", distances=(28, 17, 10)),
        ),
        gpus=gpus(H100, "17 b3", (0, 2)),
    ),
    # Made up: node numbers with gaps, as sub-NUMA clusters without DIMMs leave.
    "sparse": Shape(
        (NodeSpec(0, "0-3"), NodeSpec(2, "4-7"), NodeSpec(5, "8-11", 1)),
        gpus=gpus(H100, "17 5d b3", (0, 2, 5)),
        possible_nodes="0-7",
    ),
    # Made up: one thread of core 1, all of core 5, and CPU slots that were never filled.
    "offline_cpus": Shape(
        (NodeSpec(0, "0-3,8-11"), NodeSpec(1, "4-7,12-15", 1)),
        paired(8),
        gpus(H100, "17 b3", (0, 1)),
        offline_cpus="5,9,13",
        possible_cpus="0-31",
    ),
    # Made up: all CPUs of node 1 are offline; numa_node still says 1.
    "node_offline": replace(_TWO, offline_cpus="8-15"),
    # LLNL Pascal (mpibind's cts1-pascal.xml): 2x18 cores, both P100 on node 0. Addresses made up.
    "all_gpus_on_one_node": Shape(
        even_nodes(2, 18, offset=36), paired(36), gpus(P100, "04 07", (0, 0))
    ),
    # sgl-project/sglang#31317: a VM of 188 CPUs that tells nothing of where its GPUs are.
    "all_minus_one": Shape(even_nodes(2, 94), gpus=gpus(H100, "05 09 0d 11", (-1,) * 4)),
    # NVIDIA DGX H100 User Guide: 2 Xeon 8480C, 56 cores each; 1b..61 on node 0, 9d..df on node 1.
    "hgx_h100": Shape(
        even_nodes(2, 56, offset=112),
        paired(112),
        gpus(H100, "1b 43 52 61 9d c3 d1 df", (0, 0, 0, 0, 1, 1, 1, 1)),
        l3_kib=107520,
    ),
    # rapidsai/dask-cuda#671: DGX-1, GPUs 0-3 with 0-19,40-59, GPUs 4-7 with 20-39,60-79.
    "dgx1": Shape(
        even_nodes(2, 20, offset=40),
        paired(40),
        gpus(V100, "06 07 0a 0b 85 86 89 8a", (0, 0, 0, 0, 1, 1, 1, 1)),
    ),
    # noonghunna/club-3090#46: GPU 0 alone on node 1, which has the lower addresses; four on node 0.
    "uneven": Shape(
        even_nodes(2, 8, offset=16),
        paired(16),
        gpus(RTX3090, "04 41 44 81 84", (1, 0, 0, 0, 0)),
    ),
    # 1CatAI/1Cat-vLLM#678: even CPUs on node 0, odd ones on node 1. Its core count is made up.
    "even_odd": even_odd(40, "18 3b 86 af", (0, 0, 1, 1), V100),
    # Made up: eight MI300X, four a socket of 96 cores, NPS1.
    "mi300x": Shape(
        even_nodes(2, 96, offset=192, l3_cores=8),
        paired(192),
        gpus(MI300X, "05 26 46 65 85 a6 c6 e5", (0, 0, 0, 0, 1, 1, 1, 1)),
    ),
    # Made up: a cloud VM of one node with a passed-through GPU, no caches shown.
    "vm_one_node": Shape(
        (NodeSpec(0, "0-7", 0, 64 * GIB),), adjacent(4), gpus(A100, "05", (-1,))
    ).without("cache"),
    # rapidsai/dask-cuda#1381: a Slurm job that holds node 0's CPUs, and a GPU of each node.
    "container": Shape(
        even_nodes(2, 64),
        gpus=gpus(A100, "21 c1", (0, 1)),
        allowed_cpus="0-63",
        allowed_nodes="0",
        cgroup="/system.slice/slurmstepd.scope/job_1/step_0/user/task_0",
    ),
    # Made up: a container with a quota of 4 CPUs on a machine of 16.
    "quota": replace(_TWO, cgroup="/docker/0123", cpu_max="400000 100000"),
    # Made up: a device behind Intel VMD, whose domains start at 10000.
    "hex_domain": replace(_TWO, gpus=gpus(H100, "17 10000:b3:00.0", (0, 1))),
    # Made up: 2 packages in NPS4, 8-core L3s, 384 CPUs, a GPU on each node; for benchmarks.
    "bench384": Shape(
        even_nodes(8, 24, offset=192, l3_cores=8, packages=2),
        paired(192),
        gpus(H100, "07 0f 47 4e 87 90 b7 bd", range(8)),
    ),
    # Made up: one EPYC 7763, 8-core L3s, siblings N/N+64, two GPUs on its one node.
    "amd_smt_ccx": Shape(
        even_nodes(1, 64, offset=64, l3_cores=8), paired(64), gpus(A100_PCIE, "21 c1", (0, 0))
    ),
    # Made up: an accelerator's own proximity domain (ACPI 6.3 Generic Initiator), no memory.
    "generic_initiator": replace(
        _TWO,
        nodes=(*_SIXTEEN, *memory_nodes((2,), "initiator", 0)),
        gpus=gpus(H100, "17 b3", (0, 2)),
    ),
    # Made up: numa_node says 1, local_cpulist node 0's CPUs. Mainline derives the second from the
    # first, so only an edited capture or a patched kernel shows this and the next.
    "contradiction": replace(_TWO, gpus=(_TWO.gpus[0], replace(_TWO.gpus[1], local_cpulist="0-7"))),
    # Made up: numa_node -1 beside a local_cpulist that tells.
    "minus_one_with_local_cpus": replace(
        _TWO,
        gpus=tuple(
            replace(gpu, numa_node=-1, local_cpulist=node.cpus)
            for gpu, node in zip(_TWO.gpus, _SIXTEEN, strict=True)
        ),
    ),
    # Made up: two models, so that CUDA's FASTEST_FIRST is not bus order.
    "unlike_gpus": replace(_TWO, gpus=(*gpus(L40S, "17", (0,)), *gpus(H100, "b3", (1,)))),
    # Made up: a display GPU (class 0300) and the board's own between two A100s.
    "display_gpu": replace(
        _TWO,
        gpus=(
            *gpus(A100_PCIE, "17", (0,)),
            *gpus(T400, "65", (0,)),
            *gpus(BMC, "69", (0,)),
            *gpus(A100_PCIE, "b3", (1,)),
        ),
    ),
    # Made up: no driver bound (vfio holds the second), so nothing but PCI is known.
    "no_driver": replace(
        _TWO, gpus=(replace(_TWO.gpus[0], driver=None), replace(_TWO.gpus[1], driver="vfio-pci"))
    ),
    # Made up: no accelerator at all.
    "no_gpu": replace(_TWO, gpus=()),
    # A kernel with CONFIG_NUMA off: no node directory, no numa_node.
    "no_numa_kernel": replace(_TWO, gpus=gpus(H100, "17 b3", (-1, -1))).without(
        "node", "numa_node"
    ),
    # Stripped captures and odd kernels: parts of the tree are missing.
    "masks_only": _DUAL64.without("cpulist", "package-lists"),
    "no_caches": _DUAL64.without("cache"),
    "no_proc": _TWO.without("proc"),
    "no_local_cpulist": _TWO.without("local_cpulist"),
    "bare": _TWO.without("topology", "cache", "distance", "proc"),
}
