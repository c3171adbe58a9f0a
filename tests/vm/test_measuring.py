"""bench and calibrate on two emulated nodes, whose memory is equally fast: they must say so."""

from __future__ import annotations

import json
from typing import Any

import pytest

from harness import HERE, boot

pytestmark = pytest.mark.vm

Seen = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def seen() -> Seen:
    environ = {"PYTHONPATH": str(HERE.parent.parent / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = ["python3", str(HERE / "guest/measuring.py")]
    done = boot("two-socket", command, timeout=500, environ=environ)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found: Seen = {}
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            said = json.loads(line)
            found.setdefault(said["check"], []).append(said)
    assert "end" in found
    return found


def test_memory_is_where_it_is_meant_to_be_and_the_policy_is_put_back(seen: Seen) -> None:
    assert [line["found"] for line in seen["arena"]] == [{"0": 1024}, {"1": 1024}]
    assert [line["policy"] for line in seen["arena"]] == [["default", []]] * 2


def test_memory_elsewhere_is_refused(seen: Seen) -> None:
    (line,) = seen["refused"]
    assert line["name"] == "pages-misplaced"
    assert line["cause"] == "1024 of 1024 pages meant for node 0 are on 1"


def test_without_policies_first_touch_does(seen: Seen) -> None:
    assert [line["found"] for line in seen["first touch"]] == [{"0": 1024}, {"1": 1024}]
    assert [line["name"] for line in seen["no policy, far CPU"]] == ["pages-misplaced"]


def test_without_looking_there_is_no_figure(seen: Seen) -> None:
    (line,) = seen["can't look"]
    assert line["names"] == ["pages-unverified"] * 2
    assert line["figures"] == [None] * 2


def test_each_node_to_each_node_and_no_difference(seen: Seen) -> None:
    (line,) = seen["layout"]
    assert line["cpus"] == [[0, [0, 1, 2, 3]], [1, [4, 5, 6, 7]]]
    (line,) = seen["memory"]
    places = [(pair["cpu_node"], pair["memory_node"]) for pair in line["pairs"]]
    assert places == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for pair in line["pairs"]:
        assert pair["problem"] is None
        assert pair["bandwidth_gib_s"]["low"] > 0
    assert line["verdict"]["worth"] == 1.0
    assert "no difference on this machine (within the noise of" in line["verdict"]["text"]


def test_calibrate_cant_tell_equal_nodes_apart(seen: Seen) -> None:
    (line,) = seen["calibrate"]
    assert (line["code"], line["affinity"]) == (1, list(range(8)))
    assert len(line["places"]) == 2
    for place in line["places"]:
        assert place["nodes"] == []
        assert place["cause"].startswith("the nodes differ by no more than the noise")
        assert set(place["rates_gib_s"]) == {"0", "1"}


def test_without_a_library_it_says_so(seen: Seen) -> None:
    (line,) = seen["no library"]
    assert line["code"] == 1
    assert "no-copier" in line["err"]
    assert "cuda-bindings" in line["err"]
