"""Launchers on real nodes: every worker's threads, policy and pages are on its GPU's node."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

pytestmark = pytest.mark.vm

CPUS = {0: [0, 1, 2, 3], 1: [4, 5, 6, 7]}
ANYWHERE = {"cpus": [*CPUS[0], *CPUS[1]], "policy": ["default", []]}
PAGES = 16384  # 64 MiB

Seen = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def seen(launched: subprocess.CompletedProcess[str]) -> Seen:
    lines = [json.loads(line) for line in launched.stdout.splitlines() if line.startswith("{")]
    assert launched.returncode == 0, launched.stdout[-3000:] + launched.stderr[-3000:]
    assert lines[-1] == {"check": "end"}
    found: Seen = {}
    for line in lines:
        found.setdefault(line["check"], []).append(line)
    return found


BORN = {
    "spawning, spawn": 1,
    "spawning, fork": 1,
    "at once": 4,
    "bound": 3,
    "torchrun, launch": 1,
    "torchrun, run": 1,
    "elastic_launch": 1,
}


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("check", BORN)
def test_workers_and_their_pages(seen: Seen, check: str) -> None:
    lines = seen[check]
    assert sorted(line["rank"] for line in lines) == sorted([0, 1] * BORN[check])
    for line in lines:
        node = line["rank"]
        assert line["masks"] == [CPUS[node]], line
        assert line["policy"] == ["preferred-many", [node]], line
        assert line["pages"] == {str(node): PAGES}, line


def test_tensors_of_a_worker_that_was_born_bound(seen: Seen) -> None:
    """Nothing of the mapping that holds one is elsewhere: not even what torch's import touched."""
    for line in seen["torchrun, launch"]:
        assert list(line["tensor"]) == [str(line["rank"])], line
        assert line["tensor"][str(line["rank"])] >= PAGES, line


def test_the_parent_is_as_before(seen: Seen) -> None:
    (line,) = seen["spawning restores"]
    assert line["before"] == line["after"] == ANYWHERE


def test_a_start_that_fails(seen: Seen) -> None:
    (line,) = seen["failed start"]
    assert line["inside"] == {"cpus": CPUS[1], "policy": ["preferred-many", [1]]}
    assert line["before"] == line["after"] == ANYWHERE


def test_threads_that_spawn_at_once(seen: Seen) -> None:
    (line,) = seen["at once, after"]
    assert line["ends"] == [[0, ANYWHERE]] * 8
    assert line["main"] == ANYWHERE


def test_processes_end_well(seen: Seen) -> None:
    ends = {line["method"]: line["codes"] for line in seen["bound in a process"]}
    assert ends == {"spawn": [0, 0], "fork": [0, 0], "forkserver": [0, 0]}


def test_a_loaders_workers(seen: Seen) -> None:
    """The lowest core of the four is the main thread's; the other three are dealt."""
    lines = {line["rank"]: line for line in seen["loader"]}
    assert {rank: line["cpus"] for rank, line in lines.items()} == {0: [5], 1: [6, 7]}
    for line in lines.values():
        assert line["policy"] == ["preferred-many", [1]]
        assert line["pages"] == {"1": PAGES}


def test_host_memory_is_where_it_was_asked_for(seen: Seen) -> None:
    """Once with the asking thread on the other node's CPUs, once on the bound worker's own."""
    for line in seen["pinned"]:
        assert line["node"] == 1
        assert list(line["pages"]) == ["1"], line
        assert line["pages"]["1"] >= 8192, line


def test_a_node_without_so_much_memory(seen: Seen) -> None:
    (line,) = seen["node that is full"]
    assert "slab-elsewhere" in line["problems"]
    assert line["pages"]["0"] > 0
    (line,) = seen["strict"]
    assert line["problems"] == ["slab-elsewhere"]


def test_states_and_activations_after_training(seen: Seen) -> None:
    (line,) = seen["states"]
    assert line["count"] == 12
    assert list(line["pages"]) == ["1"], line
    assert [list(line["pages"]) for line in seen["activations"]] == [["1"], ["1"]]
    # The same by move_pages: 4 MiB on node 0, 32 MiB on node 1, in pages of 4 KiB.
    (told,) = seen["pages"]
    assert told["pages"] == {"0": 1024, "1": 8192}
    assert list(told["states"]) == ["1"], told
