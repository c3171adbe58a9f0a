"""The verbs that look at what is and runs: status, top, doctor, report."""

from __future__ import annotations

import os

from numabind import _proc
from numabind._errors import UsageError
from numabind._status import Report, status
from numabind._terminal import print_utf8, tell

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from numabind._arguments import StatusArguments
    from numabind._machine import Machine
    from numabind._placement import Plan
    from numabind._process import Process


def status_verb(parsed: StatusArguments) -> int:
    """Print the status; 1 if a process is below --min-local."""
    if parsed.prometheus and parsed.json:
        raise UsageError("--prometheus and --json are two formats: choose one")
    report = _look(parsed)
    if parsed.json:
        import json

        print(json.dumps(report.as_dict(), indent=1))
    elif parsed.prometheus:
        from numabind._report.status import prometheus_text

        print_utf8(prometheus_text(report.processes))
    else:
        from numabind._report.colour import show
        from numabind._report.status import status_text

        show(status_text(report.processes))
        doubt = (
            " or can't be seen from this PID namespace"
            if not parsed.pids and parsed.tree is None
            else ""
        )
        for pid in report.ended:
            print(f"{pid} ended meanwhile{doubt}")
        for said in report.problems:
            print(f"note: {said.text}")
    low = [] if parsed.min_local is None else below(report.processes, parsed.min_local)
    if parsed.min_local is not None and not parsed.pids and parsed.tree is None:
        # NVML numbers processes as the host does.
        low += [f"process {pid} holds a GPU and can't be seen from here" for pid in report.ended]
        low += [f"no process can be seen: {why}" for why in [_proc.foreign()] if why]
    for line in low:
        tell(f"numabind: status: {line}")
    return 1 if low else 0


def below(processes: Sequence[Process], share: float) -> list[str]:
    """What keeps processes from being local to this share, one line each. Pure."""
    found = []
    for process in processes:
        pages = process.pages
        who = f"process {process.pid}"
        if process.nodes is None:
            found.append(f"{who}: where it belongs is not known")
        elif process.strays:
            found.append(f"{who}: {len(process.strays)} threads are elsewhere")
        elif pages is None or pages.local is None:
            found.append(f"{who}: its pages can't be told")
        elif pages.local < share and pages.enough:
            is_local = f"{_percent(pages.local)} of its memory is local"
            found.append(f"{who}: {is_local}, not {_percent(share)}")
    return found


def _percent(share: float) -> str:
    """Digits enough that no two shares that differ by a thousandth of a percent look alike."""
    return f"{share * 100:.3f}".rstrip("0").rstrip(".") + "%"


def doctor_verb(parsed: argparse.Namespace) -> int:
    """Print what works against locality; 1 if something serious does."""
    from numabind._doctor import doctor

    if parsed.root is not None and not os.path.isdir(parsed.root):
        raise UsageError(f"--root {parsed.root}: no such directory")
    # The environment is of here, so it says nothing of a captured tree.
    findings = doctor(os.environ if parsed.root is None else {}, parsed.root)
    if getattr(parsed, "json", False):
        import json

        found = [finding.as_dict() for finding in findings]
        print(json.dumps({"schema": 1, "findings": found}, indent=1))
    else:
        from numabind._report.colour import show
        from numabind._report.findings import findings_text

        show(findings_text(findings))
    return 1 if any(finding.severity == "serious" for finding in findings) else 0


def report_verb(parsed: argparse.Namespace, machine: Machine, made: Plan) -> int:
    """Write the page; of this machine with what doctor and status find, of another without."""
    import time

    from numabind._doctor import doctor
    from numabind._files import write_text
    from numabind._report.html import page

    live = parsed.snapshot is None and parsed.root is None
    if not live and (parsed.pids or parsed.tree is not None):
        raise UsageError("processes are of this machine: leave out --root and --snapshot")
    processes = _look(parsed).processes if live else ()
    findings = doctor(os.environ) if live else doctor({}, parsed.root) if parsed.root else ()
    # Problems that the plan shows already.
    known = {said.cause for said in machine.problems}
    findings = tuple(finding for finding in findings if finding.cause not in known)
    moment = time.strftime("%Y-%m-%d %H:%M %Z")
    measured = None
    if parsed.bench is not None:
        from numabind._bench.results import load

        measured = load(parsed.bench)
    text = page(machine, made, processes, findings, moment, measured=measured)
    if parsed.output is None:
        print_utf8(text)
        return 0
    try:
        write_text(parsed.output, text)
    except OSError as error:
        raise UsageError(f"-o {parsed.output}: {error.strerror}") from error
    return 0


def top_verb(parsed: argparse.Namespace) -> int:
    """Show the status until somebody has seen enough."""
    from numabind._top import top

    if parsed.count is not None and parsed.count < 1:
        raise UsageError(f"--count must be 1 or more, not {parsed.count}")
    _look(parsed)  # says what is wrong before the screen is taken

    def look() -> Sequence[Process] | None:
        """What is left of the named processes; None if nothing is."""
        parsed.pids = [pid for pid in parsed.pids if _proc.name(pid) is not None]
        if parsed.tree is not None and _proc.name(parsed.tree) is None:
            parsed.tree = None
        if named and not parsed.pids and parsed.tree is None:
            return None
        try:
            return _look(parsed).processes
        except UsageError:
            return ()  # one ended just now

    named = bool(parsed.pids) or parsed.tree is not None
    top(look, parsed.delay, parsed.count, parsed.sort)
    return 0


def _look(parsed: argparse.Namespace | StatusArguments) -> Report:
    return status(parsed.pids or None, tree=parsed.tree, method=parsed.method)
