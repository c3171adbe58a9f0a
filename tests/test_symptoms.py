"""What people report, from environment and machine to the place: docs/troubleshooting.md."""

from __future__ import annotations

import re
from dataclasses import replace as changed
from pathlib import Path

import pytest

from machines.known import KNOWN
from machines.shapes import SHAPES
from machines.spec import Shape
from numabind._bind import Request, seat_of
from numabind._catalogue import CATALOGUE
from numabind._cpulist import format_list
from numabind._doctor import CHECKS
from numabind._inherited import place
from numabind._machine import Machine, Partition
from numabind._options import make_options
from numabind._placement import Placement
from numabind._record import replace
from samples import machine

DOCS = Path(__file__).parent.parent / "docs"
H100 = SHAPES["hgx_h100"]
ALL = {**SHAPES, **KNOWN}


def worker(where: Machine, environ: dict[str, str], **options: object) -> Placement:
    """The place of the worker that has this environment."""
    request = Request(make_options(options), environ)
    seat, size = seat_of(where, request)
    (placement,) = place(where, (seat,), request.options, environ, size)
    return placement


def ranked(rank: int, shown: str | None = None, size: int | None = None) -> dict[str, str]:
    found = {"LOCAL_RANK": str(rank)}
    if shown is not None:
        found["CUDA_VISIBLE_DEVICES"] = shown
    if size is not None:
        found["LOCAL_WORLD_SIZE"] = str(size)
    return found


# hgx_h100: GPUs 1b 43 52 61 on node 0 (0-55,112-167), 9d c3 d1 df on node 1 (56-111,168-223).
SECOND = "56-111,168-223"
FIRST = "0-55,112-167"
LOST = tuple(changed(gpu, numa_node=-1) if i == 2 else gpu for i, gpu in enumerate(H100.gpus))
# machine, changes, environment, options: device, CPUs, memory nodes, problems
SYMPTOMS = {
    # PrimeIntellect-ai/prime-rl#3234, NVIDIA/TensorRT-LLM#12985, rapidsai/dask-cuda#671
    "the upper half of the GPUs": (
        *("hgx_h100", {}, ranked(0, "4,5,6,7"), {}),
        *("9d", SECOND, "1", []),
    ),
    "two GPUs across the sockets": ("hgx_h100", {}, ranked(1, "3,4"), {}, "9d", SECOND, "1", []),
    "back to front": ("dgx1", {}, ranked(0, "7,6,5,4"), {}, "8a", "20-39,60-79", "1", []),
    # NovaSky-AI/SkyRL#1936: an actor sees one GPU, whatever its rank
    "one GPU for each actor": ("hgx_h100", {}, ranked(3, "2"), {}, "52", FIRST, "0", []),
    "one GPU for each actor, on the other socket": (
        *("hgx_h100", {}, ranked(1, "6"), {}),
        *("d1", SECOND, "1", []),
    ),
    # noonghunna/club-3090#46
    "an uneven machine": ("uneven", {}, ranked(0), {}, "04", "8-15,24-31", "1", []),
    # NVIDIA/exemplar-performance#38: four GPUs on two nodes, beside 32 others
    "GPU memory nodes": ("gb200_all_online", {}, ranked(1), {}, "0009:06", "0-71", "0", []),
    # vllm-project/vllm#25848
    "sub-NUMA clusters": ("snc3", {}, ranked(1), {}, "5d", "48-71,192-215", "2", []),
    # sgl-project/sglang#26983, mlcommons/training_results_v0.7#6
    "some of the node's CPUs": (
        *("hgx_h100", {"allowed_cpus": "6-25,96-99"}, ranked(5), {}),
        *("c3", "96-99", "1", ["cpus-reduced"]),
    ),
    # sgl-project/sglang#20077, rapidsai/dask-cuda#1381, openxla/xla#45484
    "none of the node's CPUs": (
        *("hgx_h100", {"allowed_cpus": "6-25"}, ranked(5), {}),
        *("c3", "6-25", "1", ["cpus-not-allowed"]),
    ),
    # numactl/numactl#223
    "none of the node's memory": (
        *("hgx_h100", {"allowed_nodes": "0"}, ranked(5), {"memory": "bind"}),
        *("c3", SECOND, "", ["memory-not-allowed"]),
    ),
    # NVIDIA/TensorRT-LLM#9549: numabind plans within one CPU, and says so
    "one CPU": (
        *("hgx_h100", {"allowed_cpus": "2"}, ranked(0), {}),
        *("1b", "2", "0", ["cpus-reduced"]),
    ),
    # Mellanox/ngc_multinode_perf#6, sgl-project/sglang#31317
    "nobody knows": ("all_minus_one", {}, ranked(1), {}, "09", "0-187", "", ["no-numa-node"]),
    "nobody knows one GPU's place": (
        *("hgx_h100", {"gpus": LOST}, ranked(2), {}),
        *("52", "0-223", "", ["no-numa-node"]),
    ),
    "a GPU beside it": ("hgx_h100", {"gpus": LOST}, ranked(3), {}, "61", FIRST, "0", []),
    # microsoft/WSL#10277
    "one node": ("wsl2", {}, ranked(1), {}, None, "0-15", "0", ["one-node"]),
    "two of eight": ("two_of_eight", {}, ranked(1), {}, "d1", SECOND, "1", []),
    "two of eight, by the host's numbers": (
        *("two_of_eight", {}, ranked(1, "4,6"), {}),
        *(None, "0-223", "", ["no-device"]),
    ),
    "more ranks than GPUs": (
        *("hgx_h100", {}, ranked(9, size=16), {}),
        *(None, "0-223", "", ["more-workers-than-devices"]),
    ),
    "a rank past the GPUs": (
        *("hgx_h100", {}, ranked(9), {}),
        *(None, "0-223", "", ["rank-without-device"]),
    ),
    "shared": ("hgx_h100", {}, ranked(9, size=16), {"share": "block"}, "9d", SECOND, "1", []),
    "a rank of the cluster": (
        *("hgx_h100", {}, {"RANK": "5", "WORLD_SIZE": "8", "SLURM_PROCID": "5"}, {}),
        *(None, "0-223", "", ["no-local-rank"]),
    ),
    "Slurm's rank alone": ("hgx_h100", {}, {"SLURM_LOCALID": "5"}, {}, "c3", SECOND, "1", []),
    "unlike GPUs": (
        *("unlike_gpus", {}, ranked(1), {}),
        *(None, "0-15", "", ["device-order-unknown"]),
    ),
    # huggingface/accelerate#3911
    "OpenMP's own binding": (
        *("hgx_h100", {}, {**ranked(0), "KMP_AFFINITY": "granularity=fine,compact,1,0"}, {}),
        *("1b", FIRST, "0", ["openmp-binds"]),
    ),
    # pytorch/pytorch#22260, deepspeedai/DeepSpeed#1635
    "one thread": (
        *("hgx_h100", {}, {**ranked(0, size=8), "OMP_NUM_THREADS": "1"}, {}),
        *("1b", FIRST, "0", ["one-openmp-thread"]),
    ),
    "CPUs that went offline": (
        *("offline_cpus", {}, ranked(1), {}),
        *("b3", "4,6-7,12,14-15", "1", []),
    ),
    "node numbers with gaps": ("sparse", {}, ranked(2), {}, "b3", "8-11", "5", []),
    "a domain of five digits": ("hex_domain", {}, ranked(1), {}, "10000:b3", "8-15", "1", []),
}


