"""Shared by all tests: in CI a skipped test is a failed run, since CI is meant to run them all."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hypothesis import settings

if TYPE_CHECKING:
    import pytest

# A busy machine is no failure.
settings.register_profile("patient", settings(), deadline=None)
settings.load_profile("patient")

_skipped: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        _skipped.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if os.environ.get("CI") and _skipped and exitstatus == 0:
        session.exitstatus = 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if os.environ.get("CI") and _skipped:
        names = ", ".join(_skipped)
        terminalreporter.write_line(f"CI must run every test; skipped: {names}", red=True)
