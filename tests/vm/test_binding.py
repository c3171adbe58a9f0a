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
            self.started[key] = self.pool.submit(
                boot, name, command, timeout=500, environ=environ
            )
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
        for item in request.session.items:
            wanted = getattr(item, "callspec", None)
            if wanted and item.module is request.module and "script" in wanted.params:
                found.start(wanted.params["name"], wanted.params["script"])
        yield found
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("script", ["placement.py"])
@pytest.mark.parametrize("name", PLACED)
def test_every_mode_and_policy_of_every_gpu(guests: Guests, name: str, script: str) -> None:
    machine, *seen = guests.lines(name, script)
    wanted = Expected(topology(name), machine["gpus"])
    everyone = [pci for pci, _ in wanted.gpus]
    assert {line["check"] for line in seen} == {"placement"}
    assert {line["gpu"] for line in seen} == set(everyone)
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
