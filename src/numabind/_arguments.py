"""The command's flags: one table, read by argparse for people and by a small loop for `run`."""

from __future__ import annotations

from numabind._errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any, NoReturn

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
            if not (value.isascii() and value.isdigit() and len(value) < 10):
                return None
            values[name] = int(value)
        else:
            values[name] = value
    command = words[position:]
    return (words[0], values, command) if command else None


def make_parser() -> argparse.ArgumentParser:
    """The argparse parser of all verbs; also what completion and the manual page are made from."""
    import argparse

    from numabind import __version__

    class Parser(argparse.ArgumentParser):
        """Says in one line, like every other error, what argparse would say in several."""

        def error(self, message: str) -> NoReturn:
            raise UsageError(f"{message}; see {self.prog} --help")

    parser = Parser(
        prog="numabind",
        description="Put GPU workers next to their GPUs: CPU threads and host memory. Without a "
        "verb: show the machine, where each GPU's worker would go, and what stands in the way.",
        epilog="Exit codes: 0 done, 1 the answer is no, 2 wrong usage; run ends with CMD's.",
    )
    parser.add_argument("--version", action="version", version=f"numabind {__version__}")
    parser.add_argument("--json", action="store_true", help="machine and plan as JSON")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")

    show = verbs.add_parser("show", help="the machine: nodes, CPUs, devices, what is allowed")
    _source_flags(show)
    _json_flag(show)

    plan = verbs.add_parser("plan", help="where each worker would go, and why")
    plan.add_argument("--workers", type=int, metavar="N", help="default: one for each device")
    _table_flags(plan, PLACING)
    _source_flags(plan)
    _json_flag(plan)
    plan.add_argument("--strict", action="store_true", help="exit 1 if a worker can't be placed")

    runner = verbs.add_parser(
        "run",
        help="bind this process, then become CMD",
        usage="numabind run [options] -- CMD [ARG ...]",
        description="This process is a worker: find its GPU, bind CPUs and memory, read back, and "
        "exec CMD (same process id; signals and exit code are CMD's own).",
    )
    _command_flags(runner, "run")

    launcher = verbs.add_parser(
        "launch",
        help="become CMD, a launcher; each Python worker that it starts binds itself",
        usage="numabind launch [options] -- CMD [ARG ...]",
        description="CMD is a launcher (torchrun, accelerate, deepspeed, a script): check every "
        "worker's place, then exec CMD. Each Python interpreter below it that has a rank or a "
        "single GPU in its environment binds itself as it starts, before it imports anything.",
    )
    _command_flags(launcher, "launch")

    snapshot = verbs.add_parser("snapshot", help="the machine as a file, for planning elsewhere")
    snapshot.add_argument("-o", "--output", metavar="FILE", help="default: standard output")
    snapshot.add_argument(
        "--anonymize", action="store_true", help="leave out host name, boot id and UUIDs"
    )
    snapshot.add_argument("--root", metavar="DIR", help="read a captured tree instead of /")
    return parser


def _command_flags(parser: argparse.ArgumentParser, verb: str) -> None:
    import argparse

    _table_flags(parser, COMMANDS[verb])
    parser.add_argument("cmd", nargs="*", metavar="CMD", help=argparse.SUPPRESS)


def _json_flag(parser: argparse.ArgumentParser) -> None:
    import argparse

    # No default of its own: it would hide a --json that stands before the verb.
    text = "as JSON (docs/snapshot.md)"
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=text)


def _source_flags(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--root", metavar="DIR", help="a captured tree instead of /")
    source.add_argument("--snapshot", metavar="FILE", help="a file made by numabind snapshot")


def _table_flags(parser: argparse.ArgumentParser, table: dict[str, tuple[str, Any, str]]) -> None:
    import argparse

    for flag, (name, kind, text) in table.items():
        flags = [flag, "-q"] if flag == "--quiet" else [flag]
        if isinstance(kind, bool):
            parser.add_argument(
                *flags,
                dest=name,
                action="store_const",
                const=kind,
                default=argparse.SUPPRESS,
                help=text,
            )
        elif kind is int:
            parser.add_argument(
                *flags, dest=name, type=int, metavar="N", default=argparse.SUPPRESS, help=text
            )
        else:
            parser.add_argument(
                *flags, dest=name, metavar=kind, default=argparse.SUPPRESS, help=text
            )


def given(parsed: argparse.Namespace, table: dict[str, tuple[str, Any, str]]) -> dict[str, Any]:
    """What was given on the command line of a table's flags, by field."""
    names = [name for name, _, _ in table.values()]
    return {name: getattr(parsed, name) for name in names if hasattr(parsed, name)}
