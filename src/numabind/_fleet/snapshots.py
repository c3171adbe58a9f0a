"""Snapshots from a directory, one after the other: none is kept but for what is compared."""

from __future__ import annotations

import os

from numabind._errors import MachineError, UsageError
from numabind._fields import is_natural
from numabind._fleet.groups import Member, Snapshot
from numabind._fleet.topology import Topology, model_of, topology_of
from numabind._machine import Machine
from numabind._record import record
from numabind._snapshot import read_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

ENDINGS = (".json", ".json.gz")


@record
class Broken:
    """A snapshot that can't be used, or a folder: its file, and why in one line."""

    file: str
    cause: str


def files_in(directory: str) -> tuple[tuple[str, ...], tuple[Broken, ...]]:
    """All *.json and *.json.gz at any depth, sorted, as paths from the directory; and the folders
    in it that can't be read.

    Links to directories are not followed; names that start with a dot are passed over, as in a
    shell: those are what tar, editors and file servers leave behind. UsageError if the directory
    itself can't be read.
    """
    found: list[str] = []
    closed: list[Broken] = []

    def refuse(error: OSError) -> None:
        if error.filename == directory:
            raise UsageError(f"{directory}: {error.strerror}") from error
        closed.append(Broken(os.path.relpath(error.filename, directory), str(error.strerror)))

    for folder, below, names in os.walk(directory, onerror=refuse):
        below[:] = sorted(name for name in below if not name.startswith("."))
        here = os.path.relpath(folder, directory)
        found += [
            os.path.normpath(os.path.join(here, name))
            for name in names
            if name.endswith(ENDINGS) and not name.startswith(".")
        ]
    return tuple(sorted(found)), tuple(closed)


class Reader:
    """Reads snapshots; `models` are the names of GPU models seen, by PCI numbers.

    Nearly all machines of a fleet are alike. So what was checked once is not checked again where a
    snapshot has the same values in every field but those that are put aside here.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.models: dict[str, str] = {}
        self._checked: dict[bytes, Topology] = {}
        self._known: dict[Topology, Topology] = {}

    @property
    def checked(self) -> int:
        """How many snapshots had to be checked field by field."""
        return len(self._checked)

    def read(self, files: Iterable[str]) -> Iterator[Snapshot | Broken]:
        """Each file's snapshot, or what is wrong with it, in this order."""
        for file in files:
            path = os.path.join(self.directory, file)
            try:
                yield self._snapshot(file, read_json(path), path)
            except MachineError as error:
                yield Broken(file, error.cause)

    def _snapshot(self, file: str, data: object, path: str) -> Snapshot:
        from hashlib import blake2b

        host, memory = _put_aside(data)
        try:
            text = repr(data)
        except RecursionError as error:
            raise MachineError(path, "not a snapshot: nested too deeply") from error
        key = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        topology = self._checked.get(key)
        if topology is None:
            machine = Machine.from_dict(data, path)
            topology = topology_of(machine)
            topology = self._checked[key] = self._known.setdefault(topology, topology)
            for device in machine.devices:
                if device.name and device.computes:
                    model = model_of(device)
                    self.models[model] = min(device.name, self.models.get(model, device.name))
        # Only now are the nodes' numbers known to be numbers.
        return Snapshot(Member(file, host), topology, tuple(sorted(memory)))


def _put_aside(data: Any) -> tuple[str | None, list[tuple[int, int | None]]]:
    """Take the host's name and each node's bytes out of a snapshot's JSON, and drop what is not
    compared and may be another in each host or after each boot.

    Only values that `Machine.from_dict` would take, so that what is left says whether it takes all.
    Of a node's memory it stays whether there is some.
    """
    if not isinstance(data, dict):
        return None, []
    name = _dropped(data.get("host"), "name")
    _drop_the_rest(data)
    memory: list[tuple[int, int | None]] = []
    for node in _tables(data, "nodes"):
        size: Any = node.get("memory_bytes")
        if is_natural(size):
            node["memory_bytes"] = min(size, 1)
        number: Any = node.get("id")
        memory.append((number, size))
    return name, memory


def _drop_the_rest(data: dict[str, Any]) -> None:
    """UUIDs, kernels, numbers and names that a boot deals out (nvme0 is another disk each time),
    and what was in the way."""
    texts = [(data.get("host"), "boot_id"), (data.get("host"), "kernel")]
    for device in _tables(data, "devices"):
        texts += [(each, "uuid") for each in (device, *_tables(device, "partitions"))]
        for key in ("index", "minor"):
            if is_natural(device.get(key)):
                del device[key]
    for each in (*_tables(data, "nics"), *_tables(data, "disks")):
        names: Any = each.get("names")
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            del each["names"]
    for said in _tables(data, "problems"):
        texts += [(said, key) for key in ("name", "cause", "remedy")]
    for table, key in texts:
        _dropped(table, key)


def _tables(data: dict[str, Any], key: str) -> list[dict[str, Any]]:
    items = data.get(key)
    return [each for each in items if isinstance(each, dict)] if isinstance(items, list) else []


def _dropped(data: object, key: str) -> str | None:
    """Take a text out and return it; anything else stays."""
    if isinstance(data, dict) and isinstance(data.get(key), str):
        return data.pop(key) or None
    return None
