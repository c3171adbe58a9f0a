"""PCI addresses, which functions are devices, and where each hangs off."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from machines.build import build
from machines.shapes import SHAPES
from numabind import UsageError, discover
from numabind._discover import find_override, read_overrides
from numabind._machine import Device, Node
from numabind._pci import Override, bus_order, parse_address, parse_map, place, read_nics
from numabind._sysfs import Root
from samples import gpu, machine

ADDRESSES = {
    "usual": ("0000:17:00.0", "0000:17:00.0"),
    "NVML's eight digits": ("00000000:17:00.0", "0000:17:00.0"),
    "capitals": ("0000:AF:00.0", "0000:af:00.0"),
    "no domain": ("b3:00.0", "0000:b3:00.0"),
    "another function": ("0000:c1:1f.7", "0000:c1:1f.7"),
    "domain of five digits (VMD)": ("10000:e1:00.0", "10000:e1:00.0"),
    "domain of 32 bits": ("ffffffff:00:00.0", "ffffffff:00:00.0"),
    "blanks around": (" 0000:17:00.0\n", "0000:17:00.0"),
}
NOT_ADDRESSES = [
    *("", "17", "0000:17:00", "0000:17:00.", "0000:17:00.8", "0000:17:20.0", "17.0"),
    *("0000:117:00.0", "100000000:17:00.0", "0000:1g:00.0", "0000::00.0", "0:0:0:0.0"),
    *("0000:17:00.10", "-1:17:00.0", "0x00:17:00.0", "٠٠٠٠:17:00.0", "0000:17:00.0.0"),
]


@pytest.mark.parametrize(("text", "written"), ADDRESSES.values(), ids=ADDRESSES)
def test_an_address_has_one_spelling(text: str, written: str) -> None:
    assert str(parse_address(text)) == written


@pytest.mark.parametrize("text", NOT_ADDRESSES)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="PCI address"):
        parse_address(text)


@given(st.text("0123456789abcdef:.", max_size=16) | st.text(max_size=16))
def test_any_text_is_an_address_or_a_value_error(text: str) -> None:
    try:
        address = parse_address(text)
    except ValueError:
        return
    assert parse_address(str(address)) == address


def test_bus_order_is_by_number_not_by_letter() -> None:
    names = ["10000:01:00.0", "0009:06:00.0", "0000:b3:00.0", "0000:07:1f.1", "0000:07:1f.0"]
    assert sorted(names, key=bus_order) == names[::-1]


def test_display_adapters_are_found_and_are_no_workers() -> None:
    found = machine("display_gpu").devices
    assert [(d.pci, d.vendor, d.computes) for d in found] == [
        ("0000:17:00.0", "nvidia", True),
        ("0000:65:00.0", "nvidia", True),
        ("0000:69:00.0", "aspeed", False),
        ("0000:b3:00.0", "nvidia", True),
    ]


def test_a_device_in_a_wide_domain_is_found_and_placed() -> None:
    found = machine("hex_domain").devices
    assert [(d.pci, d.node) for d in found] == [("0000:17:00.0", 0), ("10000:b3:00.0", 1)]


NODES = (Node(0, frozenset({0, 1})), Node(1, frozenset({2, 3})))
ONLINE = frozenset(range(4))
ONE = (NODES[0], Node(1, kind="memory"))  # a single node with CPUs
L, R = frozenset({0, 1}), frozenset({2, 3})

# numa_node, local_cpus, nodes, driver's nodes, override; then node, source, near, problems.
PLACES = {
    "numa_node": (1, R, NODES, None, None, 1, "numa_node", (1,), []),
    "numa_node without a list": (1, None, NODES, None, None, 1, "numa_node", (1,), []),
    "numa_node against the list": (
        *(1, L, NODES, None, None),
        *(1, "numa_node", (1,), ["locality-contradiction"]),
    ),
    "numa_node before NVML": (1, R, NODES, {0}, None, 1, "numa_node", (1,), []),
    "numa_node is no node here": (7, ONLINE, NODES, None, None, None, None, (), []),
    "list": (-1, R, NODES, None, None, 1, "local_cpulist", (1,), []),
    "list across both nodes": (-1, frozenset({1, 2}), NODES, None, None, None, None, (), []),
    "list of all CPUs says nothing": (-1, ONLINE, NODES, None, None, None, None, (), []),
    "empty list says nothing": (-1, frozenset(), NODES, None, None, None, None, (), []),
    "list before NVML": (-1, R, NODES, {0}, None, 1, "local_cpulist", (1,), []),
    "NVML": (-1, ONLINE, NODES, {1}, None, 1, "nvml", (1,), []),
    "NVML names both": (-1, ONLINE, NODES, {0, 1}, None, None, None, (), []),
    "NVML names no node here": (-1, ONLINE, NODES, {5}, None, None, None, (), []),
    "the only node with CPUs": (-1, ONLINE, ONE, None, None, 0, "only-node", (0,), []),
    "nothing at all": (None, None, NODES, None, None, None, None, (), []),
    "map beats all": (0, L, NODES, {0}, Override("x", (1,)), 1, "map", (1,), []),
    "map names CPUs": (
        *(0, L, NODES, None, Override("x", cpus=frozenset({3}))),
        *(1, "map", (1,), []),
    ),
    "map names two nodes": (0, L, NODES, None, Override("x", (0, 1)), None, "map", (0, 1), []),
}


@pytest.mark.parametrize("row", PLACES.values(), ids=PLACES)
def test_where_a_device_is(row) -> None:
    numa_node, local, nodes, driver, override, node, source, near, problems = row
    device = Device("0000:17:00.0", "nvidia", numa_node=numa_node, local_cpus=local)
    wanted = None if driver is None else frozenset(driver)
    found, said = place(device, nodes, ONLINE, wanted, override)
    assert (found.node, found.node_source, found.near_nodes) == (node, source, near)
    assert [p.name for p in said] == problems


@pytest.mark.parametrize(
    ("shape", "nodes", "sources"),
    [
        pytest.param("all_minus_one", [None] * 4, {None}, id="nothing told"),
        pytest.param("minus_one_with_local_cpus", [0, 1], {"local_cpulist"}, id="lists tell"),
        pytest.param("one_node", [0], {"only-node"}, id="one node"),
        pytest.param("no_numa_kernel", [0, 0], {"only-node"}, id="kernel without NUMA"),
        pytest.param("gb200", [0, 0, 1, 1], {"numa_node"}, id="GPU memory nodes"),
        pytest.param("gpu_on_cpuless", [0, 2], {"numa_node"}, id="node without CPUs"),
        pytest.param("uneven", [1, 0, 0, 0, 0], {"numa_node"}, id="not in node order"),
    ],
)
def test_where_the_devices_of_a_machine_are(shape: str, nodes: list, sources: set) -> None:
    found = machine(shape).devices
    assert [d.node for d in found] == nodes
    assert {d.node_source for d in found} == sources


def test_a_bridge_above_places_what_firmware_leaves_out(tmp_path: Path) -> None:
    # A switch in the second GPU's way is on node 1; the first GPU's port has no node either.
    shape = SHAPES["two_socket"]
    lost = tuple(replace(gpu, numa_node=-1) for gpu in (shape.gpus[0], shape.gpus[7]))
    root = build(replace(shape, gpus=lost), tmp_path)
    (second,) = (root / "sys/devices").glob("pci0000:b*/*/0000:bd:00.0")
    (second.parent / "numa_node").write_text("1\n")
    found = discover(root).devices
    assert [(d.node, d.node_source) for d in found] == [(None, None), (1, "bridge")]


def test_a_contradiction_is_the_machines_problem() -> None:
    assert [p.name for p in machine("contradiction").problems] == ["locality-contradiction"]
    assert machine("contradiction").devices[1].node == 1


def test_a_map_is_read() -> None:
    text = "# GPUs\n\n0000:17:00.0 nodes=0\n GPU-5d0c  cpus=0-1,8 # near\nb3:00.0 nodes=1-2\n"
    assert parse_map(text) == (
        Override("0000:17:00.0", nodes=(0,)),
        Override("GPU-5d0c", cpus=frozenset({0, 1, 8})),
        Override("b3:00.0", nodes=(1, 2)),
    )


BAD_LINES = {
    "one word": "0000:17:00.0",
    "no equals sign": "0000:17:00.0 nodes",
    "unknown place": "0000:17:00.0 socket=0",
    "three words": "0000:17:00.0 nodes=0 cpus=1",
    "empty": "0000:17:00.0 nodes=",
    "not a list": "0000:17:00.0 cpus=0-",
    "no device's name": "gpu0 nodes=0",
    "an empty UUID": "GPU- nodes=0",
}


@pytest.mark.parametrize("line", BAD_LINES.values(), ids=BAD_LINES)
def test_a_bad_line_of_a_map_is_named(line: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="line 2"):
        parse_map(f"# one\n{line}\n")
    path = tmp_path / "map"
    path.write_text(f"# one\n{line}\n")
    with pytest.raises(UsageError, match=f"{path}: line 2"):
        read_overrides(str(path))


@given(st.text(max_size=60) | st.text("nodescpu=0-9,: #\n", max_size=60))
def test_any_text_is_a_map_or_a_value_error(text: str) -> None:
    try:
        found = parse_map(text)
    except ValueError:
        return
    assert all(bool(o.nodes) != bool(o.cpus) for o in found)


@pytest.mark.parametrize(
    ("keys", "taken"),
    [
        pytest.param(["0000:10:00.0"], 0, id="address"),
        pytest.param(["00000000:10:00.0"], 0, id="address of eight digits"),
        pytest.param(["gpu-000"], 0, id="UUID's beginning, in any case"),
        pytest.param(["0000:10:00.0", "GPU-000"], 1, id="the last line counts"),
        pytest.param(["0000:11:00.0", "GPU-111"], None, id="another device"),
    ],
)
def test_which_line_of_a_map_is_a_devices(keys: list[str], taken: int | None) -> None:
    lines = tuple(Override(key, (0,)) for key in keys)
    assert find_override(gpu(0), lines) == (None if taken is None else lines[taken])


def test_nics(tmp_path: Path) -> None:
    for name, kind, node, names in (
        ("0000:b1:00.0", "0x020700", "1", ("infiniband/mlx5_1", "net/ib0")),
        ("0000:18:00.1", "0x020000", "0", ("net/eth1",)),
        ("0000:02:00.0", "0x020000", "-1", ()),
        ("0000:17:00.0", "0x030200", "0", ()),
    ):
        base = tmp_path / "sys/bus/pci/devices" / name
        base.mkdir(parents=True)
        for file, text in (("class", kind), ("numa_node", node), ("vendor", "0x15b3"),
                           ("device", "0x1021")):  # fmt: skip
            (base / file).write_text(f"{text}\n")
        for path in names:
            (base / path).mkdir(parents=True)
    two = (Node(0, frozenset({0})), Node(1, frozenset({1})))
    found = read_nics(Root(str(tmp_path)), two)
    assert [(nic.pci, nic.node, nic.names) for nic in found] == [
        ("0000:02:00.0", None, ()),
        ("0000:18:00.1", 0, ("eth1",)),
        ("0000:b1:00.0", 1, ("mlx5_1", "ib0")),
    ]
    assert {(nic.vendor_id, nic.device_id) for nic in found} == {(0x15B3, 0x1021)}
    assert read_nics(Root(str(tmp_path)), two[:1])[0].node == 0, "there is no other"
