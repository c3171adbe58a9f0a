"""NVIDIA's identities: through NVML (a stub library, the real nvidia-ml-py) and through /proc."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import nvml_stub
from machines.build import build
from machines.shapes import SHAPES
from numabind._discover import nodes_by_driver
from numabind._machine import Node, Partition
from numabind._pci import place
from numabind._record import replace
from numabind._sysfs import Root
from numabind._vendors.nvidia import read_proc

ASK = """
import json
from numabind._vendors.nvidia import NvmlUnavailableError, read_nvml
try:
    facts = read_nvml()
except NvmlUnavailableError as error:
    print(json.dumps({"unavailable": str(error)}))
else:
    print(json.dumps({
        pci: {**fact.__dict__, "near": sorted(fact.near or ()),
              "near_cpus": sorted(fact.near_cpus or ()),
              "partitions": [part.__dict__ for part in fact.partitions]}
        for pci, fact in facts.items()
    }))
maps = open("/proc/self/maps").read()
assert "libcuda" not in maps and "libnvidia-ml" in maps
"""
H100 = "gpu uuid=GPU-aa pci=00000000:17:00.0 name=NVIDIA_H100 minor=1 affinity=0x1 mig=0\n"
MIG = "mig uuid=MIG-01 gi=1 ci=0\nmig uuid=MIG-02 gi=2 ci=0\n"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nvml_stub.build(tmp_path_factory.mktemp("nvml"))


def run(library: Path, description: str, code: str) -> object:
    file = library.with_name("gpus.txt")
    file.write_text(description)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "LD_LIBRARY_PATH": str(library.parent), "NVML_STUB_GPUS": str(file)},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def ask(library: Path, description: str) -> dict[str, dict[str, object]]:
    answer = run(library, description, ASK)
    assert isinstance(answer, dict)
    return answer


def test_two_gpus_in_nvml_order_with_a_wide_domain(library: Path) -> None:
    second = "gpu uuid=GPU-bb pci=00010000:b3:00.0 name=NVIDIA_L40S minor=0 affinity=0x2\n"
    facts = ask(library, H100 + second)
    assert list(facts) == ["0000:17:00.0", "10000:b3:00.0"]
    assert facts["0000:17:00.0"] == {
        "uuid": "GPU-aa",
        "index": 0,
        "minor": 1,
        "name": "NVIDIA H100",
        "memory_node": None,
        "near": [0],
        "near_cpus": [],
        "partitions": [],
    }
    assert facts["10000:b3:00.0"]["near"] == [1]


def test_mig_instances_belong_to_their_gpu(library: Path) -> None:
    facts = ask(library, H100.replace("mig=0", "mig=1") + MIG)
    assert facts["0000:17:00.0"]["partitions"] == [
        Partition("MIG-01", 1, 0).__dict__,
        Partition("MIG-02", 2, 0).__dict__,
    ]


def test_the_gpus_own_node_is_memory_not_a_place(library: Path) -> None:
    facts = ask(library, H100.replace("affinity=0x1", "affinity=0x1 node=2"))
    assert facts["0000:17:00.0"]["memory_node"] == 2
    assert facts["0000:17:00.0"]["near"] == [0]


def test_a_call_that_this_driver_lacks_leaves_its_fact_unknown(library: Path) -> None:
    facts = ask(
        library, H100 + "fail nvmlDeviceGetMemoryAffinity 3\nfail nvmlDeviceGetMinorNumber 3"
    )
    assert (facts["0000:17:00.0"]["near"], facts["0000:17:00.0"]["minor"]) == ([], None)
    assert facts["0000:17:00.0"]["uuid"] == "GPU-aa"


def test_a_gpu_without_a_pci_address_does_not_hide_the_others(library: Path) -> None:
    assert list(ask(library, "gpu uuid=GPU-lost\n" + H100)) == ["0000:17:00.0"]


@pytest.mark.parametrize(("code", "cause"), [(9, "Driver Not Loaded"), (18, "version mismatch")])
def test_a_driver_that_does_not_answer_is_said(library: Path, code: int, cause: str) -> None:
    answer = ask(library, f"fail nvmlInit {code}")
    assert cause in str(answer["unavailable"])


@pytest.mark.parametrize("text", ["", "gpu", "mig uuid=x", "gpu pci=", "\x00\xff", "gpu =\nfail\n"])
def test_a_broken_description_does_not_crash_the_stub(library: Path, text: str) -> None:
    file = library.with_name("gpus.txt")
    file.write_text(text)
    code = "import pynvml; pynvml.nvmlInit(); print(pynvml.nvmlDeviceGetCount())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "LD_LIBRARY_PATH": str(library.parent), "NVML_STUB_GPUS": str(file)},
        capture_output=True,
        check=True,
    )
    assert done.stdout.strip() in (b"0", b"1")


IDENTIFY = """
import json
from numabind._machine import Device, Node
from numabind._pci import place
from numabind._sysfs import Root
from numabind._vendors import identify
online = frozenset(range(6))
nodes = tuple(Node(n, frozenset({2 * n, 2 * n + 1})) for n in range(3))
lost = Device("0000:17:00.0", "nvidia", numa_node=-1, local_cpus=online)
known = identify(Root("/"), (lost,), True)
near = known.driver_nodes.get(lost.pci)
placed, _ = place(known.devices[0], nodes, online, near)
print(json.dumps([placed.uuid, placed.memory_node, placed.node, placed.node_source,
                  [p.name for p in known.problems]]))
