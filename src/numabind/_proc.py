"""What /proc says of other processes. One that is gone, or another user's, is an empty answer.

Source: proc(5).
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def environment(pid: int) -> dict[str, str]:
    """The environment that a process was started with; {} if it is gone or another user's."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            data = file.read()
    except OSError:
        return {}
    pairs = (os.fsdecode(part).partition("=") for part in data.split(b"\0"))
    return {name: value for name, equals, value in pairs if equals}


def children(pid: int) -> list[int]:
    """The processes that a process's threads started and that still are its children."""
    found: list[int] = []
    for thread in threads(pid):
        try:
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                found += map(int, file.read().split())
        except OSError:
            continue  # it ended
    return found


def descendants(pid: int) -> list[int]:
    """A process and all below it, parents first."""
    found = [pid]
    for known in found:
        found += children(known)
    return found


def threads(pid: int) -> list[int]:
    """The thread ids of a process."""
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def witness(pid: int) -> int | None:
    """The thread to ask about a process: its first, or another where that one has ended already.

    A program may end its first thread and go on; the kernel then shows the process as a zombie
    without memory or files, and its other threads as they are. None if all have ended.
    """
    for thread in (pid, *sorted(threads(pid))):
        if status(thread).get("State", "Z")[:1] not in ("Z", "X"):
            return thread
    return None


def may_trace() -> bool:
    """Whether this process has CAP_SYS_PTRACE (bit 19), by /proc/self/status."""
    try:
        return bool(int(status(os.getpid()).get("CapEff", "0"), 16) >> 19 & 1)
    except ValueError:
        return False


def name(pid: int, thread: int | None = None) -> str | None:
    """The name of a process or thread, as ps shows it; None if it is gone."""
    path = f"/proc/{pid}/comm" if thread is None else f"/proc/{pid}/task/{thread}/comm"
    try:
        # A name may hold line breaks of its own.
        with open(path, encoding="utf-8", errors="replace", newline="\n") as file:
            return file.read().removesuffix("\n")
    except OSError:
        return None


def parent(pid: int) -> int:
    """The process id of the parent; 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def status(pid: int) -> dict[str, str]:
    """The fields of /proc/PID/status; {} if it is gone."""
    try:
        path = f"/proc/{pid}/status"
        with open(path, encoding="utf-8", errors="replace", newline="\n") as file:
            pairs = (line.partition(":") for line in file)
            return {name: value.strip() for name, _, value in pairs}
    except OSError:
        return {}


def kibibytes(fields: dict[str, str], field: str) -> int:
    """A field "4 kB" of `status` in bytes; 0 where the kernel does not have it."""
    words = fields.get(field, "").split()
    return int(words[0]) * 1024 if words and words[0].isdigit() else 0


def foreign() -> str | None:
    """Why the numbers in /proc are not those of processes here; None where they are."""
    try:
        own = os.readlink("/proc/self")
    except OSError:
        return "/proc is not mounted"
    return None if own == str(os.getpid()) else "/proc is that of another PID namespace"


def hidden() -> str | None:
    """Why other processes can't even be seen here (hidepid of proc(5)); None where they can."""
    other = foreign()
    if other is not None:
        return other
    # With hidepid=1 the directories are there, and what is in them can't be read.
    if not os.path.exists("/proc/1/status"):
        return "/proc is mounted with hidepid and shows no process of another user"
    return None


def processes() -> Iterable[int]:
    """The process ids of this machine that this process can see."""
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def open_files(pid: int) -> set[str]:
    """The paths of the files that a process has open; empty for another user's."""
    found = set()
    try:
        for entry in os.listdir(f"/proc/{pid}/fd"):
            try:
                found.add(os.readlink(f"/proc/{pid}/fd/{entry}"))
            except OSError:
                continue  # closed in the meantime
    except OSError:
        return found
    return found
