"""The JSON form of a machine, written and read.

docs/snapshot.md has it field by field. Sets of CPUs and nodes are kernel lists there ("0-3,8").
"""

from __future__ import annotations

from numabind._address import parse_address
from numabind._cpulist import format_list
from numabind._errors import MachineError
from numabind._fields import Fields, is_natural
from numabind._machine import Allowed, Cpu, Device, Host, Machine, Nic, Node, Partition
from numabind._problems import Problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

SCHEMA = 1


def as_dict(machine: Machine) -> dict[str, Any]:
    """The JSON form; `Reader` is its inverse. Pure."""
    return {
        "schema": SCHEMA,
        "host": dict(machine.host.__dict__),
        "nodes": [
            {
                **node.__dict__,
                "cpus": format_list(node.cpus),
                "distances": list(node.distances),
            }
            for node in machine.nodes
        ],
        "cpus": [dict(cpu.__dict__) for cpu in machine.cpus],
        "offline_cpus": format_list(machine.offline_cpus),
        "devices": [_device_as_dict(device) for device in machine.devices],
        "nics": [_nic_as_dict(nic) for nic in machine.nics],
        "disks": [_nic_as_dict(disk) for disk in machine.disks],
        "allowed": {
            "cpus": format_list(machine.allowed.cpus),
            "nodes": format_list(machine.allowed.nodes),
            "cpu_quota": machine.allowed.cpu_quota,
        },
        "problems": [problem.as_dict() for problem in machine.problems],
    }


def read_json(path: str) -> object:
    """The JSON of a snapshot's file, not checked yet. MachineError if it is none."""
    import json

    from numabind._files import read_text

    try:
        return json.loads(read_text(path))
    except OSError as error:
        raise MachineError(path, error.strerror or str(error)) from error
    except (ValueError, RecursionError) as error:
        raise MachineError(
            path, f"not a snapshot: {error}", "make one with numabind snapshot -o FILE"
        ) from error


def _device_as_dict(device: Device) -> dict[str, Any]:
    near = device.local_cpus
    return {
        **device.__dict__,
        "pci_class": f"0x{device.pci_class:06x}",
        "device_id": f"0x{device.device_id:04x}",
        "vendor_id": f"0x{device.vendor_id:04x}",
        "local_cpus": None if near is None else format_list(near),
        "near_nodes": list(device.near_nodes),
        "partitions": [dict(part.__dict__) for part in device.partitions],
        "bridges": list(device.bridges),
    }


def _nic_as_dict(nic: Nic) -> dict[str, Any]:
    return {
        **nic.__dict__,
        "names": list(nic.names),
        "vendor_id": f"0x{nic.vendor_id:04x}",
        "device_id": f"0x{nic.device_id:04x}",
        "bridges": list(nic.bridges),
    }


_PARTITION_NUMBERS = ("gpu_instance", "compute_instance", "number", "index", "minor")


