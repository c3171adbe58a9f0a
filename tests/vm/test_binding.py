"""Real binding on real nodes: what was planned is what the kernel says, and where pages are.

The expected values come from the topology files by way of expected.py, not from numabind. Guests
of all scenarios are booted ahead, as many at once as there are CPUs.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from expected import Expected
from harness import HERE, TOPOLOGIES, available, boot, topology

pytestmark = pytest.mark.vm

SRC = HERE.parent.parent / "src"
# two-socket-big is two-socket with room for torch.
PLACED = [name for name in TOPOLOGIES if name != "two-socket-big"]
SCENARIOS = {"seen": ("two-socket", "scenarios.py"), "full": ("tight", "full.py")}
PAGES = {64: 16384, 4: 1024}  # of 4 KiB


class Guests:
    """Boots guests ahead, and gives each scenario's JSON lines when they are wanted."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.pool = pool
        self.started: dict[tuple[str, str], Future[Any]] = {}

    def start(self, name: str, script: str) -> Future[Any]:
        key = (name, script)
        if key not in self.started:
            command = ["python3", str(HERE / "guest" / script)]
            environ = {"PYTHONPATH": str(SRC), "PYTHONDONTWRITEBYTECODE": "1"}
            self.started[key] = self.pool.submit(boot, name, command, timeout=500, environ=environ)
        return self.started[key]

    def lines(self, name: str, script: str) -> list[dict[str, Any]]:
        done = self.start(name, script).result()
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.fixture(scope="module")
def guests(request: pytest.FixtureRequest) -> Any:
    assert available() is None
    with ThreadPoolExecutor(max(1, os.cpu_count() or 1)) as pool:
        found = Guests(pool)
        mine = [item for item in request.session.items if item.module is request.module]
        wanted = [
            script for name, script in SCENARIOS.items()
            if any(name in item.fixturenames for item in mine)
        ]  # fmt: skip
        wanted += [
            (item.callspec.params["name"], "placement.py")
            for item in mine
            if "name" in getattr(getattr(item, "callspec", None), "params", {})
        ]
        for name, script in wanted:
            found.start(name, script)
        yield found
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("name", PLACED)
def test_every_mode_and_policy_of_every_gpu(guests: Guests, name: str) -> None:
    machine, *seen = guests.lines(name, "placement.py")
    wanted = Expected(topology(name), machine["gpus"])
    everyone = [pci for pci, _ in wanted.gpus]
    assert {line["check"] for line in seen} == {"placement"}
    assert {line["gpu"] for line in seen} == set(everyone)
    assert len(seen) >= len({node for _, node in wanted.gpus}) * 4 + 16
    for line in seen:
        mode, memory = line["mode"], line["memory"]
        place = wanted.place(line["gpu"], mode)
        assert line["said_gpu"] == line["gpu"], line
        assert line["bound"] == (place is not None), line
        cpus, nodes = place or (wanted.cpus, [])
        policy = wanted.policy(memory if place else "none", nodes)
        assert line["cpus"] == line["said_cpus"] == sorted(cpus), line
        assert line["policy"] == line["said_policy"] == policy, line
        # A thread that ran before has the mask, not the policy: that is each thread's own.
        assert line["before"] == {"cpus": sorted(cpus), "policy": machine["policy"]}, line
        assert line["after"] == {"cpus": sorted(cpus), "policy": policy}, line
        where = wanted.pages(memory if place else "none", cpus, nodes)
        assert {int(node) for node in line["pages"]} <= set(where), line
        assert sum(line["pages"].values()) == PAGES[line["mib"]], line
        if "interleave" in memory:
            share = PAGES[line["mib"]] / len(nodes)
            assert all(0.9 * share <= pages for pages in line["pages"].values()), line
            assert len(line["pages"]) == len(nodes), line
        if place:
            workers = everyone if line["by"] == "rank" else []
            assert line["budget"] == wanted.budget(line["gpu"], mode, workers), line


# -- a full node


@pytest.fixture(scope="module")
def full(guests: Guests) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (line["check"], line.get("memory", "")): line for line in guests.lines(*SCENARIOS["full"])
    }


def test_bind_is_killed_on_a_full_node(full: dict[tuple[str, str], dict[str, Any]]) -> None:
    assert full["filling", "bind"]["policy"] == ["bind", [1]]
    assert full["ended", "bind"]["code"] == -9
    assert ("filled", "bind") not in full


@pytest.mark.parametrize("memory", ["prefer", "local", "none"])
def test_other_policies_spill(full: dict[tuple[str, str], dict[str, Any]], memory: str) -> None:
    assert full["ended", memory]["code"] == 0
    pages = full["filled", memory]["pages"]
    assert pages["0"] > 0
    assert pages["1"] > 16384
    assert pages["0"] + pages["1"] == 224 << 8