"""
IDENTIFIED = {
    "NVML's memory affinity": (H100.replace("0x1", "0x2"), ["GPU-aa", None, 1, "nvml", []]),
    "beside the GPU's own node": (
        H100.replace("affinity=0x1", "affinity=0x1 node=2"),
        ["GPU-aa", 2, 0, "nvml", []],
    ),
    "the GPU's own node alone says nothing": (
        H100.replace("affinity=0x1", "affinity=0x0 node=2"),
        ["GPU-aa", 2, None, None, []],
    ),
    "every node says nothing": (H100.replace("0x1", "0x7"), ["GPU-aa", None, None, None, []]),
    "NVML lists another GPU": (
        H100.replace(":17:", ":18:"),
        [None, None, None, None, []],
    ),
    "NVML does not answer": ("fail nvmlInit 9", [None, None, None, None, ["nvml-unavailable"]]),
}


@pytest.mark.parametrize(("description", "wanted"), IDENTIFIED.values(), ids=IDENTIFIED)
def test_a_gpu_that_firmware_does_not_place(library: Path, description: str, wanted: list) -> None:
    assert run(library, description, IDENTIFY) == wanted


@pytest.mark.parametrize(
    ("module", "cause"),
    [
        pytest.param("None", "nvidia-ml-py is not installed", id="none"),
        pytest.param("sys", "not the one of nvidia-ml-py", id="another of that name"),
    ],
)
def test_without_nvidia_ml_py_it_is_said(module: str, cause: str) -> None:
    code = f"""
import sys
sys.modules["pynvml"] = {module}
from numabind._vendors.nvidia import read_nvml
try:
    read_nvml()
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("NvmlUnavailableError")
    assert cause in done.stdout


# NVML's nodes and CPUs of a GPU, what this process may use: the nodes. Node n has CPUs 2n, 2n + 1.
BY_DRIVER = {
    "nodes": ({1}, {0, 1}, range(6), {1}),
    "CPUs where it names no node": (None, {2, 3}, range(6), {1}),
    "CPUs where it names all nodes": ({0, 1, 2}, {4, 5}, range(6), {2}),
    "some of a node's CPUs": (None, {3}, range(6), {1}),
    "all CPUs say nothing": ({0, 1, 2}, set(range(6)), range(6), {0, 1, 2}),
    "all that are allowed say nothing": (None, {2, 3}, {2, 3}, None),
    "some of what is allowed": (None, {2}, {2, 5}, {1}),
}


@pytest.mark.parametrize("row", BY_DRIVER.values(), ids=BY_DRIVER)
def test_nvmls_cpu_affinity(row) -> None:
    told, cpus, allowed, wanted = row
    nodes = tuple(Node(n, frozenset({2 * n, 2 * n + 1})) for n in range(3))
    by_nodes = {} if told is None else {"a": frozenset(told)}
    found = nodes_by_driver(by_nodes, {"a": frozenset(cpus)}, nodes, frozenset(allowed))
    assert found.get("a") == wanted


def test_nvmls_cpus_are_read(library: Path) -> None:
    facts = ask(library, H100.replace("mig=0", "cpus=0x8000000000000003 mig=0"))
    assert facts["0000:17:00.0"]["near_cpus"] == [0, 1, 63]


def test_nvmls_memory_affinity_places_a_gpu_that_firmware_does_not() -> None:
    nodes = (Node(0, frozenset({0, 1})), Node(1, frozenset({2, 3})))
    online = frozenset(range(4))
    from numabind._machine import Device

    lost = Device("0000:17:00.0", "nvidia", numa_node=-1, local_cpus=online)
    placed, _ = place(lost, nodes, online, driver_nodes=frozenset({1}))
    assert (placed.node, placed.node_source) == (1, "nvml")
    # All nodes for all GPUs (VMs) says nothing.
    placed, _ = place(lost, nodes, online, driver_nodes=frozenset({0, 1}))
    assert placed.node is None
    # Firmware that answers is believed before NVML.
    placed, _ = place(replace(lost, numa_node=0), nodes, online, driver_nodes=frozenset({1}))
    assert placed.node == 0


