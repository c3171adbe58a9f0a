"""Joining the readers: overlaps, NUMABIND_MAP, AMD's files, snapshots of here and elsewhere."""

from __future__ import annotations

import shutil
from dataclasses import replace as changed
from pathlib import Path

import pytest

from machines.build import build
from machines.shapes import SHAPES
from numabind import MachineError, UsageError, discover
from numabind._discover import anonymous, discover_here, unfit, without_overlaps
from numabind._doctor import doctor
from numabind._machine import Node
from numabind._pci import parse_map
from numabind._record import replace
from numabind._sysfs import NODE, Root
from samples import NO_RUNTIME, machine


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(SHAPES["sparse"], tmp_path_factory.mktemp("sparse"))


def mapped(root: Path, text: str):
    return discover(root, replace(NO_RUNTIME, overrides=parse_map(text)))


def test_a_map_overrides_the_firmware(sparse: Path) -> None:
    found = mapped(sparse, "0000:17:00.0 nodes=2\n5d:00.0 cpus=9,11\nb3:00.0 nodes=0,2\n")
    assert [(d.node, d.near_nodes, d.node_source) for d in found.devices] == [
        (2, (2,), "map"),
        (5, (5,), "map"),
        (None, (0, 2), "map"),
    ]
    assert found.devices[1].local_cpus == {9, 11}
    assert found.problems == ()


def test_a_map_key_that_begins_several_uuids_is_refused(tmp_path: Path) -> None:
    shape = SHAPES["sparse"]
    twins = tuple(changed(gpu, uuid=f"GPU-5d0c{i}") for i, gpu in enumerate(shape.gpus))
    root = build(changed(shape, gpus=twins), tmp_path)
    with pytest.raises(UsageError, match=f"names {len(twins)} GPUs"):
        mapped(root, "GPU-5d0c nodes=0\n")
    assert mapped(root, "GPU-5d0c1 nodes=0\n").devices[1].node == 0


