"""The verbs of a cluster: fleet report."""

from __future__ import annotations

import os

from numabind._errors import UsageError
from numabind._fleet import FleetReport, fleet
from numabind._fleet.snapshots import files_in
from numabind._progress import Progress
from numabind._terminal import tell

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

_YES, _NO = 0, 1


def report_verb(parsed: argparse.Namespace) -> int:
    """Compare the snapshots of a directory, and print or write the answer."""
    if not os.path.isdir(parsed.directory):
        raise UsageError(f"{parsed.directory}: no such directory")
    files = files_in(parsed.directory)
    if not files:
        raise UsageError(
            f"{parsed.directory}: no *.json or *.json.gz in it: make them with numabind snapshot -o"
        )
    return answer(parsed, _compare(parsed.directory, files))


def _compare(directory: str, files: tuple[str, ...]) -> FleetReport:
    with Progress("fleet") as progress:
        return fleet(directory, files, progress)


def answer(parsed: argparse.Namespace, report: FleetReport) -> int:
    """Print the report in the form that was asked for; 1 unless all is well."""
    for each in report.broken:
        tell(f"numabind: WARNING {each.file} is left out: {each.cause}")
    for each in report.silent:
        tell(f"numabind: WARNING node {each.file} did not answer: {each.cause}")
    if parsed.output is not None:
        _write_page(parsed.output, report)
    if getattr(parsed, "json", False):
        import json

        print(json.dumps(report.as_dict(), indent=1))
    elif parsed.output is None:
        from numabind._report.colour import show
        from numabind._report.fleet import fleet_text

        show(fleet_text(report))
    return _NO if report.outliers or report.broken or report.silent else _YES


def _write_page(path: str, report: FleetReport) -> None:
    import time

    from numabind._files import write_text
    from numabind._report.fleet_page import page

    text = page(report, time.strftime("%Y-%m-%d %H:%M %Z"))
    try:
        write_text(path, text)
    except OSError as error:
        raise UsageError(f"-o {path}: {error.strerror}") from error
