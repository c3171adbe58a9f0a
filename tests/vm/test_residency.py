"""`status` against processes whose memory is known: each kind, each node, sampled and counted."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

pytestmark = pytest.mark.vm

MIB = 1 << 20
# What the interpreter itself may have taken meanwhile.
SLACK = 256 << 10

Seen = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def seen(residency: subprocess.CompletedProcess[str]) -> Seen:
    lines = [json.loads(line) for line in residency.stdout.splitlines() if line.startswith("{")]
    assert residency.returncode == 0, residency.stdout[-3000:] + residency.stderr[-3000:]
    assert lines[-1] == {"check": "end"}
    found: Seen = {}
    for line in lines:
        found.setdefault(line["check"], []).append(line)
    return found


STEPS = (
    *("anonymous", "interleaved", "thp", "shm", "deleted shm", "memfd", "file", "locked", "huge"),
)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("step", STEPS)
def test_each_kind_is_counted_to_the_byte(seen: Seen, step: str) -> None:
    (line,) = (line for line in seen["step"] if line["step"] == step)
    grown = {(node, kind): size for node, kind, size in line["grown"]}
    for node, mib in line["wanted"].items():
        size = grown.pop((node, line["kind"]))
        slack = SLACK if line["kind"] == "anonymous" else 0
        assert 0 <= size - mib * MIB <= slack, line
    assert sum(grown.values()) <= SLACK, line


def test_a_bound_worker(seen: Seen) -> None:
    (line,) = seen["bound"]
    for process in line["process"], line["sampled"]:
        assert (process["device_source"], process["nodes"]) == ("numabind", "1")
        assert (process["near_cpus"], process["threads"], process["threads_near"]) == ("4-7", 1, 1)
        assert process["memory_policy"] == "default"
        # 28 MiB were put on node 0.
        assert process["verdict"] == "elsewhere"
        assert [said["name"] for said in process["problems"]] == ["pages-elsewhere"]
    pages, sampled = line["process"]["pages"], line["sampled"]["pages"]
    assert pages["method"] == "numa_maps"
    assert pages["interval"] is None
    kinds = pages["by_node"]
    away = sum(size for kind, size in kinds["0"].items() if kind != "file")
    near = sum(size for kind, size in kinds["1"].items() if kind != "file")
    assert pages["local"] == pytest.approx(near / (near + away))
    assert sampled["method"] == "sample"
    assert sampled["by_node"]["1"]["huge"] == kinds["1"]["huge"], "these are a population apart"


def test_exit_codes(seen: Seen) -> None:
    (line,) = seen["enough"]
    assert (line["code"], line["too_little"]) == (0, 1)


def test_a_sample_is_within_its_interval(seen: Seen) -> None:
    (line,) = seen["samples"]
    assert line["inside"] >= 95
    assert 0 < line["width"] < 0.05
    assert line["first"][1] == pytest.approx(line["resident"], rel=0.02)


def test_another_users_process(seen: Seen) -> None:
    """Counted or sampled: what is missing is said, and nothing else is."""
    assert [line["code"] for line in seen["another user's, code"]] == [0]
    assert len(seen["another user's"]) == 2
    for line in seen["another user's"]:
        process = line["process"]
        assert process["pages"] is None
        assert process["threads"] == 1
        (said,) = process["problems"]
        assert said["name"] == "pages-unreadable"
        assert "belongs to user 0, this is user 65534" in said["cause"]
        assert "CAP_SYS_PTRACE" in said["remedy"] or "SYS_PTRACE" in said["remedy"]
        assert process["verdict"] == "unknown"
        assert line["below"] == [f"process {process['pid']}: its pages can't be told"]


def test_a_thread_and_memory_elsewhere(seen: Seen) -> None:
    (line,) = seen["strays"]
    process = line["process"]
    assert line["code"] == 1
    assert process["device_source"] == "environment", "its rank says which GPU it has"
    assert [stray["cpus"] for stray in process["threads_elsewhere"]] == ["0"]
    assert (process["threads"], process["threads_near"]) == (2, 1)
    assert {said["name"] for said in process["problems"]} == {
        "threads-elsewhere",
        "pages-elsewhere",
    }
    assert process["pages"]["by_node"]["0"]["anonymous"] >= 48 * MIB


def test_many_processes_and_dying_ones(seen: Seen) -> None:
    (line,) = seen["many"]
    assert (line["code"], line["missing"], line["err"]) == (0, 0, "")
    (line,) = seen["dying"]
    assert (line["code"], line["err"], line["schema"]) == (0, "", 1)
