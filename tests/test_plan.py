"""Where workers go. Expected values are PyTorch's (torch 2.13.0, run) or worked out by hand."""

from __future__ import annotations

import json
from dataclasses import replace as changed

import pytest
from hypothesis import given
from hypothesis import strategies as st

from machines.shapes import pytorch_grid
from machines.spec import GpuSpec
from numabind import UsageError, plan
from numabind._cpulist import format_list, parse_list
from numabind._machine import Partition
from numabind._options import MEMORY, MODES, Options
from numabind._plan import plan_seats
from numabind._record import replace
from numabind._resolve import seat_of_rank
from numabind._visible import visible
from samples import gpu, machine, machines, with_devices


def names(placement) -> list[str]:
    return [p.name for p in placement.problems]


def cpus(placed) -> list[str]:
    return [format_list(p.cpus) for p in placed.placements]


# Sockets, nodes a socket, GPUs a node, L3s a node, cores an L3: PyTorch's own tests.
GOLDEN = {
    "node": ("node", (4, 2, 2, 4, 2), 11, "80-95"),
    "socket of two nodes": ("socket", (4, 2, 2, 4, 2), 15, "96-127"),
    "socket of one node": ("socket", (4, 1, 2, 4, 2), 7, "48-63"),
    "exclusive, the larger share": ("exclusive", (2, 1, 2, 1, 3), 0, "0-3"),
    "exclusive, the smaller share": ("exclusive", (2, 1, 2, 1, 3), 1, "4-5"),
    "core-complex": ("core-complex", (2, 1, 2, 3, 3), 3, "24-29"),
    "core-complex, more GPUs than L3s": ("core-complex", (2, 1, 2, 1, 3), 3, "6-11"),
    "core-complex, tie": ("core-complex", (1, 1, 1, 2, 1), 0, "0-1"),
}


@pytest.mark.parametrize(("mode", "grid", "rank", "wanted"), GOLDEN.values(), ids=GOLDEN)
def test_pytorchs_answers(mode: str, grid: tuple[int, ...], rank: int, wanted: str) -> None:
    placement = plan(machine(pytorch_grid(*grid)), mode=mode).placements[rank]
    assert (format_list(placement.cpus), placement.bound) == (wanted, True)


def test_pytorchs_answer_for_an_unknown_node_of_a_machine_with_one() -> None:
    lost = changed(pytorch_grid(1, 1, 1, 1, 1), gpus=(GpuSpec("0000:03:00.0", -1),))
    (placement,) = plan(machine(lost)).placements
    assert (format_list(placement.cpus), placement.bound) == ("0-1", True)


def test_the_largest_group_within_a_mask_comes_first() -> None:
    masked = machine(pytorch_grid(1, 1, 1, 3, 3), allowed_cpus="0,4,6-7,9")
    (placement,) = plan(masked, mode="core-complex").placements
    assert format_list(placement.cpus) == "6-7,9"


# 2 sockets of 64 cores, siblings N/N+128, 8-core L3s, four GPUs a node: GPUs 0, 3, 4, 7.
N0, N1 = "0-63,128-191", "64-127,192-255"
TABLE = {
    "node": (N0, N0, N1, N1),
    "socket": (N0, N0, N1, N1),
    "exclusive": ("0-15,128-143", "48-63,176-191", "64-79,192-207", "112-127,240-255"),
    "core-complex": ("0-7,128-135", "24-31,152-159", "64-71,192-199", "88-95,216-223"),
}


@pytest.mark.parametrize("mode", MODES)
def test_pytorchs_answers_on_a_large_machine(mode: str) -> None:
    found = cpus(plan(machine("two_socket"), mode=mode))
    assert tuple(found[n] for n in (0, 3, 4, 7)) == TABLE[mode]


def allow(where, text: str, nodes: str = "0-1"):
    mask = replace(where.allowed, cpus=parse_list(text), nodes=parse_list(nodes))
    return replace(where, allowed=mask)


def test_exclusive_shares_of_a_mask() -> None:
    masked = allow(machine("two_socket"), "0-3,128-131")
    found = plan(masked, mode="exclusive").placements
    assert [format_list(p.cpus) for p in found[:4]] == ["0,128", "1,129", "2,130", "3,131"]
    # The GPUs of node 1 have none of it: the mask stays.
    assert [p.bound for p in found] == [True] * 4 + [False] * 4
    assert names(found[4]) == ["cpus-not-allowed"]
    assert format_list(found[4].cpus) == "0-3,128-131"


