"""docs/scaling.md: its formula against a simulation, its table and picture against the script."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SPEC = importlib.util.spec_from_file_location("scaling", ROOT / "benchmarks/scaling.py")
assert SPEC
assert SPEC.loader
scaling = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(scaling)


def test_by_hand() -> None:
    """Two ranks, each remote in half of the jobs: 3 of 4 jobs take 1 + 0.2 * 2."""
    assert scaling.any_remote(2, 0.5) == 0.75
    assert scaling.slowdown(2, 0.5, 0.2, 3.0) == pytest.approx(1 + 0.75 * 0.4)
    assert scaling.slowdown(1000, 0.0, 0.5, 9.0) == 1.0
    assert scaling.slowdown(1, 1.0, 0.5, 2.0) == 1.5


def test_the_simulation_agrees() -> None:
    """Within five standard errors; seeded, so it can't fail by bad luck."""
    for name, exact, played, error in scaling.check(jobs=600, seed=7):
        assert abs(exact - played) <= error, name
        assert error < 0.2, "a bound that nothing could break"


def test_the_document_has_what_the_script_says() -> None:
    text = (ROOT / "docs/scaling.md").read_text()
    assert scaling.table() in text
    assert (ROOT / "docs/scaling.svg").read_text() == scaling.plot()