def test_moving_to_a_full_node_moves_what_fits(
    full: dict[tuple[str, str], dict[str, Any]],
) -> None:
    seen = full["moved", ""]
    assert seen["before"] == {"0": 224 << 8}
    assert seen["after"]["1"] > 16384
    # Not exactly what numa_maps says later: khugepaged moves pages, too.
    assert seen["moved"] > 16384
    assert seen["left"] > 0
    assert seen["moved"] + seen["left"] >= 224 << 8
    assert [text.partition(":")[0] for text in seen["problems"]] == ["pages-not-moved"]
    assert seen["cpus"] == [2, 3]


# -- the rest, on two sockets


@pytest.fixture(scope="module")
def seen(guests: Guests) -> dict[str, dict[str, Any]]:
    lines = guests.lines(*SCENARIOS["seen"])
    assert [line for line in lines if line["check"] == "time" and line["code"]] == []
    return {line["check"]: line for line in lines}


Seen = dict[str, dict[str, Any]]
NODE0, NODE1, ALL = [0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 2, 3, 4, 5, 6, 7]
NEAR1 = ["preferred-many", [1]]
DEFAULT = ["default", []]


def has(line: dict[str, Any], cpus: list[int], policy: list[Any], *problems: str) -> None:
    """What the kernel says and what the Binding says are both this."""
    assert line["cpus"] == line["said"] == cpus, line
    assert line["policy"] == line["said_policy"] == policy, line
    assert line["problems"] == list(problems), line


def ran(line: dict[str, Any], cpus: list[int], policy: list[Any], node: str) -> str:
    """The command of `numabind run` ran, found this, and ended with its own code; stderr."""
    assert line["code"] == 7, line
    told = json.loads(line["out"])
    assert told["cpus"] == cpus, line
    assert told["policy"] == policy, line
    assert told["pages"] == {node: 4096}, line
    return line["err"]


def test_touched_pages_are_moved(seen: Seen) -> None:
    line = seen["move-pages"]
    assert line["before"] == {"mine": {"0": 4096}, "shared": {"0": 2048}}
    assert line["after"] == {"mine": {"1": 4096}, "shared": {"0": 2048}}
    assert line["moved"] >= 4096
    assert line["left"] >= 2048
    has(line, NODE1, NEAR1, "pages-not-moved")


def test_pages_are_moved_once_nobody_shares_them(seen: Seen) -> None:
    line = seen["move-pages-again"]
    assert line["after"] == {"mine": {"1": 4096}, "shared": {"1": 2048}}
    assert line["moved"] >= 2048
    assert line["left"] < seen["move-pages"]["left"]


def test_memory_touched_before_is_told(seen: Seen) -> None:
    assert seen["elsewhere"]["pages"] == {"0": 8192}
    assert 32 << 20 <= seen["elsewhere"]["bytes"] < 64 << 20
    has(seen["elsewhere"], NODE1, NEAR1)


def test_a_cpuset_takes_some_cpus(seen: Seen) -> None:
    err = ran(seen["cpuset-some-cpus"], [4, 5], NEAR1, "1")
    assert "WARNING" not in err
    assert "cpus 4-5" in err


def test_a_cpuset_takes_the_memory(seen: Seen) -> None:
    err = ran(seen["cpuset-no-memory"], NODE1, DEFAULT, "0")
    assert "WARNING memory-not-allowed: Mems_allowed is 0" in err
    assert "worker bound" in err


def test_a_cpuset_takes_all_cpus(seen: Seen) -> None:
    err = ran(seen["cpuset-no-cpus"], NODE0, NEAR1, "1")
    assert "WARNING cpus-not-allowed: node 1 has CPUs 4-7, this process may use 0-3" in err
    assert "worker bound" not in err
    assert (seen["cpuset-strict"]["code"], seen["cpuset-strict"]["out"]) == (1, "")
    assert "cpus-not-allowed" in seen["cpuset-strict"]["err"]
    err = ran(seen["cpuset-neither"], [0, 1], DEFAULT, "0")
    assert "cpus-not-allowed" in err
    assert "memory-not-allowed" in err


def test_a_cpuset_shrinks_between_plan_and_bind(seen: Seen) -> None:
    has(seen["cpuset-shrinks"], [4], NEAR1, "affinity-not-kept")
    has(seen["cpuset-shrinks-to-none"], [0, 1, 2], NEAR1, "cpus-not-allowed")
    assert not seen["cpuset-shrinks-to-none"]["bound"]