def test_hidden_gpus_count_in_exclusive() -> None:
    where = machine("two_socket")
    seen = visible(where, {"CUDA_VISIBLE_DEVICES": "3,4"})
    found = plan(where, visible=seen, mode="exclusive")
    assert cpus(found) == ["48-63,176-191", "64-79,192-207"]


def test_workers_of_one_gpu_share_its_exclusive_block() -> None:
    found = plan(machine("two_socket"), workers=16, share="block", mode="exclusive")
    assert cpus(found)[:3] == ["0-15,128-143", "0-15,128-143", "16-31,144-159"]
    assert {p.threads for p in found.placements} == {8}


# shape, options: CPUs of each worker
SPECIAL = {
    "no SMT": ("two_socket", {"smt": False}, ["0-63"] * 4 + ["64-127"] * 4),
    "no SMT, exclusive": (
        *("offline_cpus", {"smt": False, "mode": "exclusive"}),
        ["0-3", "4,6-7"],
    ),
    "one sibling offline": ("offline_cpus", {}, ["0-3,8,10-11", "4,6-7,12,14-15"]),
    "reserve": (
        "two_socket",
        {"reserve": 2},
        ["2-63,130-191"] * 4 + ["66-127,194-255"] * 4,
    ),
    "reserve, exclusive": (
        *("uneven", {"reserve": 3, "mode": "exclusive"}),
        ["11-15,27-31", "3-4,19-20", "5,21", "6,22", "7,23"],
    ),
    "socket of four nodes": ("nps4", {"mode": "socket"}, [N0] * 4 + [N1] * 4),
    "node of NPS4": (
        "nps4",
        {},
        [
            *("48-63,176-191", "48-63,176-191", "16-31,144-159", "16-31,144-159"),
            *("112-127,240-255", "112-127,240-255", "80-95,208-223", "80-95,208-223"),
        ],
    ),
    "node numbers with gaps": ("sparse", {}, ["0-3", "4-7", "8-11"]),
    "socket, gaps": ("sparse", {"mode": "socket"}, ["0-7", "0-7", "8-11"]),
    "GPUs not in node order": ("uneven", {}, ["8-15,24-31", *["0-7,16-23"] * 4]),
    "even and odd": (
        *("even_odd", {"mode": "exclusive", "smt": False}),
        [format_list(set(range(a, a + 20, 2))) for a in (0, 20, 1, 21)],
    ),
    "GB200": ("gb200", {}, ["0-71", "0-71", "72-143", "72-143"]),
    "AMD": (
        "mi300x",
        {"mode": "core-complex"},
        [
            *("0-7,192-199", "8-15,200-207", "16-23,208-215", "24-31,216-223"),
            *("96-103,288-295", "104-111,296-303", "112-119,304-311", "120-127,312-319"),
        ],
    ),
    "only list tells": ("minus_one_with_local_cpus", {}, ["0-7", "8-15"]),
}


@pytest.mark.parametrize(("shape", "options", "wanted"), SPECIAL.values(), ids=SPECIAL)
def test_cpus_worked_out_by_hand(shape: str, options: dict, wanted: list[str]) -> None:
    found = plan(machine(shape), **options)
    assert cpus(found) == wanted
    assert all(p.bound for p in found.placements)