def test_proc_names_gpus_where_nvml_is_not_there(tmp_path: Path) -> None:
    facts = read_proc(Root(str(build(SHAPES["gb200"], tmp_path))))
    assert list(facts) == ["0008:06:00.0", "0009:06:00.0", "0018:01:00.0", "0019:01:00.0"]
    assert [fact.index for fact in facts.values()] == [0, 1, 2, 3]
    assert [fact.memory_node for fact in facts.values()] == [2, 10, 18, 26]
    assert all(fact.name == "NVIDIA GB200" for fact in facts.values())
    assert all(str(fact.uuid).startswith("GPU-") for fact in facts.values())


def test_gpus_that_this_process_may_not_open_are_not_numbered(tmp_path: Path) -> None:
    root = build(SHAPES["gb200"], tmp_path)
    minors = {pci: fact.minor for pci, fact in read_proc(Root(str(root))).items()}
    (root / "dev").mkdir()
    for pci in ("0009:06:00.0", "0019:01:00.0"):
        (root / f"dev/nvidia{minors[pci]}").touch()
    facts = read_proc(Root(str(root)))
    assert [fact.index for fact in facts.values()] == [None, 0, None, 1]


def test_a_uuid_that_the_driver_has_not_read_yet_is_unknown(tmp_path: Path) -> None:
    base = tmp_path / "proc/driver/nvidia/gpus/0000:17:00.0"
    base.mkdir(parents=True)
    (base / "information").write_text(
        "Model: \t\t Unknown\nGPU UUID: \t GPU-????????-????-????-????-????????????\n"
    )
    assert read_proc(Root(str(tmp_path)))["0000:17:00.0"].uuid is None


PROC = {
    "nothing but the directory": ({}, (None, 0, None, None, None)),
    "whole": (
        {
            "information": "Model: \t\t H100\nGPU UUID: \t GPU-1\nDevice Minor: \t 3\n",
            "numa_status": "Node:      2\nStatus:    online\n",
        },
        ("GPU-1", 0, 3, "H100", 2),
    ),
    "excluded": (
        {"information": "Device Minor: 0\nGPU Excluded:\t Yes\n"},
        (None, None, 0, None, None),
    ),
    "no memory node": ({"numa_status": "Node:      -1\n"}, (None, 0, None, None, None)),
    "garbage": (
        {"information": "x\nDevice Minor: y\n", "numa_status": "z"},
        (None, 0, None, None, None),
    ),
}


@pytest.mark.parametrize(("files", "wanted"), PROC.values(), ids=PROC)
def test_what_proc_says_of_a_gpu(tmp_path: Path, files: dict[str, str], wanted: tuple) -> None:
    base = tmp_path / "proc/driver/nvidia/gpus/0000:17:00.0"
    base.mkdir(parents=True)
    (base.parent / "not-a-gpu").mkdir()
    for name, text in files.items():
        (base / name).write_text(text)
    (fact,) = read_proc(Root(str(tmp_path))).values()
    assert (fact.uuid, fact.index, fact.minor, fact.name, fact.memory_node) == wanted


def test_without_the_driver_proc_says_nothing(tmp_path: Path) -> None:
    assert read_proc(Root(str(tmp_path))) == {}


HOLDERS = """
import json
from numabind._holders import holders
from numabind._machine import Allowed, Device, Machine
devices = tuple(Device(pci, "nvidia") for pci in ("0000:17:00.0", "10000:b3:00.0"))
machine = Machine((), (), devices=devices, allowed=Allowed(frozenset(), frozenset()))
found = holders(machine).found.items()
print(json.dumps({pid: [sorted(gpus), source] for pid, (gpus, source) in found}))
assert "libcuda" not in open("/proc/self/maps").read()
"""


def test_processes_that_hold_a_gpu(library: Path) -> None:
    second = "gpu uuid=GPU-bb pci=00010000:b3:00.0\nprocess 71\nprocess 72\n"
    found = run(library, H100 + "process 71\n" + second, HOLDERS)
    assert found == {
        "71": [["0000:17:00.0", "10000:b3:00.0"], "nvml"],
        "72": [["10000:b3:00.0"], "nvml"],
    }


def test_no_process_holds_a_gpu(library: Path) -> None:
    assert run(library, H100, HOLDERS) == {}
    assert run(library, H100 + "fail nvmlInit 9\n", HOLDERS) == {}
    failing = H100 + "process 71\nfail nvmlDeviceGetComputeRunningProcesses 3\n"
    assert run(library, failing, HOLDERS) == {}