def test_a_denied_memory_policy_leaves_the_cpu_binding(seen: Seen) -> None:
    err = ran(seen["denied-run"], NODE1, ["errno 1", []], "1")
    assert "WARNING memory-policy-denied" in err
    assert "--cap-add SYS_NICE" in err
    assert "worker bound" in err
    line = seen["denied-bind"]
    assert (line["bound"], line["cpus"], line["problems"]) == (
        True,
        NODE1,
        ["memory-policy-denied"],
    )
    assert line["said_policy"] == [None, []]
    has(seen["denied-setters"], NODE1, DEFAULT, "memory-policy-denied")


def test_strict_runs_nothing_where_memory_policy_is_denied(seen: Seen) -> None:
    assert (seen["denied-strict"]["code"], seen["denied-strict"]["out"]) == (1, "")
    assert "memory-policy-denied" in seen["denied-strict"]["err"]
    assert seen["denied-bind-strict"]["raised"] == ["memory-policy-denied"]
    assert seen["denied-bind-strict"]["cpus"] == ALL


def test_denied_page_moves(seen: Seen) -> None:
    err = ran(seen["denied-move"], NODE1, NEAR1, "1")
    assert "WARNING page-move-denied" in err
    assert (seen["denied-move-strict"]["code"], seen["denied-move-strict"]["out"]) == (1, "")
    has(seen["denied-bind-move"], NODE1, NEAR1, "page-move-denied")


def test_cpus_go_offline(seen: Seen) -> None:
    has(seen["offline-one"], [4, 6, 7], NEAR1, "affinity-not-kept")
    has(seen["offline-all-late"], NODE0, NEAR1, "cpus-not-allowed")
    assert not seen["offline-all-late"]["bound"]
    has(seen["offline-all"], NODE0, NEAR1, "cpus-lent")
    err = ran(seen["offline-all-run"], NODE0, NEAR1, "1")
    assert "worker bound" in err


def test_binding_again_widens_and_changes(seen: Seen) -> None:
    has(seen["first"], [0, 1], ["preferred-many", [0]])
    assert seen["first"]["omp"] == "2"
    has(seen["wider"], NODE0, ["preferred-many", [0]])
    assert seen["wider"]["omp"] == "4"
    has(seen["other"], NODE1, NEAR1, "threads-late")
    assert seen["other"]["pages"] == {"1": 4096}
    assert seen["other"]["thread"] == {"cpus": NODE1, "policy": ["preferred-many", [0]]}


def test_twice_is_once(seen: Seen) -> None:
    assert seen["twice"]["same"], seen["twice"]["differ"]
    has(seen["twice"], NODE0, ["preferred-many", [0]])


def test_restore_goes_back_one_bind(seen: Seen) -> None:
    for name, cpus, policy, omp in (
        ("restored-other", NODE0, ["preferred-many", [0]], "4"),
        ("restored-twice", NODE0, ["preferred-many", [0]], "4"),
        ("restored-wider", [0, 1], ["preferred-many", [0]], "2"),
        ("restored-first", ALL, DEFAULT, None),
    ):
        line = seen[name]
        assert (line["cpus"], line["policy"], line["omp"]) == (cpus, policy, omp), line


def test_with(seen: Seen) -> None:
    has(seen["with"], NODE1, ["bind", [1]])
    after = seen["with-after"]
    assert (after["cpus"], after["policy"], after["mark"]) == (ALL, DEFAULT, None)
    has(seen["after-restore"], NODE1, NEAR1)


def test_masks_from_before(seen: Seen) -> None:
    has(seen["narrow-thread"], NODE1, NEAR1, "threads-kept", "threads-late")
    assert seen["narrow-thread"]["thread"]["cpus"] == [2]
    assert seen["narrow-thread"]["kept"] == 1
    has(seen["born-narrow"], [4, 5], NEAR1, "cpus-reduced", "launcher-bound")


def test_children_of_a_bound_worker(seen: Seen) -> None:
    has(seen["child-same"], [4, 5], ["bind", [1]], "inherited")
    # A mask that somebody narrowed since is what the child plans within.
    problems = ("cpus-reduced", "too-few-cores", "launcher-bound")
    has(seen["child-narrowed"], [4], ["bind", [1]], *problems)
    assert seen["child-same"]["pages"] == {"1": 1024}
    # A child for another GPU is a worker of its own, and not confined to its parent's place.
    has(seen["child-other"], NODE0, ["preferred-many", [0]])
    told = json.loads(seen["child-exec"]["out"])
    assert (told["cpus"], told["policy"]) == ([4, 5], ["bind", [1]])
    assert told["pages"] == {"1": 4096}


def test_run_becomes_the_command(seen: Seen) -> None:
    err = ran(seen["run"], [4, 5], NEAR1, "1")
    assert "worker bound" in err
    assert json.loads(seen["run"]["out"])["omp"] == "2"
    signalled = seen["run-signal"]
    assert signalled["pid"] == signalled["told"]
    assert signalled["code"] == -15
    assert seen["run-ignored"]["out"] == "SigIgn:\t0000000000000000\n"
