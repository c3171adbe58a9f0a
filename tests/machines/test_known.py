"""Plans for machines that people have, worked out by hand from their sources."""

from __future__ import annotations

import pytest

from machines.known import KNOWN
from machines.shapes import SHAPES
from machines.spec import Shape
from numabind import plan
from numabind._cpulist import format_list
from numabind._visible import visible
from samples import machine

ALL = {**SHAPES, **KNOWN}


def shape(name: str) -> Shape:
    return ALL[name]


def plans(name: str, mode: str = "exclusive", **environ: str) -> list[tuple[str, str, str]]:
    """For each worker its device, CPUs and memory nodes."""
    where = machine(shape(name))
    made = plan(where, visible=visible(where, environ), mode=mode)
    return [
        (p.device or "-", format_list(p.cpus), format_list(p.memory_nodes)) for p in made.placements
    ]


def rows(text: str) -> list[tuple[str, str, str]]:
    """ "DEVICE CPUS MEMORY" a line; a device without a colon is a bus of domain 0."""
    found = []
    for line in text.split("\n"):
        if line.strip():
            device, cpus, memory = line.split()
            address = device if ":" in device or "-" in device else f"0000:{device}:00.0"
            found.append((address, cpus, memory))
    return found


# Mode exclusive: the node's cores in equal blocks over its GPUs, the remainder to the first.
EXCLUSIVE = {
    # 72 cores over 2
    "gb200": """
        0008:06:00.0  0-35     0
        0009:06:00.0  36-71    0
        0018:01:00.0  72-107   1
        0019:01:00.0  108-143  1
        """,
    "gh200": "0009:01:00.0 0-71 0",
    # 24 cores over 2; nodes 1 and 4 have no GPU
    "b200_six_nodes": """
        1b  0-11,144-155     0
        43  12-23,156-167    0
        52  48-59,192-203    2
        61  60-71,204-215    2
        9d  72-83,216-227    3
        c3  84-95,228-239    3
        d1  120-131,264-275  5
        df  132-143,276-287  5
        """,
    # 20 cores over 4
    "dgx1": """
        06  0-4,40-44    0
        07  5-9,45-49    0
        0a  10-14,50-54  0
        0b  15-19,55-59  0
        85  20-24,60-64  1
        86  25-29,65-69  1
        89  30-34,70-74  1
        8a  35-39,75-79  1
        """,
    # 24 cores over 8
    "dgx2": """
        34  0-2,48-50    0
        36  3-5,51-53    0
        39  6-8,54-56    0
        3b  9-11,57-59   0
        57  12-14,60-62  0
        59  15-17,63-65  0
        5c  18-20,66-68  0
        5e  21-23,69-71  0
        b7  24-26,72-74  1
        b9  27-29,75-77  1
        bc  30-32,78-80  1
        be  33-35,81-83  1
        e0  36-38,84-86  1
        e2  39-41,87-89  1
        e5  42-44,90-92  1
        e7  45-47,93-95  1
        """,
    # 16 cores over 2; nodes 3,1,7,5 two by two
    "nps4": """
        07  48-55,176-183    3
        0f  56-63,184-191    3
        47  16-23,144-151    1
        4e  24-31,152-159    1
        87  112-119,240-247  7
        90  120-127,248-255  7
        b7  80-87,208-215    5
        bd  88-95,216-223    5
        """,
    # 56 cores over 4
    "hgx_h100": """
        1b  0-13,112-125    0
        43  14-27,126-139   0
        52  28-41,140-153   0
        61  42-55,154-167   0
        9d  56-69,168-181   1
        c3  70-83,182-195   1
        d1  84-97,196-209   1
        df  98-111,210-223  1
        """,
    # 28 cores over 2
    "hgx_h200_snc": """
        1b  0-13,112-125    0
        43  14-27,126-139   0
        52  28-41,140-153   1
        61  42-55,154-167   1
        9d  56-69,168-181   2
        c3  70-83,182-195   2
        d1  84-97,196-209   3
        df  98-111,210-223  3
        """,
    # 16 cores over 2: an L3 group for each GCD, as OLCF's diagram has it
    "frontier": """
        c1  48-55,112-119  3
        c6  56-63,120-127  3
        c9  16-23,80-87    1
        ce  24-31,88-95    1
        d1  0-7,64-71      0
        d6  8-15,72-79     0
        d9  32-39,96-103   2
        de  40-47,104-111  2
        """,
    # 96 cores over 4
    "mi300x_nps1": """
        05  0-23,192-215     0
        26  24-47,216-239    0
        46  48-71,240-263    0
        65  72-95,264-287    0
        85  96-119,288-311   1
        a6  120-143,312-335  1
        c6  144-167,336-359  1
        e5  168-191,360-383  1
        """,
    # a GPU has its node alone
    "mi300x_host_nps4": """
        05  24-47,216-239    1
        26  0-23,192-215     0
        46  72-95,264-287    3
        65  48-71,240-263    2
        85  120-143,312-335  5
        a6  96-119,288-311   4
        c6  168-191,360-383  7
        e5  144-167,336-359  6
        """,
    # a GPU has its socket alone, and its partitions share that
    "mi300x_partitions": """
        GPU-3d6b1a52b86bd000  0-95,192-287    0
        GPU-3d6b1a52b86bd001  0-95,192-287    0
        GPU-3d6b1a52b86bd002  0-95,192-287    0
        GPU-3d6b1a52b86bd003  0-95,192-287    0
        GPU-3d6b1a52b86bd004  0-95,192-287    0
        GPU-3d6b1a52b86bd005  0-95,192-287    0
        GPU-3d6b1a52b86bd006  0-95,192-287    0
        GPU-3d6b1a52b86bd007  0-95,192-287    0
        GPU-3d6b1a52b86bd100  96-191,288-383  1
        GPU-3d6b1a52b86bd101  96-191,288-383  1
        """,
    # 22 cores of 4 threads over 3: 8, 7, 7
    "power9_six": """
        0004:05:00.0  0-31     0
        0004:06:00.0  32-59    0
        0006:00:00.0  60-87    0
        0035:03:00.0  88-119   8
        0035:04:00.0  120-147  8
        0035:05:00.0  148-175  8
        """,
    # 64 cores over 4; the first socket has no GPU
    "epyc_one_socket": """
        81  64-79,192-207    1
        a1  80-95,208-223    1
        c1  96-111,224-239   1
        e1  112-127,240-255  1
        """,
    # 18 cores over 2
    "all_gpus_on_one_node": """
        04  0-8,36-44   0
        07  9-17,45-53  0
        """,
    # the fifth and seventh of eight: their shares, as if the others worked, too
    "two_of_eight": """
        9d  56-69,168-181  1
        d1  84-97,196-209  1
        """,
    # 52 cores over 3: 18, 17, 17; two tiles of a card share its block
    "aurora": """
        0000:18:00.0/0  0-17,104-121     0
        0000:18:00.0/1  0-17,104-121     0
        0000:42:00.0/0  18-34,122-138    0
        0000:42:00.0/1  18-34,122-138    0
        0000:6c:00.0/0  35-51,139-155    0
        0000:6c:00.0/1  35-51,139-155    0
        0000:98:00.0/0  52-69,156-173    1
        0000:98:00.0/1  52-69,156-173    1
        0000:b2:00.0/0  70-86,174-190    1
        0000:b2:00.0/1  70-86,174-190    1
        0000:d9:00.0/0  87-103,191-207   1
        0000:d9:00.0/1  87-103,191-207   1
        """,
    # rank r has module r: indices 6,5,4,7,1,0,3,2; 40 cores over 4
    "gaudi2": """
        b3  60-69,140-149  1
        9b  50-59,130-139  1
        9a  40-49,120-129  1
        b4  70-79,150-159  1
        1a  10-19,90-99    0
        19  0-9,80-89      0
        34  30-39,110-119  0
        33  20-29,100-109  0
        """,
    # in the driver's order; 80 cores over 2
    "ascend": """
        c1  240-279  3
        01  0-39     0
        c2  280-319  3
        02  40-79    0
        81  160-199  2
        41  80-119   1
        82  200-239  2
        42  120-159  1
        """,
    # a worker for each core of a device; 16 cores over 2 devices
    "trainium_one_node": """
        0000:a0:00.0/0  16-23  1
        0000:a0:00.0/1  16-23  1
        0000:b0:00.0/0  24-31  1
        0000:b0:00.0/1  24-31  1
        """,
    "tpu": """
        10  0-7    0
        20  8-15   0
        a0  16-23  1
        b0  24-31  1
        """,
    "vector_engine": """
        10  0-15   0
        a0  16-31  1
        """,
    # neither the integrated GPU nor the BMC's is a worker's
    "several_vendors": """
        17  0-7   0
        b3  8-15  1
        """,
}


