"""The verbs of a cluster: fleet report, fleet survey."""

from __future__ import annotations

import json
import os
import re
import socket
import tempfile
from collections import Counter
from contextlib import ExitStack

from numabind._errors import NumabindError, UsageError
from numabind._files import write_text
from numabind._fleet import Broken, FleetReport, fleet
from numabind._fleet.snapshots import files_in
from numabind._progress import Progress
from numabind._record import replace
from numabind._terminal import tell

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence
    from typing import Any

_YES, _NO = 0, 1


def report_verb(parsed: argparse.Namespace) -> int:
    """Compare the snapshots of a directory, and print or write the answer."""
    files, closed = files_in(parsed.directory)
    if not files:
        where = f" or in {closed[0].file}, {closed[0].cause}" if closed else ""
        raise UsageError(
            f"{parsed.directory}: no *.json or *.json.gz in it{where}: make them with numabind "
            "snapshot -o"
        )
    report = _compare(parsed.directory, files)
    report = replace(report, broken=(*closed, *report.broken))
    if parsed.output is not None:
        _write_page(parsed.output, report)
    return _answer(report, getattr(parsed, "json", False), quiet=parsed.output is not None)


def survey_verb(parsed: argparse.Namespace, options: Sequence[str]) -> int:
    """Ask every node of a cluster, keep the snapshots where that is wanted, and compare them."""
    if parsed.ray is not None and options:
        raise UsageError("fleet survey: what follows -- is for srun")
    with ExitStack() as stack:
        directory = parsed.output
        if directory is None:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="numabind-fleet-"))
        else:
            _make(directory)
        with Progress("fleet") as progress:
            progress("asking the nodes")
            if parsed.ray is not None:
                found, silent = _ask_ray(parsed.ray, parsed.timeout)
            else:
                from numabind._fleet.slurm import ask

                found, silent = ask(options, parsed.timeout)
        report = _compare(directory, _kept(directory, found))
    missing = tuple(Broken(node, cause) for node, cause in sorted(silent.items()))
    return _answer(replace(report, silent=missing), getattr(parsed, "json", False))


def _make(directory: str) -> None:
    try:
        os.makedirs(directory, exist_ok=True)
    except OSError as error:
        raise UsageError(f"-o {directory}: {error.strerror}") from error


def _ask_ray(address: str, timeout: float) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """As `slurm.ask`, of a Ray cluster: a node is called by its host, and its id where several are.

    NumabindError if the cluster can't be reached.
    """
    try:
        import ray

        from numabind.ray import answers
    except ImportError as error:
        raise UsageError(f"fleet survey --ray needs Ray: {error}") from error
    _check_address(address, timeout)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, ValueError, OSError, RuntimeError) as error:
        cause = str(error).strip().partition("\n")[0]
        raise NumabindError(f"--ray {address}: {cause}") from error
    try:
        machines, silent = answers(timeout)
        hosts = {node["NodeID"]: str(node["NodeManagerHostname"]) for node in ray.nodes()}
    finally:
        ray.shutdown()
    times = Counter(hosts.values())
    names = {
        node: host if times[host] == 1 else f"{host}-{node[:12]}" for node, host in hosts.items()
    }
    return (
        {names[node]: machine.as_dict() for node, machine in machines.items()},
        {names[node]: cause for node, cause in silent.items()},
    )


def _check_address(address: str, timeout: float) -> None:
    """NumabindError where nobody listens: Ray itself would try again for many minutes."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if not colon or not port.isdecimal():
        return  # "auto", or what Ray will complain of
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout).close()
    except (OSError, OverflowError) as error:
        cause = getattr(error, "strerror", None) or error
        raise NumabindError(f"--ray {address}: {cause}") from error


def _kept(directory: str, found: Mapping[str, dict[str, Any]]) -> tuple[str, ...]:
    """Write each snapshot to a file of its node's name; the files' names, sorted."""
    files = []
    for node, snapshot in found.items():
        file = re.sub(r"[^A-Za-z0-9._-]", "_", node).lstrip(".") + ".json"
        try:
            write_text(os.path.join(directory, file), json.dumps(snapshot, indent=1) + "\n")
        except OSError as error:
            raise UsageError(f"-o {directory}: {file}: {error.strerror}") from error
        files.append(file)
    return tuple(sorted(files))


def _compare(directory: str, files: tuple[str, ...]) -> FleetReport:
    with Progress("fleet") as progress:
        return fleet(directory, files, progress)


def _answer(report: FleetReport, as_json: bool, quiet: bool = False) -> int:
    """Print the report, unless `quiet`, and what is missing in it; 1 unless all is well."""
    for each in report.broken:
        tell(f"numabind: WARNING {each.file} is left out: {each.cause}")
    for each in report.silent:
        tell(f"numabind: WARNING node {each.file} did not answer: {each.cause}")
    if as_json:
        print(json.dumps(report.as_dict(), indent=1))
    elif not quiet:
        from numabind._report.colour import show
        from numabind._report.fleet import fleet_text

        show(fleet_text(report))
    return _NO if report.outliers or report.broken or report.silent else _YES


def _write_page(path: str, report: FleetReport) -> None:
    import time

    from numabind._report.fleet_page import page

    text = page(report, time.strftime("%Y-%m-%d %H:%M %Z"))
    try:
        write_text(path, text)
    except OSError as error:
        raise UsageError(f"-o {path}: {error.strerror}") from error