# shape, options, rank: CPUs, node, memory nodes, policy, bound, problems
LIMITS = {
    "reserve too large": (
        *("sparse", {"reserve": 4}, 0),
        *("0-3", 0, "0", "prefer", True, ["reserve-too-large"]),
    ),
    "fewer cores than GPUs": (
        *(pytorch_grid(2, 1, 2, 1, 1), {"mode": "exclusive"}, 1),
        *("0-1", 0, "0", "prefer", True, ["too-few-cores"]),
    ),
    "no caches": (
        *("vm_one_node", {"mode": "core-complex"}, 0),
        *("0-7", 0, "0", "prefer", True, ["no-l3-groups", "one-node"]),
    ),
    "no package": (
        *("bare", {"mode": "socket"}, 1),
        *("8-15", 1, "1", "prefer", True, ["no-package"]),
    ),
    "node without memory": (
        *("memoryless", {}, 1),
        *("8-15", 1, "0", "prefer", True, ["memory-lent"]),
    ),
    "GPU on a node without CPUs": (
        *("gpu_on_cpuless", {}, 1),
        *("8-15", 2, "2", "prefer", True, ["cpus-lent"]),
    ),
    # Both sockets are as far from it, so neither is guessed.
    "GPU on a node without anything": (
        *("generic_initiator", {}, 1),
        *("0-15", 2, "0-1", "prefer", True, ["cpus-lent", "memory-lent"]),
    ),
    "node whose CPUs are offline": (
        *("node_offline", {}, 1),
        *("0-7", 1, "1", "prefer", True, ["cpus-lent"]),
    ),
    "GPU memory is never host memory": (
        *("gb200", {}, 3),
        *("72-143", 1, "1", "prefer", True, []),
    ),
    "one node": ("one_node", {}, 0, "0-15", 0, "0", "prefer", True, ["one-node"]),
    "kernel without NUMA": (
        *("no_numa_kernel", {}, 1),
        *("0-15", 0, "0", "prefer", True, ["one-node"]),
    ),
    "node unknown": (
        *("all_minus_one", {}, 2),
        *("0-187", None, "", "none", False, ["no-numa-node"]),
    ),
    "no device, two nodes": (
        *("no_gpu", {}, 0),
        *("0-15", None, "", "none", False, ["no-device"]),
    ),
    "CPUs not allowed, nor memory": (
        *("container", {}, 1),
        *("0-63", 1, "", "none", False, ["cpus-not-allowed", "memory-not-allowed"]),
    ),
    "memory left alone": (
        *("sparse", {"memory": "none"}, 1),
        *("4-7", 2, "", "none", True, []),
    ),
    "memory of a socket": (
        *("sparse", {"mode": "socket", "memory": "bind"}, 1),
        *("0-7", 2, "0,2", "bind", True, []),
    ),
}


@pytest.mark.parametrize("row", LIMITS.values(), ids=LIMITS)
def test_what_limits_a_placement_is_named(row) -> None:
    shape, options, rank, wanted, node, memory, policy, bound, said = row
    found = plan(machine(shape), **options).placements[rank]
    assert format_list(found.cpus) == wanted
    assert (found.node, format_list(found.memory_nodes)) == (node, memory)
    assert (found.memory_policy, found.bound, names(found)) == (policy, bound, said)
    assert found.reasons


def test_no_device_on_one_node_is_no_problem() -> None:
    (found,) = plan(with_devices()).placements
    assert (format_list(found.cpus), found.node, found.bound) == ("0-3", 0, True)
    assert (found.device, names(found)) == (None, ["one-node"])


def test_a_map_cannot_send_memory_to_a_gpu() -> None:
    where = machine("gb200")
    first = replace(where.devices[0], node=None, near_nodes=(0, 2), node_source="map")
    (found, *_) = plan(replace(where, devices=(first, *where.devices[1:]))).placements
    assert (format_list(found.memory_nodes), names(found)) == ("0", ["memory-lent"])


def test_cpus_and_memory_that_are_cut_are_said() -> None:
    found = plan(allow(machine("two_socket"), "0-7", "1")).placements[0]
    assert (format_list(found.cpus), found.bound) == ("0-7", True)
    assert names(found) == ["cpus-reduced", "memory-not-allowed"]
    assert (found.memory_policy, found.memory_nodes) == ("none", set())
    assert "8 of the 128 CPUs on node 0" in found.problems[0].cause


# shape, quota, workers, options: threads of each
THREADS = {
    "a GPU a node": ("sparse", None, None, {}, [4, 4, 4]),
    "sharers": ("two_socket", None, None, {}, [16] * 8),
    "one worker has the node": ("two_socket", None, 1, {}, [64]),
    "exclusive": ("two_socket", None, None, {"mode": "exclusive"}, [16] * 8),
    "two of three share": ("sparse", None, None, {"mode": "socket"}, [4, 4, 4]),
    "without SMT the same": ("two_socket", None, None, {"smt": False}, [16] * 8),
    "uneven": ("uneven", None, None, {}, [8, 2, 2, 2, 2]),
    "quota over all workers": ("two_socket", 24.0, None, {}, [3] * 8),
    "quota of part of a CPU": ("two_socket", 0.5, None, {}, [1] * 8),
    "quota above the cores": ("sparse", 99.0, None, {}, [4, 4, 4]),
    "the cgroup's": ("quota", None, None, {}, [2, 2]),
    "more workers than cores": ("one_node", None, 100, {"share": "block"}, [1] * 100),
    "no device": ("no_gpu", None, 4, {}, [4] * 4),
}


@pytest.mark.parametrize("row", THREADS.values(), ids=THREADS)
def test_the_thread_budget(row) -> None:
    shape, quota, workers, options, wanted = row
    where = machine(shape)
    if quota is not None:
        where = replace(where, allowed=replace(where.allowed, cpu_quota=quota))
    found = plan(where, workers=workers, **options)
    assert [p.threads for p in found.placements] == wanted


