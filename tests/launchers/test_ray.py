"""Ray's own workers: what they were assigned, and what the kernel says they got."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launchers.pretend import ADDRESSES, ALL, HALVES, NEAR, NODES, UUIDS, write_snapshot

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    # Sockets' paths must be short, so not below pytest's folder.
    scratch = tempfile.mkdtemp(prefix="ray")
    snapshot = write_snapshot(tmp_path_factory.mktemp("ray"))
    yield {
        "PATH": os.environ["PATH"],
        "HOME": scratch,
        "RAY_TMPDIR": scratch,
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONPATH": str(HERE),
        "NUMABIND_SNAPSHOT": str(snapshot),
        "NUMABIND_MEMORY": "none",
    }
    shutil.rmtree(scratch, ignore_errors=True)


def run(script: str, environ: dict[str, str], *cases: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(HERE / script), *cases],
        env=environ,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def plain(environ: dict[str, str]) -> dict[str, Any]:
    """Ray as it is: CUDA_VISIBLE_DEVICES is set in each worker."""
    return run("ray_job.py", environ)


# The order is meant: Ray's first GPU is the machine's last.
LENT = f"{UUIDS[3]},2,{UUIDS[1][:6]},0"
SHARED = ("task", "group", "two near", "two apart", "two apart, strict", "one of two", "reused")


@pytest.fixture(scope="module")
def unset(environ: dict[str, str]) -> dict[str, Any]:
    """Ray told to leave the variable alone, which names GPUs by UUID and number."""
    told = {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": LENT}
    return run("ray_job.py", {**environ, **told}, *SHARED)


def names(found: dict[str, Any]) -> list[str]:
    """The problems, without the note that Ray's own threads were there first."""
    return [p["name"] for p in found["problems"] if p["name"] != "threads-late"]


def number(name: str) -> int:
    """The GPU that Ray calls so: a number or the beginning of a UUID of pretend.py."""
    return int(name) if name.isdigit() else int(name[4])


def gpus(found: dict[str, Any]) -> list[int]:
    return [number(name) for name in found["ids"]]


def assert_on(found: dict[str, Any], *numbers: int) -> None:
    """Every thread of that worker is on the nodes of these GPUs, and it says so."""
    nodes = {NODES[gpu] for gpu in numbers}
    cpus = NEAR[nodes.pop()] if len(nodes) == 1 else ALL
    assert found["bound"]
    assert set(found["device"].split(",")) == {ADDRESSES[gpu] for gpu in numbers}
    assert found["cpus"] == cpus
    assert found["masks"] == [cpus], "some thread was left out"


def test_a_task_has_the_gpu_that_ray_assigned(plain: dict[str, Any]) -> None:
    assert_on(plain["task"], *gpus(plain["task"]))
    assert names(plain["task"]) == []


def test_each_actor_is_bound_before_its_init(plain: dict[str, Any]) -> None:
    assert sorted(found["ids"] for found in plain["classes"]) == [["0"], ["1"], ["2"], ["3"]]
    for number, found in enumerate(plain["classes"]):
        (gpu,) = gpus(found)
        assert_on(found, gpu)
        assert found["at_birth"] == [NEAR[NODES[gpu]]]
        assert found["word"] == str(number), "the constructor's arguments got lost"


def test_an_async_actor_derived_from_a_bound_one(plain: dict[str, Any]) -> None:
    found = plain["async"]
    assert_on(found, *gpus(found))
    assert found["at_birth"] == [found["cpus"]]


def test_a_class_without_init_and_with_options(plain: dict[str, Any]) -> None:
    (cpus,) = plain["exclusive"]
    assert cpus != ALL
    if len(HALVES[0]) > 1:
        assert cpus not in NEAR, "mode exclusive gives half of a node"


def test_fractions_of_a_gpu(plain: dict[str, Any]) -> None:
    for found in plain["halves"]:
        assert_on(found, *gpus(found))


def test_a_bundle_of_a_placement_group(plain: dict[str, Any], unset: dict[str, Any]) -> None:
    for found in (plain["group"], unset["group"]):
        assert_on(found, *gpus(found))


def test_several_gpus_of_one_node(plain: dict[str, Any], unset: dict[str, Any]) -> None:
    for found in (plain["two near"], unset["two near"]):
        first, second = gpus(found)
        assert_on(found, first, second)
        assert found["node"] == NODES[first] == NODES[second]
        assert names(found) == []


