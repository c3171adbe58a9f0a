"""What can undo a place after it was bound: OpenMP's own binding, a node that is full."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from machines.build import build
from machines.shapes import SHAPES
from numabind._hazards import full_nodes, openmp_binders
from numabind._inherited import place
from numabind._options import make_options
from numabind._resolve import seat_of_rank
from numabind._sysfs import NODE, Root
from numabind._visible import visible
from samples import machine

KMP = "granularity=fine,compact,1,0"
BINDERS = {
    "KMP_AFFINITY": ({"KMP_AFFINITY": KMP}, ["KMP_AFFINITY"]),
    "KMP_AFFINITY, off": ({"KMP_AFFINITY": "verbose,none"}, []),
    "KMP_AFFINITY, no type": ({"KMP_AFFINITY": "verbose,granularity=core"}, []),
    "OMP_PROC_BIND": ({"OMP_PROC_BIND": "spread,close"}, ["OMP_PROC_BIND"]),
    "OMP_PROC_BIND, off": ({"OMP_PROC_BIND": "FALSE"}, []),
    "OMP_PLACES": ({"OMP_PLACES": "cores"}, ["OMP_PLACES"]),
    "OMP_PLACES, off": ({"OMP_PLACES": "{0:4}", "OMP_PROC_BIND": "false"}, []),
    "GOMP_CPU_AFFINITY": ({"GOMP_CPU_AFFINITY": "0"}, ["GOMP_CPU_AFFINITY"]),
    "empty": ({"GOMP_CPU_AFFINITY": "", "OMP_PLACES": " "}, []),
}


@pytest.mark.parametrize(("environ", "names"), BINDERS.values(), ids=BINDERS)
def test_what_has_openmp_bind(environ: dict[str, str], names: list[str]) -> None:
    assert list(openmp_binders(environ)) == names


# machine, mode, environment: whether it is said
CROWDS = {
    "four workers of a node": ("hgx_h100", "node", {"KMP_AFFINITY": KMP}, True),
    "cores of its own": ("hgx_h100", "exclusive", {"KMP_AFFINITY": KMP}, False),
    "a node of its own": ("snc2_smt", "node", {"OMP_PROC_BIND": "close"}, False),
    "numbers of CPUs": ("hgx_h100", "exclusive", {"GOMP_CPU_AFFINITY": "0-3"}, True),
    "places by number": ("hgx_h100", "exclusive", {"OMP_PLACES": "{0:4}"}, True),
    "not bound": ("all_minus_one", "node", {"KMP_AFFINITY": KMP}, False),
}


@pytest.mark.parametrize(("name", "mode", "environ", "said"), CROWDS.values(), ids=CROWDS)
def test_openmp_beside_a_binding(name: str, mode: str, environ: dict[str, str], said: bool) -> None:
    where = machine(name)
    seat = seat_of_rank(where, visible(where, environ), 1, 4, None)
    (found,) = place(where, (seat,), make_options({"mode": mode}), environ)
    assert ("openmp-binds" in [p.name for p in found.problems]) == said


@pytest.mark.parametrize(
    ("value", "threads", "said"),
    [("1", "keep", True), ("1", "auto", False), ("8", "keep", False), ("", "keep", False)],
)
def test_one_thread_for_many_cores(value: str, threads: str, said: bool) -> None:
    where, environ = machine("hgx_h100"), {"OMP_NUM_THREADS": value}
    seat = seat_of_rank(where, visible(where, environ), 1, 8, None)
    (found,) = place(where, (seat,), make_options({"threads": threads}), environ)
    assert [p.name for p in found.problems] == ["one-openmp-thread"] * said


def test_a_node_that_is_nearly_full(tmp_path: Path) -> None:
    text = "Node 1 MemTotal: 1000 kB\nNode 1 MemFree: 20 kB\nNode 1 Inactive(file): {} kB\n"
    shape = SHAPES["sparse"]
    full = (f"{NODE}/node2/meminfo", text.format(20))
    cached = (f"{NODE}/node5/meminfo", text.format(40))
    root = Root(str(build(replace(shape, files=(full, cached)), tmp_path)))
    (said,) = full_nodes(root, frozenset({2}))
    assert said.name == "node-memory-low"
    assert full_nodes(root, frozenset({5})) == ()
    assert full_nodes(root, frozenset({0, 2})) == (), "together there is enough"
    assert full_nodes(root, frozenset({7})) == (), "no such node"