@pytest.mark.parametrize("workers", [1, 4, 8, 16, 24])
def test_a_worker_that_sees_itself_only_has_the_same_budget(workers: int) -> None:
    where, options = machine("two_socket"), Options(share="block")
    whole = plan(where, workers=workers, share="block")
    for rank in {0, workers - 1}:
        seat = seat_of_rank(where, visible(where, {}), rank, workers, "block")
        alone = plan_seats(where, (seat,), options, workers).placements[0]
        # With fewer workers than GPUs the unseen are taken to be near: never more threads.
        assert alone.threads <= whole.placements[rank].threads
        if workers >= 8:
            assert alone == whole.placements[rank]


def test_mig_instances_are_where_their_gpu_is() -> None:
    where = with_devices(gpu(0), gpu(1, partitions=(Partition("MIG-1", 1, 0),)))
    seen = visible(where, {"CUDA_VISIBLE_DEVICES": "MIG-1"})
    (found,) = plan(where, visible=seen, mode="exclusive").placements
    assert (found.device, found.pci) == ("MIG-1", "0000:11:00.0")
    assert format_list(found.cpus) == "2-3"


BAD_OPTIONS = {
    "mode": {"mode": "nod"},
    "memory": {"memory": "near"},
    "share": {"share": "evenly"},
    "threads": {"threads": "many"},
    "reserve": {"reserve": -1},
    "moed": {"moed": "node"},
    "workers": {"workers": 0},
}


@pytest.mark.parametrize(("named", "options"), BAD_OPTIONS.items(), ids=BAD_OPTIONS)
def test_an_option_that_cannot_be_is_named(named: str, options: dict) -> None:
    with pytest.raises(UsageError, match=named):
        plan(machine("sparse"), **options)


def test_a_plan_is_json() -> None:
    data = json.loads(json.dumps(plan(machine("memoryless")).as_dict()))
    assert (data["schema"], data["options"]["mode"]) == (1, "node")
    second = data["placements"][1]
    assert (second["cpus"], second["memory_nodes"]) == ("8-15", "0")
    assert [p["name"] for p in second["problems"]] == ["memory-lent"]


OPTIONS = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(MODES),
        "memory": st.sampled_from(MEMORY),
        "smt": st.booleans(),
        "reserve": st.integers(0, 3),
        "share": st.sampled_from(["block", "cyclic"]),
    }
)


@given(machines(), st.none() | st.integers(1, 12), OPTIONS)
def test_no_plan_leaves_what_is_allowed(where, workers, options) -> None:
    found = plan(where, workers=workers, **options)
    for p in found.placements:
        assert p.cpus <= where.allowed.cpus
        assert p.memory_nodes <= where.allowed.nodes
        assert p.threads >= 1
        assert p.reasons
        assert p.bound or p.problems
        assert not p.bound or p.cpus
        kinds = {where.node(n).kind for n in p.memory_nodes}
        assert "gpu" not in kinds


@given(machines(), st.booleans())
def test_exclusive_shares_are_disjoint_and_cover_the_cores(where, smt: bool) -> None:
    found = plan(where, mode="exclusive", smt=smt).placements
    shares = [p for p in found if p.device and p.bound and "too-few-cores" not in names(p)]
    for i, one in enumerate(shares):
        for other in shares[:i]:
            assert not one.cpus & other.cpus
    # All GPUs of a place have a share or none has one, and the shares are all of its cores.
    core_of = {cpu.id: cpu.core for cpu in where.cpus}
    held = {core_of[cpu] for p in shares for cpu in p.cpus}
    near = {n for p in shares for n in [p.node] if where.node(n).cpus}
    wanted = {core_of[cpu] for n in near for cpu in where.node(n).cpus & where.allowed.cpus}
    assert wanted <= held
    if smt:
        all_of = {cpu for cpu in where.allowed.cpus if core_of[cpu] in held}
        assert {cpu for p in shares for cpu in p.cpus} == all_of


def test_exclusive_says_where_places_overlap_without_being_the_same() -> None:
    whole = machine("two_socket")
    first, second, *rest = whole.devices
    narrow = replace(first, node_source="map", local_cpus=frozenset(range(8)))
    placements = plan(replace(whole, devices=(narrow, second, *rest)), mode="exclusive").placements
    said = [[p.name for p in placement.problems] for placement in placements]
    assert said[:2] == [["places-overlap"], ["places-overlap"]]
    assert said[4] == []