def test_gpus_on_two_nodes_are_named(plain: dict[str, Any], unset: dict[str, Any]) -> None:
    for found in (plain["two apart"], unset["two apart"]):
        assert_on(found, *gpus(found))
        assert found["node"] is None
        assert names(found) == ["devices-on-several-nodes"]


def test_strict_refuses_two_nodes_and_the_driver_learns_why(
    plain: dict[str, Any], unset: dict[str, Any]
) -> None:
    for found in (plain, unset):
        assert "devices-on-several-nodes" in found["two apart, strict"]


def test_a_named_local_rank_picks_among_the_assigned(
    plain: dict[str, Any], unset: dict[str, Any]
) -> None:
    for found in (plain["one of two"], unset["one of two"]):
        order = [name for name in found["variable"].split(",") if name in found["ids"]]
        assert_on(found, number(order[1]))


def test_the_assignment_counts_where_ray_leaves_the_variable(unset: dict[str, Any]) -> None:
    assert unset["task"]["variable"] == LENT
    assert_on(unset["task"], *gpus(unset["task"]))
    uuids = [name for found in unset["reused"] for name in found["ids"]]
    uuids += [name for case in SHARED[1:4] for name in unset[case]["ids"]]
    assert any(name.startswith("GPU-") for name in uuids)


def test_a_reused_process_binds_anew(plain: dict[str, Any], unset: dict[str, Any]) -> None:
    for first, second in (plain["reused"], unset["reused"]):
        assert first["pid"] == second["pid"]
        assert first["ids"] != second["ids"]
        assert_on(first, *gpus(first))
        assert_on(second, *gpus(second))


def test_methods_in_other_threads_have_the_memory_policy_too(plain: dict[str, Any]) -> None:
    for policy, cpus in plain["policies"]:
        assert policy == "local"
        assert cpus in ([NEAR[0]], [NEAR[1]])


def test_a_bound_task(plain: dict[str, Any]) -> None:
    (cpus,) = plain["bound task"]
    assert cpus in NEAR


def test_a_named_gpu_beats_the_assignment(plain: dict[str, Any]) -> None:
    assert plain["gpu named"]["ids"] != ["3"]
    assert_on(plain["gpu named"], 3)


def test_the_assignment_beats_a_rank_in_the_environment(plain: dict[str, Any]) -> None:
    found = plain["rank in the environment"]
    assert_on(found, *gpus(found))


def test_off_for_one_job(plain: dict[str, Any]) -> None:
    assert not plain["off"]["bound"]
    assert plain["off"]["masks"] == [ALL]
    assert names(plain["off"]) == ["turned-off"]


def test_a_worker_without_a_gpu_is_left_alone(plain: dict[str, Any]) -> None:
    assert not plain["no GPU"]["bound"]
    assert plain["no GPU"]["masks"] == [ALL]
    assert names(plain["no GPU"]) == ["no-local-rank"]


def test_outside_a_worker_the_decorator_does_nothing(plain: dict[str, Any]) -> None:
    assert plain["outside"]["task"] == [ALL]
    assert plain["outside"]["bound"]["device"] == ADDRESSES[0]


def test_a_survey_of_a_cluster(environ: dict[str, str]) -> None:
    found = run("ray_cluster.py", environ)
    assert len(found["alive"]) == 3
    assert sorted([*found["machines"], found["broken"]]) == found["alive"]
    for machine in found["machines"].values():
        assert [device["pci"] for device in machine["devices"]] == [*ADDRESSES]
        assert machine["allowed"]["cpus"] == ALL
    (said,) = found["said"]
    assert said.startswith(f"node-silent: Ray node {found['broken']}: ")
    assert "/nowhere/machine.json" in said
    code, printed, complaints = found["command"]
    assert code == 1, complaints
    report = json.loads(printed)
    (kind,) = report["kinds"]
    assert kind["machines"] == len(kind["reference"]["members"]) == 2
    assert kind["title"].startswith("4 × ")
    assert [each["node"].rpartition("-")[2] for each in report["silent"]] == [found["broken"][:12]]
    assert "/nowhere/machine.json" in report["silent"][0]["cause"]
    assert complaints.startswith("numabind: WARNING node ")