@pytest.mark.parametrize("symptom", SYMPTOMS)
def test_a_symptom(symptom: str) -> None:
    name, changes, environ, options, device, cpus, memory, said = SYMPTOMS[symptom]
    shape: Shape = changed(ALL[name], **changes)
    found = worker(machine(shape), environ, **options)
    address = None
    if device is not None:
        address = f"{device}:00.0" if ":" in device else f"0000:{device}:00.0"
    assert (found.device, format_list(found.cpus)) == (address, cpus)
    assert (format_list(found.memory_nodes), [p.name for p in found.problems]) == (memory, said)


def test_what_the_scheduler_should_have_given_is_named() -> None:
    # NVIDIA/deepops#1195, SlinkyProject/slurm-operator#205
    found = worker(machine(changed(H100, allowed_cpus="0-15")), ranked(5))
    assert f"node 1 has CPUs {SECOND}, this process may use 0-15" in found.problems[0].cause


@pytest.mark.parametrize("shown", ["MIG-b", "MIG-GPU-5/3/0"])
def test_an_instance_is_where_its_gpu_is(shown: str) -> None:
    # rapidsai/dask-cuda#583
    where = machine(H100)
    *others, last = where.devices
    split = replace(last, uuid="GPU-5", partitions=(Partition("MIG-b", 3, 0),))
    found = worker(replace(where, devices=(*others, split)), ranked(0, shown))
    assert (found.device, found.node) == ("MIG-b", 1)


def test_the_page_names_what_there_is() -> None:
    text = (DOCS / "troubleshooting.md").read_text()
    linked = set(re.findall(r"\(problems\.md#([a-z0-9-]+)\)", text))
    findings = set(re.findall(r"\(doctor\.md#([a-z0-9-]+)\)", text))
    assert linked
    assert linked <= CATALOGUE.keys()
    assert findings <= {check.name for check in CHECKS}