@pytest.mark.parametrize("name", EXCLUSIVE)
def test_exclusive(name: str) -> None:
    assert plans(name) == rows(EXCLUSIVE[name])


def test_numbers_that_no_file_has_bind_nothing() -> None:
    where = machine(shape("trainium"))
    made = plan(where, visible=visible(where, {}), mode="exclusive")
    assert {p.bound for p in made.placements} == {False}
    assert {said.name for p in made.placements for said in p.problems} == {"device-order-unknown"}
    # Without an environment it is about devices, not ranks.
    assert {p.bound for p in plan(where).placements} == {True}


def problems(name: str, **options: str) -> list[list[str]]:
    made = plan(machine(shape(name)), **options)
    return [[said.name for said in p.problems] for p in made.placements]


def test_a_workstations_display_card_takes_no_cores_from_the_two_big_ones() -> None:
    chosen = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0,2"}
    assert plans("display_gpu", **chosen) == rows("17 0-7 0\nb3 8-15 1")
    # Without an environment, the display card is nobody's.
    placements = plan(machine("display_gpu"), mode="exclusive").placements
    assert [p.pci for p in placements] == ["0000:17:00.0", "0000:b3:00.0"]


def test_a_pod_with_cores_of_its_own() -> None:
    assert plans("kubernetes_static", mode="node") == rows("43 10-17,122-129 0")
    assert problems("kubernetes_static") == [["cpus-reduced"]]


