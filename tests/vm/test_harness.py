"""The virtual machines are what their topology files say, read from sysfs without numabind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness import TOPOLOGIES, available, boot, topology
from numavm.pci import KINDS
from numavm.topology import cpu_list

pytestmark = pytest.mark.vm

LOOK = """
import json, pathlib
node = pathlib.Path("/sys/devices/system/node")
pci = pathlib.Path("/sys/bus/pci/devices")
read = lambda path: path.read_text().strip()
print(json.dumps({
    "nodes": {p.name[4:]: read(p / "cpulist") for p in node.glob("node[0-9]*")},
    "memory": read(node / "has_memory"),
    "devices": [(read(d / "vendor"), read(d / "class"), int(read(d / "numa_node")))
                for d in sorted(pci.iterdir())],
}))
"""


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_a_topology_boots_as_described(name: str) -> None:
    assert available() is None
    wanted = topology(name)
    done = boot(name, ["python3", "-c", LOOK])
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    nodes = wanted["nodes"]
    if "numa=fake" not in wanted.get("kernel_args", ""):
        assert {int(k): cpu_list(v) for k, v in seen["nodes"].items()} == {
            i: sorted(cpu_list(node.get("cpus"))) for i, node in enumerate(nodes)
        }
        assert cpu_list(seen["memory"]) == [i for i, n in enumerate(nodes) if n.get("memory")]
    for device in wanted.get("devices", []):
        vendor, _, pci_class = KINDS[device["kind"]][1]
        node = -1 if device["node"] is None else device["node"]
        assert [f"0x{vendor:04x}", f"0x{pci_class:06x}", node] in seen["devices"]


def test_the_exit_code_and_both_outputs_come_back() -> None:
    done = boot("single", ["sh", "-c", "echo out; echo err >&2; exit 7"])
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")


def test_readme_lists_every_topology() -> None:
    text = Path(__file__).with_name("README.md").read_text()
    assert [name for name in TOPOLOGIES if f"| {name} |" not in text] == []
