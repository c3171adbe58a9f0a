"""The guest that runs launchers takes minutes on one CPU: it is booted before the other tests."""

from __future__ import annotations

import subprocess
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from harness import HERE, available, boot

Booted = subprocess.CompletedProcess[str]
_started: pytest.StashKey[Future[Booted]] = pytest.StashKey()


def _launched() -> Booted:
    environ = {"PYTHONPATH": str(HERE.parent.parent / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = ["python3", str(HERE / "guest/launched.py")]
    return boot("two-socket-big", command, timeout=1100, environ=environ)


def pytest_collection_finish(session: pytest.Session) -> None:
    wanted = any("launched" in getattr(item, "fixturenames", ()) for item in session.items)
    if wanted and not session.config.option.collectonly and available() is None:
        pool = ThreadPoolExecutor(1)
        session.config.stash[_started] = pool.submit(_launched)
        pool.shutdown(wait=False)


@pytest.fixture(scope="session")
def launched(pytestconfig: pytest.Config) -> Booted:
    """What launched.py printed in its guest."""
    assert available() is None
    return pytestconfig.stash[_started].result()
