"""What is read without argparse, for a quick start: `run`, `launch`, `status`."""

from __future__ import annotations

from numabind._options import METHODS
from numabind._record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

# flag: (field of Options or of the worker, values or type, help)
_MODE_HELP = (
    "which CPUs: node (default), all allowed CPUs of the GPU's NUMA node; socket, of all nodes of "
    "its package; exclusive, the node's cores dealt over its GPUs; core-complex, one L3 group"
)
_MEMORY_HELP = (
    "memory policy: prefer (default) spills when the node is full; bind kills the process then; "
    "local, interleave, weighted-interleave; none leaves the policy alone"
)
PLACING: dict[str, tuple[str, Any, str]] = {
    "--mode": ("mode", "MODE", _MODE_HELP),
    "--memory": ("memory", "POLICY", _MEMORY_HELP),
    "--no-smt": ("smt", False, "the first SMT sibling of each core only"),
    "--reserve": ("reserve", int, "cores of each node left to the system (default 0)"),
    "--near": (
        "near",
        "DEVICE",
        "workers without a GPU: next to this NIC or disk (mlx5_0, nvme0, eth0, a PCI address)",
    ),
    "--share": ("share", "HOW", "more workers than devices: deal them in a block or cyclic"),
}
RUNNING: dict[str, tuple[str, Any, str]] = {
    "--gpu": ("gpu", "GPU", "UUID or its beginning, PCI address, or ordinal among the visible"),
    "--local-rank": ("local_rank", int, "this worker's rank on this machine"),
    "--threads": ("threads", "HOW", "auto replaces a launcher's OMP_NUM_THREADS=1 (default keep)"),
    "--move-pages": ("move_pages", True, "move memory that was touched before the bind"),
    "--ignore-inherited": (
        "ignore_inherited",
        True,
        "where something else bound this process first, go up to its cgroup's limit",
    ),
    "--strict": ("strict", True, "exit 1 instead of running a worker that is not in its place"),
    "--quiet": ("quiet", True, "say nothing on success"),
    "--json": ("json", True, "say what was done as one line of JSON on stderr"),
}
WORKER = ("gpu", "local_rank", "quiet", "json")
LAUNCHING: dict[str, tuple[str, Any, str]] = {
    "--workers": ("workers", int, "workers to check places for (default: one for each device)"),
    **{flag: entry for flag, entry in RUNNING.items() if entry[0] not in ("gpu", "local_rank")},
}
# The verbs that take a command: all their flags.
COMMANDS = {"run": {**RUNNING, **PLACING}, "launch": {**LAUNCHING, **PLACING}}


def lean(  # noqa: C901 (one loop over words)
    words: list[str],
) -> tuple[str, dict[str, Any], list[str]] | None:
    """Read "run [options] -- CMD…" without argparse; None for whatever argparse should see."""
    if not words or words[0] not in COMMANDS:
        return None
    values: dict[str, Any] = {}
    position = 1
    table = COMMANDS[words[0]]
    while position < len(words) and words[position].startswith("-"):
        flag, equals, value = words[position].partition("=")
        position += 1
        if flag == "--" and not equals:
            break
        flag = "--quiet" if flag == "-q" else flag
        if flag not in table:
            return None
        name, kind, _ = table[flag]
        if isinstance(kind, bool):
            if equals:
                return None
            values[name] = kind
            continue
        if not equals:
            if position == len(words):
                return None
            value = words[position]
            position += 1
        if kind is int:
            if not _whole(value):
                return None
            values[name] = int(value)
        else:
            values[name] = value
    command = words[position:]
    return (words[0], values, command) if command else None


@record
class StatusArguments:
    """What `status` was asked: which processes, how to count, and the form of the answer."""

    pids: tuple[int, ...] = ()
    tree: int | None = None
    method: str = "auto"
    min_local: float | None = None
    prometheus: bool = False
    json: bool = False


def lean_status(words: list[str]) -> StatusArguments | None:
    """Read "status [PID…] [options]"; None for whatever argparse should see."""
    if words[:1] != ["status"]:
        return None
    values: dict[str, Any] = {}
    pids: list[int] = []
    rest = iter(words[1:])
    for word in rest:
        if word in ("--json", "--prometheus"):
            values[word[2:]] = True
            continue
        if _whole(word):
            pids.append(int(word))
            continue
        flag, equals, value = word.partition("=")
        value = value if equals else next(rest, "")
        if flag == "--tree" and _whole(value):
            values["tree"] = int(value)
        elif flag == "--pages" and value in METHODS:
            values["method"] = value
        elif flag == "--min-local" and (share := read_share(value)) is not None:
            values["min_local"] = share
        else:
            return None
    return StatusArguments(tuple(pids), **values)


def _whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def read_share(text: str) -> float | None:
    """A share from 0 to 1; None for anything else."""
    try:
        share = float(text)
    except ValueError:
        return None
    return share if 0 <= share <= 1 else None


def given(parsed: argparse.Namespace, table: dict[str, tuple[str, Any, str]]) -> dict[str, Any]:
    """What was given on the command line of a table's flags, by field."""
    names = [name for name, _, _ in table.values()]
    return {name: getattr(parsed, name) for name in names if hasattr(parsed, name)}
