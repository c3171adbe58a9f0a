"""The fake machines are what they say: in the kernel's writing, and as hwloc reads them.

hwloc (Debian's package `hwloc`) is the independent reader. Its tests are skipped where
lstopo-no-graphics is not installed; CI installs it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from machines.build import CPU, NODE, build
from machines.shapes import SHAPES, big, pytorch_grid
from machines.spec import GpuSpec, NodeSpec, Shape, adjacent, ids, paired, text_list, text_mask

PCI = "sys/bus/pci/devices"
LSTOPO = shutil.which("lstopo-no-graphics")
ALL = {**SHAPES, "pytorch_grid": pytorch_grid(4, 2, 2, 4, 2), "big": big(16, 256)}
# A tree has 40 files a CPU: in memory where there is room, since disks can take 1 ms for each.
SHM = Path("/dev/shm")
SCRATCH = SHM if SHM.is_dir() and shutil.disk_usage(SHM).free > 1 << 28 else None
# Not machines to hwloc: no topology or nodes to read, or (hex_domain) no 32-bit PCI domains.
NOT_FOR_HWLOC = {"bare", "no_numa_kernel", "hex_domain"}


def read(root: Path, path: str) -> str:
    return (root / path).read_text()


@pytest.mark.parametrize(
    ("numbers", "bits", "as_list", "as_mask"),
    [
        pytest.param([], 8, "", "00", id="empty"),
        pytest.param([0, 1], 2, "0-1", "3", id="two CPUs"),
        pytest.param([0, 2, 3, 5], 8, "0,2-3,5", "2d", id="gaps"),
        pytest.param([35], 36, "35", "8,00000000", id="two words"),
        pytest.param([0, 64], 96, "0,64", "00000001,00000000,00000001", id="three words"),
    ],
)
def test_sets_are_written_as_the_kernel_does(numbers, bits, as_list, as_mask):
    assert text_list(numbers) == as_list
    assert text_mask(numbers, bits) == as_mask
    assert ids(as_list) == numbers


def test_a_small_machine_file_by_file(tmp_path):
    shape = Shape(
        (NodeSpec(0, "0-1,4-5", memory_kib=1000), NodeSpec(1, "2-3,6-7", 1, 2000)),
        paired(4),
        (GpuSpec("0000:17:00.0", 1, uuid="GPU-1"),),
        offline_cpus="6",
        possible_cpus="0-15",
        allowed_cpus="0-3",
        allowed_nodes="0",
        cgroup="/job",
        cpu_max="200000 100000",
    )
    root = build(shape, tmp_path)
    expected = {
        f"{CPU}/online": "0-5,7\n",
        f"{CPU}/possible": "0-15\n",
        f"{CPU}/present": "0-7\n",
        f"{CPU}/cpu1/topology/thread_siblings_list": "1,5\n",
        f"{CPU}/cpu1/topology/thread_siblings": "0022\n",
        f"{CPU}/cpu2/topology/thread_siblings_list": "2\n",
        f"{CPU}/cpu3/topology/physical_package_id": "1\n",
        f"{CPU}/cpu3/topology/core_id": "1\n",
        f"{CPU}/cpu3/topology/package_cpus_list": "2-3,7\n",
        f"{CPU}/cpu3/cache/index3/shared_cpu_list": "2-3,7\n",
        f"{CPU}/cpu3/cache/index3/size": "32768K\n",
        f"{CPU}/cpu6/online": "0\n",
        f"{NODE}/online": "0-1\n",
        f"{NODE}/possible": "0-1\n",
        f"{NODE}/has_generic_initiator": "\n",
        f"{NODE}/node1/cpulist": "2-3,7\n",
        f"{NODE}/node1/cpumap": "008c\n",
        f"{NODE}/node1/distance": "21 10\n",
        f"{PCI}/0000:17:00.0/class": "0x030200\n",
        f"{PCI}/0000:17:00.0/vendor": "0x10de\n",
        f"{PCI}/0000:17:00.0/numa_node": "1\n",
        f"{PCI}/0000:17:00.0/local_cpulist": "2-3,7\n",
        f"{PCI}/0000:17:00.0/local_cpus": "008c\n",
        "proc/self/cgroup": "0::/job\n",
        "sys/fs/cgroup/job/cpu.max": "200000 100000\n",
    }
    assert {path: read(root, path) for path in expected} == expected
    assert not (root / f"{CPU}/cpu0/online").exists()
    assert not (root / f"{CPU}/cpu6/topology").exists()
    assert os.readlink(root / f"{PCI}/0000:17:00.0") == (
        "../../../devices/pci0000:16/0000:16:01.0/0000:17:00.0"
    )
    assert (root / f"{PCI}/0000:17:00.0/driver").resolve().name == "nvidia"
    assert os.readlink(root / f"{CPU}/cpu3/node1") == "../../node/node1"
    assert (root / f"{NODE}/node1/cpu3/topology").is_dir()
    assert read(root, f"{NODE}/node1/meminfo").startswith("Node 1 MemTotal:           2000 kB\n")
    status = read(root, "proc/self/status")
    assert "\nCpus_allowed:\t000f\nCpus_allowed_list:\t0-3\n" in status
    assert f"\nMems_allowed:\t{'00000000,' * 31}00000001\nMems_allowed_list:\t0\n" in status
    information = read(root, "proc/driver/nvidia/gpus/0000:17:00.0/information")
    assert information.startswith("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 100\n")
    assert "\nGPU UUID: \t GPU-1\n" in information
    assert information.endswith(
        "\nDevice Minor: \t 0\nGPU Firmware: \t 550.54.15\nGPU Excluded:\t No\n"
    )


def test_neighbouring_buses_share_a_root(tmp_path):
    root = build(SHAPES["dgx1"], tmp_path)
    assert os.readlink(root / f"{PCI}/0000:07:00.0").endswith(
        "devices/pci0000:05/0000:05:02.0/0000:07:00.0"
    )


@pytest.mark.parametrize(
    ("part", "path"),
    [
        ("node", NODE),
        ("node", f"{CPU}/cpu1/node0"),
        ("cpulist", f"{NODE}/node0/cpulist"),
        ("cpulist", f"{PCI}/0000:17:00.0/local_cpulist"),
        ("cache", f"{CPU}/cpu1/cache"),
        ("topology", f"{CPU}/cpu1/topology"),
        ("package-lists", f"{CPU}/cpu1/topology/package_cpus_list"),
        ("distance", f"{NODE}/node0/distance"),
        ("proc", "proc"),
        ("local_cpulist", f"{PCI}/0000:17:00.0/local_cpulist"),
        ("numa_node", f"{PCI}/0000:17:00.0/numa_node"),
    ],
)
def test_parts_can_be_left_out(tmp_path, part, path):
    shape = SHAPES["unlike_gpus"]
    assert os.path.lexists(build(shape, tmp_path / "whole") / path)
    assert not os.path.lexists(build(shape.without(part), tmp_path / "part") / path)


def test_files_are_added_and_removed_last(tmp_path):
    changes = ((f"{NODE}/node0/cpulist", None), (f"{NODE}/node1/cpulist", "0-\n"))
    root = build(replace(SHAPES["no_gpu"], files=changes), tmp_path)
    assert not (root / f"{NODE}/node0/cpulist").exists()
    assert read(root, f"{NODE}/node1/cpulist") == "0-\n"


@pytest.mark.parametrize("name", ALL)
def test_every_shape_is_consistent(name):
    shape = ALL[name]
    cpus = [cpu for node in shape.nodes for cpu in ids(node.cpus)]
    assert len(cpus) == len(set(cpus)), "a CPU is in two nodes"
    assert len({node.id for node in shape.nodes}) == len(shape.nodes)
    assert len({gpu.pci for gpu in shape.gpus}) == len(shape.gpus)
    for node in shape.nodes:
        if node.l3:
            assert sorted(c for l3 in node.l3 for c in ids(l3)) == sorted(ids(node.cpus))
        assert len(node.distances or shape.nodes) == len(shape.nodes)
    in_cores = [cpu for core in shape.cores for cpu in ids(core)]
    assert len(in_cores) == len(set(in_cores))
    assert set(in_cores) <= set(cpus)
    home = {cpu: node for node in shape.nodes for cpu in ids(node.cpus)}
    assert all(len({home[cpu].id for cpu in ids(core)}) == 1 for core in shape.cores)


@pytest.mark.parametrize("name", ["one_node", "cpuless", "gpu_on_cpuless", "node_offline", "quota"])
def test_every_file_ends_with_a_newline(tmp_path, name):
    for folder, _, files in os.walk(build(ALL[name], tmp_path)):
        for file in files:
            data = Path(folder, file).read_bytes()
            assert file == "config" or data.endswith(b"\n"), f"{folder}/{file}"


def test_the_grid_is_numbered_as_pytorch_numbers_it():
    shape = pytorch_grid(4, 2, 2, 4, 2)
    assert [node.cpus for node in shape.nodes[:2]] == ["0-15", "16-31"]
    assert shape.nodes[1].l3[0] == "16-19"
    assert shape.cores == adjacent(64)
    assert [gpu.numa_node for gpu in shape.gpus] == [n for n in range(8) for _ in range(2)]
    assert [node.package for node in shape.nodes] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_big_is_as_big_as_asked():
    shape = big(64, 4096)
    assert len(shape.nodes) == 64
    assert sum(len(ids(node.cpus)) for node in shape.nodes) == 4096


@pytest.fixture
def hwloc():
    """Build a shape and give hwloc's XML of it."""
    if LSTOPO is None:
        pytest.skip("lstopo-no-graphics is not installed")

    def ask(shape: Shape) -> ET.Element:
        with tempfile.TemporaryDirectory(dir=SCRATCH) as root:
            environment = {
                "PATH": os.defpath,
                "HWLOC_FSROOT": str(build(shape, Path(root))),
                "HWLOC_COMPONENTS": "linux,stop",
                "HWLOC_THISSYSTEM": "0",
                "HWLOC_KEEP_NVIDIA_GPU_NUMA_NODES": "1",
            }
            command = [LSTOPO, "--whole-io", "--disallowed", "--of", "xml"]
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=60, check=True
            )
        assert not done.stderr
        return ET.fromstring(done.stdout)

    return ask


