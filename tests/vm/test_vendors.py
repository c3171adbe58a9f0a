"""Devices with the PCI ids of AMD, Intel and Habana on real nodes, and workers next to them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from harness import HERE, available, boot

pytestmark = pytest.mark.vm


@pytest.fixture(scope="module")
def lines() -> list[dict[str, Any]]:
    assert available() is None
    environ = {"PYTHONPATH": str(HERE.parent.parent / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = ["python3", str(HERE / "guest" / "vendors.py")]
    done = boot(str(HERE / "vendors.json"), command, environ=environ)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_each_vendors_devices_are_on_their_nodes(lines: list[dict[str, Any]]) -> None:
    found = sorted((line["vendor"], line["node"]) for line in lines if "device" in line)
    assert [pair for pair in found if pair[0] in ("amd", "intel", "habana")] == [
        ("amd", 0),
        ("amd", 1),
        ("habana", 1),
        ("intel", 0),
        ("intel", 1),
    ]


# AMD comes first where workers are dealt, so a bare "1" is AMD's second.
NODES = {"cuda:0": 0, "cuda:1": 1, "xpu:0": 0, "xpu:1": 1, "hpu:0": 1, "1": 1}


@pytest.mark.parametrize("name", NODES)
def test_a_worker_is_bound_next_to_its_device(lines: list[dict[str, Any]], name: str) -> None:
    (line,) = (line for line in lines if line.get("name") == name)
    node = NODES[name]
    assert line["bound"], line
    assert line["cpus"] == [2 * node, 2 * node + 1]
    assert line["policy"] == ["preferred-many", [node]]


def test_a_worker_is_bound_next_to_a_nic_and_a_disk(lines: list[dict[str, Any]]) -> None:
    nic, disk = (line for line in lines if line.get("option") == "near")
    assert (nic["cpus"], nic["policy"]) == ([2, 3], ["preferred-many", [1]])
    assert (disk["cpus"], disk["policy"]) == ([0, 1], ["preferred-many", [0]])