def test_lines_of_a_map_that_name_nothing_are_said(sparse: Path) -> None:
    found = mapped(sparse, "0000:99:00.0 nodes=0\n0000:17:00.0 nodes=0\n17:00.0 nodes=2\n")
    assert [p.name for p in found.problems] == ["map-unmatched", "map-unmatched"]
    assert found.devices[0].node == 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        pytest.param("17:00.0 nodes=1", "no node 1 here; the nodes are 0,2,5", id="no such node"),
        pytest.param("17:00.0 cpus=90-99", "CPUs 90-99 is online", id="no such CPU"),
    ],
)
def test_a_map_of_another_machine_is_refused(sparse: Path, line: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        mapped(sparse, line)


def test_a_node_that_overlaps_an_earlier_one_is_left_out() -> None:
    first = Node(0, frozenset({0, 1}), 1, (10, 20, 30))
    second = Node(1, frozenset({1, 2}), 1, (20, 10, 40))
    third = Node(2, frozenset({3}), 1, (30, 40, 10))
    kept, said = without_overlaps((first, second, third))
    assert [(node.id, node.distances) for node in kept] == [(0, (10, 30)), (2, (30, 10))]
    assert [p.name for p in said] == ["overlapping-nodes"]


HIDDEN = {
    "a device's node": ({"allowed_nodes": "0"}, True),
    "nodes that may be used": ({"gpus": ()}, True),
    "neither": ({"gpus": (), "allowed_nodes": "0"}, False),
}


@pytest.mark.parametrize(("changes", "hidden"), HIDDEN.values(), ids=HIDDEN)
def test_nodes_that_sysfs_hides_are_not_one_node(
    changes: dict[str, object], hidden: bool, tmp_path: Path
) -> None:
    root = build(changed(SHAPES["two_socket"], **changes), tmp_path)
    for path in (root / NODE, *(root / "sys/devices/system/cpu").glob("cpu*/node*")):
        path.unlink() if path.is_symlink() else shutil.rmtree(path)
    if hidden:
        with pytest.raises(MachineError, match=r"is not there, though this kernel has a node 1"):
            discover(root, NO_RUNTIME)
        assert [finding.name for finding in doctor({}, str(root))] == ["no-topology"]
    else:
        assert not discover(root, NO_RUNTIME).host.numa


def test_nodes_with_the_same_cpus_stay() -> None:
    nodes = (Node(0, frozenset({0})), Node(1, frozenset({0})), Node(2))
    assert without_overlaps(nodes) == (nodes, ())


def test_amds_files_name_its_gpus(tmp_path: Path) -> None:
    root = build(changed(SHAPES["sparse"], gpus=SHAPES["mi300x"].gpus[:4]), tmp_path)
    found = discover(root, NO_RUNTIME).devices
    assert [d.index for d in found] == [0, 1, 2, 3]
    assert [d.minor for d in found] == [128, 129, 130, 131]
    assert {d.name for d in found} == {"AMD Instinct MI300X"}
    assert len({d.uuid for d in found}) == 4
    assert all(str(d.uuid).startswith("GPU-") and len(str(d.uuid)) == 20 for d in found)
    # A container that is lent two of them: those alone are numbered.
    (root / "dev/dri").mkdir(parents=True)
    for minor in (129, 131):
        (root / f"dev/dri/renderD{minor}").touch()
    assert [d.index for d in discover(root, NO_RUNTIME).devices] == [None, 0, None, 1]


def test_settings_are_read_where_they_are_asked_for(tmp_path: Path) -> None:
    gone, h100 = SHAPES["two_socket"].gpus[0].pci, SHAPES["two_socket"]
    files = (
        ("sys/module/nvidia/version", "570.86.15\n"),
        (f"sys/bus/pci/devices/{gone}/current_link_width", "255\n"),
    )
    root = build(changed(h100, numa_balancing=1, files=files), tmp_path)
    found = discover(root, NO_RUNTIME)
    assert found.host.numa_balancing == 1
    assert {d.driver_version for d in found.devices} == {"570.86.15"}
    assert [d.link_width for d in found.devices][:2] == [None, 16]
    assert type(found).from_dict(found.as_dict()) == found
    found = discover(root, replace(NO_RUNTIME, settings=False))
    assert found.host.numa_balancing is None
    assert {(d.driver_version, d.link_width) for d in found.devices} == {(None, None)}


def test_an_anonymous_machine_keeps_its_shape_only() -> None:
    before = machine("sparse")
    after = anonymous(before)
    assert (after.nodes, after.cpus, after.allowed) == (before.nodes, before.cpus, before.allowed)
    assert after.host.name is None
    assert after.host.boot_id != before.host.boot_id
    assert {d.uuid for d in after.devices} == {None}
    assert [d.node for d in after.devices] == [0, 2, 5]


def edited(**changes: object):
    here = machine("sparse")
    return replace(here, host=replace(here.host, boot_id=None), **changes)


MISFITS = {
    "itself": (machine("sparse"), None),
    "edited by hand": (edited(devices=()), None),
    "more CPUs": (machine("offline_cpus"), "CPUs that are not online here"),
    "another boot": (
        replace(machine("sparse"), host=replace(machine("sparse").host, boot_id="x")),
        "boot id",
    ),
    "a device gone": (
        replace(
            machine("sparse"),
            devices=(replace(machine("sparse").devices[0], pci="0000:99:00.0"),),
        ),
        "0000:99:00.0 is not on this machine",
    ),
    "a device more": (replace(machine("sparse"), devices=machine("sparse").devices[1:]), "0000:17"),
    "another GPU in its place": (
        replace(
            machine("sparse"),
            devices=tuple(replace(d, uuid="GPU-x") for d in machine("sparse").devices),
        ),
        "GPU-x in it",
    ),
    "anonymized": (anonymous(machine("sparse")), "boot id"),
}


@pytest.mark.parametrize(("snapshot", "cause"), MISFITS.values(), ids=MISFITS)
def test_whether_a_snapshot_is_of_this_machine(sparse: Path, snapshot, cause) -> None:
    said = unfit(snapshot, Root(str(sparse)))
    assert said is None if cause is None else cause in str(said)


def test_a_broken_snapshot_or_map_names_the_variable(tmp_path: Path) -> None:
    (tmp_path / "bad").write_text("nonsense")
    for variable in ("NUMABIND_SNAPSHOT", "NUMABIND_MAP"):
        with pytest.raises(UsageError, match=f"{variable}.*{tmp_path}/bad"):
            discover_here({variable: str(tmp_path / "bad")}, NO_RUNTIME)


def test_what_may_be_used_is_always_read_afresh(tmp_path: Path) -> None:
    here = discover("/", NO_RUNTIME)
    pretended = replace(here.allowed, cpu_quota=0.25, cpus=frozenset())
    replace(here, allowed=pretended).save(tmp_path / "m")
    found = discover_here({"NUMABIND_SNAPSHOT": str(tmp_path / "m")}, NO_RUNTIME)
    assert found.allowed == here.allowed
