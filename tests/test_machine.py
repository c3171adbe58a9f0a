"""The snapshot: written, read back, and refused by name of file and field when it is broken."""

from __future__ import annotations

import copy
import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numabind import Machine, MachineError
from numabind._machine import Partition
from numabind._problems import problem
from numabind._record import replace
from numabind._snapshot import SCHEMA
from samples import gpu, machine, machines, with_devices


@pytest.mark.parametrize(
    "name",
    ["sparse", "gb200", "offline_cpus", "display_gpu", "container", "no_numa_kernel", "bare"],
)
def test_a_saved_machine_is_loaded_as_it_was(name: str, tmp_path: Path) -> None:
    before = machine(name)
    before.save(tmp_path / "machine.json")
    assert Machine.load(tmp_path / "machine.json") == before
    assert os.listdir(tmp_path) == ["machine.json"]


def test_partitions_problems_and_quota_are_kept(tmp_path: Path) -> None:
    before = with_devices(gpu(0, partitions=(Partition("MIG-1", 1, 0), Partition("MIG-2"))))
    said = problem("nvml-unavailable", "not here")
    before = replace(before, problems=(said,), allowed=replace(before.allowed, cpu_quota=1.5))
    before.save(tmp_path / "m")
    assert Machine.load(tmp_path / "m") == before


@given(machines())
def test_any_machine_survives_json(before: Machine) -> None:
    assert Machine.from_dict(json.loads(json.dumps(before.as_dict()))) == before


