"""Guests that take minutes on one CPU are booted ahead, one after the other, beside other tests."""

from __future__ import annotations

import subprocess
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from harness import HERE, available, boot

Booted = subprocess.CompletedProcess[str]
# fixture: the topology that it boots, and the script that runs there.
AHEAD = {
    "launched": ("two-socket-big", "launched.py"),
    "residency": ("two-socket", "residency.py"),
}
_started: pytest.StashKey[dict[str, Future[Booted]]] = pytest.StashKey()


def _boot(topology: str, script: str) -> Booted:
    environ = {"PYTHONPATH": str(HERE.parent.parent / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = ["python3", str(HERE / "guest" / script)]
    return boot(topology, command, timeout=1100, environ=environ)


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.config.option.collectonly or available() is not None:
        return
    used = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    pool = ThreadPoolExecutor(1)
    session.config.stash[_started] = {
        fixture: pool.submit(_boot, *what) for fixture, what in AHEAD.items() if fixture in used
    }
    pool.shutdown(wait=False)


@pytest.fixture(scope="session")
def launched(pytestconfig: pytest.Config) -> Booted:
    """What launched.py printed in its guest."""
    return _result(pytestconfig, "launched")


@pytest.fixture(scope="session")
def residency(pytestconfig: pytest.Config) -> Booted:
    """What residency.py printed in its guest."""
    return _result(pytestconfig, "residency")


def _result(config: pytest.Config, fixture: str) -> Booted:
    assert available() is None
    return config.stash[_started][fixture].result()