def cpus_of(element: ET.Element) -> set[int]:
    """Read hwloc's "0x000000ff,0x00000000", where zero words may be empty."""
    bits = 0
    for word in element.get("cpuset", "0x0").split(","):
        bits = bits << 32 | int(word or "0", 16)
    return {n for n, digit in enumerate(f"{bits:b}"[::-1]) if digit == "1"}


def of_type(tree: ET.Element, kind: str) -> list[ET.Element]:
    return [element for element in tree.iter("object") if element.get("type") == kind]


def locality(tree: ET.Element) -> dict[str, set[int]]:
    """The CPUs near each PCI device: those of its nearest ancestor that has any."""
    found = {}

    def walk(element: ET.Element, near: set[int]) -> None:
        near = cpus_of(element) if element.get("cpuset") else near
        if element.get("type") == "PCIDev":
            found[element.get("pci_busid", "")] = near
        for child in element.findall("object"):
            walk(child, near)

    walk(tree, set())
    return found


@pytest.mark.parametrize("name", sorted(set(ALL) - NOT_FOR_HWLOC))
def test_hwloc_reads_the_same_machine(hwloc, name):
    shape = ALL[name]
    tree = hwloc(shape)
    online = {c for node in shape.nodes for c in ids(node.cpus)} - set(ids(shape.offline_cpus))
    nodes = {int(e.get("os_index", "-1")): cpus_of(e) for e in of_type(tree, "NUMANode")}
    assert sorted(nodes) == sorted(node.id for node in shape.nodes)
    own = {node.id: set(ids(node.cpus)) & online for node in shape.nodes}
    assert {n: cpus for n, cpus in nodes.items() if own[n]} == {n: c for n, c in own.items() if c}
    # To a node without CPUs hwloc gives those of the GPU whose memory it is (numa_status).
    owners = {gpu.memory_node: gpu.numa_node for gpu in shape.gpus if gpu.memory_node is not None}
    assert {n: nodes[n] for n in owners} == {n: own[host] for n, host in owners.items()}
    assert {int(e.get("os_index", "-1")) for e in of_type(tree, "PU")} == online

    cores = {frozenset(cpus_of(e)) for e in of_type(tree, "Core")}
    wanted = {frozenset(ids(core)) & online for core in shape.cores} - {frozenset()}
    alone = online - {cpu for core in wanted for cpu in core}
    assert cores == wanted | {frozenset({cpu}) for cpu in alone}

    packages: dict[int, set[int]] = {}
    for node in shape.nodes:
        packages.setdefault(node.package, set()).update(set(ids(node.cpus)) & online)
    found = sorted(sorted(cpus_of(e)) for e in of_type(tree, "Package"))
    assert found == sorted(sorted(cpus) for cpus in packages.values() if cpus)

    if "cache" not in shape.omit:
        groups = [group for node in shape.nodes for group in (node.l3 or (node.cpus,))]
        l3 = sorted(sorted(set(ids(group)) & online) for group in groups)
        assert sorted(sorted(cpus_of(e)) for e in of_type(tree, "L3Cache")) == [g for g in l3 if g]

    near = locality(tree)
    for gpu in shape.gpus:
        if gpu.local_cpulist is not None:
            local = set(ids(gpu.local_cpulist))
        else:
            # An empty local_cpus (a node without CPUs) is the whole machine to hwloc.
            local = own.get(gpu.numa_node) or online
        assert near[gpu.pci] == local, gpu.pci