def test_a_failed_save_leaves_the_old_file_and_no_scrap(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    path.write_text("old")
    broken = replace(with_devices(), host=replace(with_devices().host, name=object()))
    with pytest.raises(TypeError):
        broken.save(path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["machine.json"]


def test_fields_of_later_versions_are_ignored() -> None:
    data = machine("offline_cpus").as_dict()
    data["new"] = data["nodes"][0]["new"] = data["devices"][0]["new"] = {"a": 1}
    assert Machine.from_dict(data) == machine("offline_cpus")


def test_optional_fields_may_be_missing() -> None:
    data = {
        "schema": SCHEMA,
        "nodes": [{"id": 0, "cpus": "0"}],
        "cpus": [{"id": 0}],
        "devices": [{"pci": "0000:17:00.0"}],
        "allowed": {"cpus": "0", "nodes": "0"},
    }
    read = Machine.from_dict(data)
    assert read.devices[0].node is None
    assert read.nodes[0].memory_bytes is None


# Where in the JSON, the value put there (DELETE takes it away), and the field that must be named.
DELETE = object()
BROKEN = {
    "no schema": ("schema", DELETE, "schema"),
    "schema a text": ("schema", "1", "schema"),
    "schema true": ("schema", True, "schema"),
    "schema newer": ("schema", SCHEMA + 1, "schema"),
    "schema 0": ("schema", 0, "schema"),
    "no nodes": ("nodes", DELETE, "nodes"),
    "nodes null": ("nodes", None, "nodes"),
    "nodes a table": ("nodes", {}, "nodes"),
    "node a number": ("nodes.0", 7, "nodes[0]"),
    "node without id": ("nodes.0.id", DELETE, "nodes[0].id"),
    "node id negative": ("nodes.0.id", -1, "nodes[0].id"),
    "node id false": ("nodes.0.id", False, "nodes[0].id"),
    "node id real": ("nodes.0.id", 0.0, "nodes[0].id"),
    "node id huge": ("nodes.0.id", 1 << 70, "nodes[0].id"),
    "node twice": ("nodes.1.id", 0, "nodes"),
    "node CPUs missing": ("nodes.0.cpus", DELETE, "nodes[0].cpus"),
    "node CPUs a list": ("nodes.0.cpus", [0], "nodes[0].cpus"),
    "node CPUs not a list": ("nodes.0.cpus", "0-", "nodes[0].cpus"),
    "node CPUs unknown": ("nodes.0.cpus", "0-300", "nodes: node 0 cpus"),
    "node kind": ("nodes.0.kind", "disk", "nodes[0].kind"),
    "node memory": ("nodes.0.memory_bytes", "much", "nodes[0].memory_bytes"),
    "node memory negative": ("nodes.0.memory_bytes", -1, "nodes[0].memory_bytes"),
    "distances a text": ("nodes.0.distances", "10 21", "nodes[0].distances"),
    "distance a text": ("nodes.0.distances", ["10"], "nodes[0].distances"),
    "no cpus": ("cpus", DELETE, "cpus"),
    "CPU without id": ("cpus.3.id", DELETE, "cpus[3].id"),
    "CPU twice": ("cpus.1.id", 0, "cpus"),
    "CPU's core a text": ("cpus.0.core", "0", "cpus[0].core"),
    "CPU's L3 false": ("cpus.0.l3", False, "cpus[0].l3"),
    "offline CPUs": ("offline_cpus", 3, "offline_cpus"),
    "no devices": ("devices", DELETE, "devices"),
    "device without address": ("devices.0.pci", DELETE, "devices[0].pci"),
    "device with no address": ("devices.0.pci", "gpu0", "devices[0].pci"),
    "device twice in another spelling": ("devices.1.pci", "00000000:17:00.0", "devices"),
    "device twice": ("devices.1.pci", "0000:17:00.0", "devices"),
    "device class a number": ("devices.0.pci_class", 3, "devices[0].pci_class"),
    "device class not hexadecimal": ("devices.0.pci_class", "gpu", "devices[0].pci_class"),
    "device id negative": ("devices.0.device_id", "-0x1", "devices[0].device_id"),
    "device computes a number": ("devices.0.computes", 1, "devices[0].computes"),
    "numa_node below -1": ("devices.0.numa_node", -2, "devices[0].numa_node"),
    "device on no node": ("devices.0.node", 7, "devices: 0000:17:00.0"),
    "device near no node": ("devices.0.near_nodes", [0, 7], "devices: 0000:17:00.0"),
    "near nodes a text": ("devices.0.near_nodes", "0", "devices[0].near_nodes"),
    "local CPUs": ("devices.0.local_cpus", "x", "devices[0].local_cpus"),
    "local CPUs unknown": ("devices.0.local_cpus", "0,300", "devices: 0000:17:00.0 local_cpus"),
    "UUID a number": ("devices.0.uuid", 7, "devices[0].uuid"),
    "partitions null": ("devices.0.partitions", None, "devices[0].partitions"),
    "partition a text": ("devices.0.partitions", ["MIG-1"], "devices[0].partitions[0]"),
    "no allowed": ("allowed", DELETE, "allowed"),
    "allowed a text": ("allowed", "0-7", "allowed"),
    "allowed CPUs missing": ("allowed.cpus", DELETE, "allowed.cpus"),
    "allowed CPUs unknown": ("allowed.cpus", "0-300", "allowed.cpus"),
    "allowed nodes": ("allowed.nodes", "all", "allowed.nodes"),
    "quota a text": ("allowed.cpu_quota", "4", "allowed.cpu_quota"),
    "quota true": ("allowed.cpu_quota", True, "allowed.cpu_quota"),
    "quota nothing": ("allowed.cpu_quota", 0, "allowed.cpu_quota"),
    "quota NaN": ("allowed.cpu_quota", float("nan"), "allowed.cpu_quota"),
    "quota without end": ("allowed.cpu_quota", float("inf"), "allowed.cpu_quota"),
    "host a list": ("host", [], "host"),
    "host name a number": ("host.name", 1, "host.name"),
    "host numa a text": ("host.numa", "yes", "host.numa"),
    "problem a text": ("problems", ["no-device"], "problems[0]"),
    "problem's cause a number": ("problems", [{"name": "x", "cause": 1}], "problems[0].cause"),
}


@pytest.mark.parametrize(("place", "value", "named"), BROKEN.values(), ids=BROKEN)
def test_a_broken_snapshot_names_file_and_field(place, value, named, tmp_path: Path) -> None:
    data = copy.deepcopy(machine("offline_cpus").as_dict())
    *outer, last = place.split(".")
    inside = data
    for key in outer:
        inside = inside[int(key) if key.isdigit() else key]
    last = int(last) if last.isdigit() else last
    if value is DELETE:
        del inside[last]
    else:
        inside[last] = value
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(data))
    with pytest.raises(MachineError, match=re.escape(f"{path}: {named}")) as caught:
        Machine.load(path)
    assert caught.value.path == str(path)


NOT_SNAPSHOTS = {
    "empty": b"",
    "truncated": b'{"schema": 1, "nodes": [',
    "a list": b"[]",
    "a number": b"1",
    "binary": b"\x00\xff\xfe",
    "not UTF-8": b'{"schema": "\xff"}',
    "too deep": b"[" * 200_000,
    "too many digits": b'{"schema": ' + b"9" * 5000 + b"}",
}


@pytest.mark.parametrize("content", NOT_SNAPSHOTS.values(), ids=NOT_SNAPSHOTS)
def test_a_file_that_is_no_snapshot_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(MachineError, match=re.escape(f"{tmp_path}/file: ")):
        Machine.load(tmp_path / "file")


@pytest.mark.parametrize("name", ["absent", "."], ids=["missing", "a directory"])
def test_a_snapshot_that_cannot_be_opened_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=re.escape(str(tmp_path / name))):
        Machine.load(tmp_path / name)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
SMALL = machine("one_node").as_dict()


@given(st.sampled_from(sorted(SMALL)), JSON)
def test_any_value_in_any_field_is_read_or_a_machine_error(field: str, value: object) -> None:
    try:
        read = Machine.from_dict({**SMALL, field: value})
    except MachineError:
        return
    assert Machine.from_dict(read.as_dict()) == read


def test_distances_are_the_kernels_or_a_guess() -> None:
    sparse = machine("sparse")
    assert [sparse.distance(0, to) for to in (0, 2, 5)] == [10, 12, 21]
    assert (sparse.distance(0, 7), sparse.distance(7, 7)) == (20, 10)
    bare = machine("bare")
    assert (bare.distance(0, 0), bare.distance(0, 1)) == (10, 20)


def test_lists_that_would_take_all_memory_are_refused(tmp_path: Path) -> None:
    nodes = [{"id": i, "cpus": "0-131072"} for i in range(2000)]
    data = {"schema": 1, "nodes": nodes, "cpus": [], "devices": []}
    with pytest.raises(MachineError, match="no machine has so many"):
        Machine.from_dict(data | {"allowed": {"cpus": "", "nodes": ""}})
