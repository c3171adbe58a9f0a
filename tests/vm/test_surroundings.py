"""Workers in odd surroundings, on real nodes: bound, or told why not, and never stopped."""

from __future__ import annotations

import json
from typing import Any

import pytest

from harness import HERE, available, boot

pytestmark = pytest.mark.vm

ENVIRON = {"PYTHONPATH": str(HERE.parent.parent / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
Seen = dict[str, dict[str, Any]]
NEAR = ([2, 3], ["preferred-many", [1]])
NOT = ([0, 1, 2, 3], ["default", []])


def run(script: str, *arguments: str) -> list[dict[str, Any]]:
    """What a script says in a guest of the shape cloud.json."""
    command = ["python3", str(HERE / "guest" / script)]
    done = boot(str(HERE / "cloud.json"), command, environ=ENVIRON, kernel_args=arguments)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"check')]


@pytest.fixture(scope="module")
def seen() -> Seen:
    assert available() is None
    lines = run("surroundings.py")
    assert lines[-1] == {"check": "end"}
    return {" ".join(filter(None, (line["check"], line.get("of")))): line for line in lines}


# What stands in a worker's way in each, and whether it is bound all the same.
SURROUNDINGS = {
    "plain": ([], True),
    "chroot": (["machine-unreadable"], False),
    "no /sys": (["machine-unreadable"], False),
    "no /proc": (["threads-unseen"], True),
    "hidden /proc": ([], True),
    "user namespace": ([], True),
}


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_a_worker(seen: Seen, name: str) -> None:
    problems, bound = SURROUNDINGS[name]
    line = seen[f"bind {name}"]
    assert (line["problems"], line["bound"]) == (problems, bound)
    assert (line["cpus"], line["policy"]) == (NEAR if bound else NOT)
    run, launch, strict = (seen[f"{verb} {name}"] for verb in ("run", "launch", "strict"))
    for started in run, launch:
        assert (started["code"], started["out"].count("\nran\n")) == (0, 1)
    said = [line.split()[2] for line in run["out"].splitlines() if "WARNING" in line]
    assert said == [f"{problem}:" for problem in problems]
    assert (strict["code"], "ran" in strict["out"]) == ((0, True) if bound else (1, False))


def test_processes_that_cannot_be_seen_are_mentioned(seen: Seen) -> None:
    assert "processes-unseen: /proc is mounted with hidepid" in seen["status hidden /proc"]["out"]
    assert "processes-unseen: /proc is not mounted" in seen["status no /proc"]["out"]


def test_a_parent_that_is_killed_while_spawning(seen: Seen) -> None:
    orphan, after = seen["orphan"], seen["killed"]
    assert (orphan["cpus"], orphan["policy"]) == NEAR
    assert (after["code"], after["left"]) == (-9, [])
    assert (after["cpus"], after["policy"]) == NOT


def test_threads_that_come_and_go(seen: Seen) -> None:
    line = seen["churn"]
    assert line["masks"] == [[2, 3]]
    assert (line["later"]["cpus"], line["later"]["policy"]) == NEAR
    assert line["problems"] == ["threads-late"]


def test_where_no_firmware_says_it_nothing_is_guessed(seen: Seen) -> None:
    for which in "one of three", "all":
        line = seen[f"cloud {which}"]
        assert (line["bound"], line["problems"]) == (False, ["no-numa-node"])
        assert (line["cpus"], line["policy"]) == NOT
    assert seen["cloud all"]["local_cpulist"] == "0-3"
    mapped = seen["cloud mapped"]
    assert (mapped["bound"], mapped["problems"]) == (True, [])
    assert (mapped["cpus"], mapped["policy"]) == NEAR


def test_one_node_of_two_is_shown_and_a_cpu_is_isolated() -> None:
    assert available() is None
    *bound, born, widened = run("one_node.py", "numa=off", "isolcpus=3")
    assert len(bound) == 3
    for line in bound:
        assert (line["node"], line["bound"], line["cpus"]) == (-1, True, [0, 1, 2])
        # The kernel kept CPU 3 to itself: no launcher did.
        assert line["problems"] == ["cpus-reduced", "one-node"]
    assert "nodes-not-real" in born["names"]
    assert not {"isolated-cpus", "inherited-mask"} & set(born["names"])
    assert "isolated-cpus" in widened["names"]
