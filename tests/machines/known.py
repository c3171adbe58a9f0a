"""Machines beside those in `shapes`: vendors, partitions, tiles, odd surroundings.

A comment names the public source of nodes, CPUs and which device is where; what it does not say is
made up, and "made up" alone is a machine that could be.
"""

from __future__ import annotations

from dataclasses import replace

from machines.shapes import (
    A100_PCIE,
    GIB,
    H100,
    MI300X,
    SHAPES,
    V100,
    even_nodes,
    gpus,
    memory_nodes,
    span,
)
from machines.spec import CardSpec, GpuSpec, NodeSpec, Shape, adjacent, paired

B200 = replace(H100, device=0x2901, name="NVIDIA B200")
H200 = replace(H100, device=0x2335, name="NVIDIA H200")
MI250X = replace(MI300X, device=0x7408, klass=0x038000, name="AMD Instinct MI250X")
MAX1550 = GpuSpec("", vendor=0x8086, device=0x0BD5, klass=0x038000, name="", driver="xe", parts=2)
GAUDI2 = GpuSpec("", vendor=0x1DA3, device=0x1020, klass=0x120000, name="", driver="habanalabs")
ASCEND = GpuSpec("", vendor=0x19E5, device=0xD802, klass=0x120000, name="", driver="devdrv_device")
TRAINIUM = GpuSpec("", vendor=0x1D0F, device=0x7164, klass=0x088000, name="", driver="neuron")
TPU = GpuSpec("", vendor=0x1AE0, device=0x0063, klass=0xFF0000, name="", driver="vfio-pci")
ENGINE = GpuSpec("", vendor=0x1BCF, device=0x001C, klass=0x0B4000, name="", driver="ve_drv")

_DUAL96 = even_nodes(2, 96, offset=192, l3_cores=8)
_MI300X = gpus(MI300X, "05 26 46 65 85 a6 c6 e5", (0, 0, 0, 0, 1, 1, 1, 1))
# KFD gives each partition a number of its own, here one above the last.
_SPLIT = (
    replace(_MI300X[0], parts=8, modes=("CPX", "NPS4"), uuid="3d6b1a52b86bd000"),
    replace(_MI300X[4], parts=2, modes=("DPX", "NPS1"), uuid="3d6b1a52b86bd100"),
)