class Reader(Fields):
    """Takes a snapshot's JSON apart."""

    def machine(self, data: object) -> Machine:
        data = self.table(data, "the snapshot")
        schema = data.get("schema")
        if not isinstance(schema, int) or isinstance(schema, bool):
            self.fail("schema", "is missing, so this is not a numabind snapshot")
        if schema > SCHEMA:
            self.fail(
                "schema", f"{schema} is newer than this numabind reads ({SCHEMA}): upgrade numabind"
            )
        if schema != SCHEMA:
            self.fail("schema", f"{schema} is not a schema that numabind ever wrote")
        host = self.table(data.get("host", {}), "host")
        allowed = self.table(self.need(data, "allowed", ""), "allowed")
        machine = Machine(
            nodes=tuple(self.node(*item) for item in self.items(data, "nodes")),
            cpus=tuple(self.cpu(*item) for item in self.items(data, "cpus")),
            devices=tuple(self.device(*item) for item in self.items(data, "devices")),
            allowed=Allowed(
                self.ids(allowed, "cpus", "allowed."),
                self.ids(allowed, "nodes", "allowed."),
                self.quota(allowed, "cpu_quota", "allowed."),
            ),
            host=Host(
                name=self.text(host, "name", "host."),
                kernel=self.text(host, "kernel", "host."),
                boot_id=self.text(host, "boot_id", "host."),
                numa=self.flag(host, "numa", "host."),
                numa_balancing=self.maybe_whole(host, "numa_balancing", "host."),
            ),
            offline_cpus=self.ids({"offline_cpus": "", **data}, "offline_cpus", ""),
            nics=tuple(self.nic(*item) for item in self.items(data, "nics", ())),
            problems=tuple(self.problem(*item) for item in self.items(data, "problems", ())),
            disks=tuple(self.nic(*item) for item in self.items(data, "disks", ())),
        )
        self.check(machine)
        return machine

    def check(self, machine: Machine) -> None:
        """Refuse what no kernel could show: planning relies on it."""
        known = {cpu.id for cpu in machine.cpus}
        nodes = {node.id for node in machine.nodes}
        if len(known) != len(machine.cpus):
            self.fail("cpus", "lists a CPU twice")
        if len(nodes) != len(machine.nodes):
            self.fail("nodes", "lists a node twice")
        if len({device.pci for device in machine.devices}) != len(machine.devices):
            self.fail("devices", "lists a PCI address twice")
        for node in machine.nodes:
            self.within(f"nodes: node {node.id} cpus", node.cpus, known)
        self.within("allowed.cpus", machine.allowed.cpus, known)
        for device in machine.devices:
            self.within(f"devices: {device.pci} local_cpus", device.local_cpus or (), known)
            for number in (device.node, *device.near_nodes):
                if number is not None and number not in nodes:
                    self.fail(f"devices: {device.pci}", f"is on node {number}, which `nodes` lacks")

    def within(self, field: str, cpus: Iterable[int], known: set[int]) -> None:
        extra = set(cpus) - known
        if extra:
            self.fail(field, f"has {format_list(extra)}, which `cpus` lacks")

    def node(self, data: dict[str, Any], where: str) -> Node:
        kind = self.text(data, "kind", where) or "cpu"
        if kind not in ("cpu", "memory", "gpu"):
            self.fail(f"{where}kind", f"{kind!r} is none of cpu, memory, gpu")
        distances = data.get("distances", [])
        if not isinstance(distances, list) or not all(is_natural(d) for d in distances):
            self.fail(f"{where}distances", "is not a list of whole numbers")
        return Node(
            id=self.whole(data, "id", where),
            cpus=self.ids(data, "cpus", where),
            memory_bytes=self.maybe_whole(data, "memory_bytes", where),
            distances=tuple(distances),
            kind=kind,
        )

    def cpu(self, data: dict[str, Any], where: str) -> Cpu:
        return Cpu(
            self.whole(data, "id", where),
            *(self.maybe_whole(data, key, where) for key in ("node", "package", "core", "l3")),
        )

    def device(self, data: dict[str, Any], where: str) -> Device:
        near = data.get("near_nodes", [])
        if not isinstance(near, list) or not all(is_natural(n) for n in near):
            self.fail(f"{where}near_nodes", "is not a list of node numbers")
        try:
            pci = str(parse_address(self.text(data, "pci", where) or ""))
        except ValueError as error:
            self.fail(f"{where}pci", f"is no PCI address: {error}")
        local = None if data.get("local_cpus") is None else self.ids(data, "local_cpus", where)
        return Device(
            pci=pci,
            vendor=self.text(data, "vendor", where) or "unknown",
            pci_class=self.hexadecimal(data, "pci_class", where),
            device_id=self.hexadecimal(data, "device_id", where),
            vendor_id=self.hexadecimal(data, "vendor_id", where),
            computes=self.flag(data, "computes", where),
            numa_node=self.maybe_whole(data, "numa_node", where, lowest=-1),
            local_cpus=local,
            node=self.maybe_whole(data, "node", where),
            node_source=self.text(data, "node_source", where),
            near_nodes=tuple(near),
            uuid=self.text(data, "uuid", where),
            index=self.maybe_whole(data, "index", where),
            minor=self.maybe_whole(data, "minor", where),
            name=self.text(data, "name", where),
            driver=self.text(data, "driver", where),
            memory_node=self.maybe_whole(data, "memory_node", where),
            partitions=tuple(self.part(*i) for i in self.items(data, "partitions", (), where)),
            module=self.maybe_whole(data, "module", where),
            partitioning=self.text(data, "partitioning", where),
            bridges=self.texts(data, "bridges", where),
            driver_version=self.text(data, "driver_version", where),
            link_width=self.maybe_whole(data, "link_width", where),
        )

    def nic(self, data: dict[str, Any], where: str) -> Nic:
        return Nic(
            pci=self.text(data, "pci", where) or "",
            node=self.maybe_whole(data, "node", where),
            names=self.texts(data, "names", where),
            vendor_id=self.hexadecimal(data, "vendor_id", where),
            device_id=self.hexadecimal(data, "device_id", where),
            rdma=data.get("rdma") is True,
            bridges=self.texts(data, "bridges", where),
        )

    def texts(self, data: dict[str, Any], key: str, where: str) -> tuple[str, ...]:
        found = data.get(key, [])
        if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
            self.fail(f"{where}{key}", "is not a list of texts")
        return tuple(found)

    def part(self, data: dict[str, Any], where: str) -> Partition:
        return Partition(
            self.text(data, "uuid", where) or "",
            *(self.maybe_whole(data, key, where) for key in _PARTITION_NUMBERS),
        )

    def problem(self, data: dict[str, Any], where: str) -> Problem:
        return Problem(*(self.text(data, key, where) or "" for key in ("name", "cause", "remedy")))