def test_a_vm_that_tells_nothing_is_left_alone() -> None:
    for name in ("all_minus_one",):
        placements = plan(machine(name)).placements
        assert [p.bound for p in placements] == [False] * 4
        assert problems(name) == [["no-numa-node"]] * 4


def test_a_vm_of_one_node_has_nothing_to_bind_to() -> None:
    assert plans("vm_one_of_two", mode="node") == rows("05 0-93 0\n09 0-93 0")
    assert problems("vm_one_of_two") == [["one-node"]] * 2


def test_wsl2_has_one_node_and_no_function_of_a_gpu() -> None:
    assert plans("wsl2", mode="node") == [("-", "0-15", "0")]
    assert problems("wsl2") == [["one-node"]]


NEAREST = {
    # behind one switch with two NICs; the next GPU of the node is behind another
    "0000:07:00.0": (("mlx5_0", "mlx5_1"), "switch"),
    "0000:0f:00.0": (("mlx5_0", "mlx5_1"), "node"),
    "0000:47:00.0": (("mlx5_2", "mlx5_3"), "switch"),
    # on node 5, behind a host bridge of its own
    "0000:b7:00.0": (("mlx5_8",), "node"),
    # node 7 has an Ethernet function without RDMA; node 5 is in the same package
    "0000:87:00.0": (("mlx5_8",), "machine"),
}


@pytest.mark.parametrize("pci", NEAREST)
def test_nearest_nics(pci: str) -> None:
    from numabind._near import nearest_nics

    where = machine(shape("dgx_a100_nics"))
    (device,) = (d for d in where.devices if d.pci == pci)
    nearest = nearest_nics(where, device)
    assert nearest is not None
    assert (nearest.names, nearest.by) == NEAREST[pci]
    (placement,) = (p for p in plan(where).placements if p.pci == pci)
    assert placement.nics == NEAREST[pci][0]


NEAR = {
    "RDMA device": ("mlx5_8", 5),
    "interface": ("eth0", 7),
    "disk": ("nvme0", 2),
    "namespace": ("nvme0n1", 2),
    "address": ("0000:22:00.0", 2),
    "short address": ("22:00.0", 2),
    "a GPU's address": ("0000:47:00.0", 1),
}


@pytest.mark.parametrize(("name", "node"), NEAR.values(), ids=NEAR)
def test_workers_without_a_gpu(name: str, node: int) -> None:
    where = machine(shape("dgx_a100_nics"))
    placements = plan(where, workers=2, near=name).placements
    first = 16 * node
    own = f"{first}-{first + 15},{first + 128}-{first + 143}"
    assert [(format_list(p.cpus), p.memory_nodes) for p in placements] == [(own, {node})] * 2
    assert [p.threads for p in placements] == [8, 8]


def test_near_what_is_not_there() -> None:
    (placement,) = plan(machine(shape("dgx_a100_nics")), near="mlx5_9").placements
    assert not placement.bound
    (said,) = placement.problems
    assert said.name == "near-not-found"
    assert "mlx5_9" in said.cause
    assert "mlx5_8, nvme0" in said.cause