KNOWN: dict[str, Shape] = {
    # sgl-project/sglang#40055: GPUs on nodes 0,0,2,2,3,3,5,5 of six. 144 cores are made up.
    "b200_six_nodes": Shape(
        even_nodes(6, 24, offset=144, packages=2),
        paired(144),
        gpus(B200, "1b 43 52 61 9d c3 d1 df", (0, 0, 2, 2, 3, 3, 5, 5)),
    ),
    # NVIDIA DGX-2 User Guide: 2 Xeon 8168 with 24 cores each, 16 V100, eight a socket.
    "dgx2": Shape(
        even_nodes(2, 24, offset=48),
        paired(48),
        gpus(
            V100,
            "34 36 39 3b 57 59 5c 5e b7 b9 bc be e0 e2 e5 e7",
            (0,) * 8 + (1,) * 8,
        ),
    ),
    # 2 Xeon 8480C as in NVIDIA's DGX H100 User Guide, with sub-NUMA clustering: nodes of 28 cores.
    # Which GPU is on which half of a socket is made up.
    "hgx_h200_snc": Shape(
        even_nodes(4, 28, offset=112, packages=2),
        paired(112),
        gpus(H200, "1b 43 52 61 9d c3 d1 df", (0, 0, 1, 1, 2, 2, 3, 3)),
    ),
    # OLCF, Frontier User Guide, node diagram: one EPYC 7A53 in NPS4, 8-core L3s; GCDs 0 and 1 on
    # node 3, 2 and 3 on node 1, 4 and 5 on node 0, 6 and 7 on node 2. openmm/openmm#3940: lscpu.
    "frontier": Shape(
        even_nodes(4, 16, offset=64, l3_cores=8, packages=1),
        paired(64),
        gpus(MI250X, "c1 c6 c9 ce d1 d6 d9 de", (3, 3, 1, 1, 0, 0, 2, 2)),
        kfd=True,
    ),
    # ROCm/legacy-rocm-build#4740: eight GPUs, nodes 0,0,0,0,1,1,1,1. 96 cores a socket, addresses
    # and model are made up.
    "mi300x_nps1": Shape(_DUAL96, paired(192), _MI300X, kfd=True),
    # Made up: the same host in NPS4, a GPU on each node, not in their order.
    "mi300x_host_nps4": Shape(
        even_nodes(8, 24, offset=192, l3_cores=8, packages=2),
        paired(192),
        gpus(MI300X, "05 26 46 65 85 a6 c6 e5", (1, 0, 3, 2, 5, 4, 7, 6)),
        kfd=True,
    ),
    # Made up: one GPU in CPX with eight partitions, another in DPX with two (kfd_topology.c).
    "mi300x_partitions": Shape(_DUAL96, paired(192), _SPLIT, kfd=True),
    # open-mpi/hwloc, tests/hwloc/linux/nvidiagpunumanodes: IBM 8335-GTW, SMT4, GPU memory in nodes
    # 253-255 on the first socket. OLCF, Summit User Guide: 22 cores and three V100 a socket. The
    # second socket's addresses are made up.
    "power9_six": Shape(
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
            *memory_nodes(range(250, 256), "gpu", 16),
        ),
        adjacent(44, 4),
        tuple(
            replace(V100, pci=pci, numa_node=node, memory_node=memory)
            for pci, node, memory in (
                ("0004:05:00.0", 0, 255),
                ("0004:06:00.0", 0, 254),
                ("0006:00:00.0", 0, 253),
                ("0035:03:00.0", 8, 252),
                ("0035:04:00.0", 8, 251),
                ("0035:05:00.0", 8, 250),
            )
        ),
        l3_kib=10240,
    ),
    # Made up: 2 EPYC with 64 cores, all four GPUs on the second socket.
    "epyc_one_socket": Shape(
        even_nodes(2, 64, offset=128, l3_cores=8),
        paired(128),
        gpus(A100_PCIE, "81 a1 c1 e1", (1, 1, 1, 1)),
    ),
    # NVIDIA/nccl#1674, the VM's side: one node, its GPUs at -1 though the host has two.
    "vm_one_of_two": Shape(
        (NodeSpec(0, "0-93", 0, 900 * GIB),), gpus=gpus(H100, "05 09", (-1, -1))
    ).without("cache"),
    # microsoft/WSL#10277: one node; the GPU is Microsoft's paravirtual render device.
    "wsl2": Shape(
        (NodeSpec(0, "0-15", 0, 32 * GIB),),
        adjacent(8),
        (GpuSpec("5582:00:00.0", -1, 0x1414, 0x008E, 0x030200, name="", driver="dxgkrnl"),),
    ),
    # A container that Docker or Kubernetes gave two of eight GPUs: two device files, all in sysfs.
    "two_of_eight": replace(SHAPES["hgx_h100"], files=(("dev/nvidia4", ""), ("dev/nvidia6", ""))),
    # Kubernetes, "CPU Management Policies", static: a pod with 8 whole cores of its own.
    "kubernetes_static": replace(
        SHAPES["hgx_h100"],
        allowed_cpus="10-17,122-129",
        files=(("dev/nvidia1", ""),),
        cgroup="/kubepods.slice/kubepods-pod0.slice/cri-containerd-1.scope",
    ),
    # ALCF, Aurora machine overview: 2 Xeon Max 9470 with 52 cores, three Max 1550 a socket, two
    # tiles each. Addresses made up.
    "aurora": Shape(
        even_nodes(2, 52, offset=104),
        paired(104),
        gpus(MAX1550, "18 42 6c 98 b2 d9", (0, 0, 0, 1, 1, 1)),
    ),
    # Intel Gaudi documentation, "Multiple Dockers Each with a Single Workload": index and module
    # id. Nodes, cores and addresses made up.
    "gaudi2": Shape(
        even_nodes(2, 40, offset=80),
        paired(80),
        tuple(
            replace(gpu, module=module)
            for gpu, module in zip(
                gpus(GAUDI2, "19 1a 33 34 9a 9b b3 b4", (0, 0, 0, 0, 1, 1, 1, 1)),
                (5, 4, 7, 6, 2, 1, 0, 3),
                strict=True,
            )
        ),
    ),
    # vllm-project/vllm-ascend, issues: npu-smi has NPU 0 at c1:00.0, 1 at 01:00.0, then c2, 02,
    # 81, 41, 82, 42. Four nodes of 80 cores without SMT, two NPUs on each, are made up.
    "ascend": Shape(
        even_nodes(4, 80, packages=2),
        gpus=tuple(
            replace(npu, minor=number)
            for npu, number in zip(
                gpus(ASCEND, "01 02 41 42 81 82 c1 c2", (0, 0, 1, 1, 2, 2, 3, 3)),
                (1, 3, 5, 7, 4, 6, 0, 2),
                strict=True,
            )
        ),
    ),
    # Made up: four Trainium devices with two cores each; on one node their order does not matter.
    "trainium": Shape(even_nodes(2, 16), gpus=gpus(TRAINIUM, "10 20 a0 b0", (0, 0, 1, 1))),
    "trainium_one_node": Shape(even_nodes(2, 16), gpus=gpus(TRAINIUM, "a0 b0", (1, 1))),
    "tpu": Shape(even_nodes(2, 16), gpus=gpus(TPU, "10 20 a0 b0", (0, 0, 1, 1))),
    "vector_engine": Shape(even_nodes(2, 16), gpus=gpus(ENGINE, "10 a0", (0, 1))),
    # Made up: an integrated AMD GPU (class 0380), a Matrox BMC, and two H100.
    "several_vendors": Shape(
        even_nodes(2, 8),
        gpus=(
            GpuSpec("0000:03:00.0", 0, 0x1002, 0x164E, 0x038000, name="Raphael", driver="amdgpu"),
            GpuSpec("0000:05:00.0", 0, 0x102B, 0x0538, 0x030000, name="", driver="mgag200"),
            *gpus(H100, "17 b3", (0, 1)),
        ),
    ),
    # NVIDIA/nccl#1505: DGX A100, some of its NICs and the switches (PXB) they share with a GPU. The
    # disk and the port without RDMA are made up.
    "dgx_a100_nics": replace(
        SHAPES["nps4"],
        cards=(
            CardSpec("0000:0c:00.0", 3, "infiniband/mlx5_0 net/ib0", switch="0000:07:00.0"),
            CardSpec("0000:12:00.0", 3, "infiniband/mlx5_1 net/ib1", switch="0000:07:00.0"),
            CardSpec("0000:4b:00.0", 1, "infiniband/mlx5_2 net/ib2", switch="0000:47:00.0"),
            CardSpec("0000:54:00.0", 1, "infiniband/mlx5_3 net/ib3", switch="0000:47:00.0"),
            CardSpec("0000:98:00.0", 5, "infiniband/mlx5_8 net/ib8"),
            CardSpec("0000:e1:00.0", 7, "net/eth0", klass=0x020000),
            CardSpec("0000:22:00.0", 2, "nvme/nvme0/nvme0n1", 0x010802, 0x144D, 0xA824),
        ),
    ),
}
