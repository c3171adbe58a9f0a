"""What `run` and `launch` have in common: lines on stderr, and becoming the command."""

from __future__ import annotations

import io
import os
import sys

from numabind._problems import NOTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from numabind._problems import Problem

# As a shell has them.
NOT_EXECUTABLE, NOT_FOUND = 126, 127


def tell(text: str) -> None:
    """One line on stderr. A worker whose stderr is closed or full runs all the same."""
    if not text.isprintable():
        # Arguments and variables are quoted in errors, and may hold what moves a terminal's cursor.
        text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    if sys.stderr is not None:
        try:
            # One write, so that lines of workers that share a terminal don't run into each other.
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()
        except OSError:
            return


def print_utf8(text: str) -> None:
    """Print what is UTF-8 by its own format, whatever this terminal's encoding is."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    print(text)


def say(problems: tuple[Problem, ...], quiet: bool = False) -> None:
    """One WARNING for each problem; notes are left out."""
    for said in problems:
        if said.name not in NOTES:
            tell(f"numabind: WARNING {said.text}")
        elif said.name == "turned-off" and not quiet:
            tell(f"numabind: {said.text}")


def become(verb: str, command: list[str]) -> int:
    """Exec the command: same pid, its signals, its exit code. Returns 126 or 127 if it can't be."""
    try:
        from numabind import _syscalls
    except ImportError:
        pass  # a Python without libffi: SIGPIPE stays ignored
    else:
        _syscalls.restore_default_signals()
    # PEP 538: under the C locale Python exports an LC_CTYPE that the command was not given.
    given = _given_at_start("LC_CTYPE")
    if given is None:
        os.environ.pop("LC_CTYPE", None)
    elif given != os.environ.get("LC_CTYPE"):
        os.environ["LC_CTYPE"] = given
    try:
        os.execvp(command[0], command)
    except FileNotFoundError:
        tell(f"numabind: {verb}: {command[0]}: command not found")
        return NOT_FOUND
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or error
        tell(f"numabind: {verb}: {command[0]}: {cause}")
        return NOT_EXECUTABLE


def _given_at_start(variable: str) -> str | None:
    """The value of a variable when this process started; as it is now if /proc does not say."""
    try:
        with open("/proc/self/environ", "rb") as file:
            data = file.read()
    except OSError:
        return os.environ.get(variable)
    name = os.fsencode(variable) + b"="
    found = [part.removeprefix(name) for part in data.split(b"\0") if part.startswith(name)]
    return os.fsdecode(found[0]) if found else None
