"""What `run` and `launch` have in common: a line on stderr for each problem, and exec."""

from __future__ import annotations

import os
import sys

from numabind._problems import NOTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from numabind._problems import Problem

# As a shell has them.
_NOT_EXECUTABLE, _NOT_FOUND = 126, 127


def say(problems: tuple[Problem, ...], quiet: bool = False) -> None:
    """One WARNING line on stderr for each problem; notes are left out."""
    for said in problems:
        if said.name not in NOTES:
            print(f"numabind: WARNING {said.text}", file=sys.stderr)
        elif said.name == "turned-off" and not quiet:
            print(f"numabind: {said.text}", file=sys.stderr)


def become(verb: str, command: list[str]) -> int:
    """Exec the command: same pid, its signals, its exit code. Returns 126 or 127 if it can't be."""
    from numabind import _syscalls

    # PEP 538: under the C locale Python exports LC_CTYPE, which the command was not given.
    environ = dict(os.environ)
    if environ.get("LC_CTYPE") == "C.UTF-8" and not _was_given("LC_CTYPE"):
        del environ["LC_CTYPE"]
    _syscalls.restore_default_signals()
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(command[0], command, environ)
    except FileNotFoundError:
        print(f"numabind: {verb}: {command[0]}: command not found", file=sys.stderr)
        return _NOT_FOUND
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or error
        print(f"numabind: {verb}: {command[0]}: {cause}", file=sys.stderr)
        return _NOT_EXECUTABLE


def _was_given(variable: str) -> bool:
    try:
        with open("/proc/self/environ", "rb") as file:
            data = file.read()
    except OSError:
        return True
    return any(part.startswith(variable.encode() + b"=") for part in data.split(b"\0"))
