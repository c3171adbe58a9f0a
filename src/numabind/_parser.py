"""The argparse parser of all verbs: for people, for completion, and for the manual page."""

from __future__ import annotations

import argparse

from numabind._arguments import COMMANDS, PLACING, read_share
from numabind._errors import UsageError
from numabind._options import METHODS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn


def make_parser() -> argparse.ArgumentParser:
    """The argparse parser of all verbs; also what completion and the manual page are made from."""
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
    plan.add_argument(
        "--workers", type=int, metavar="N", help="how many (default: one for each device)"
    )
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

    _look_verbs(verbs)
    report = verbs.add_parser(
        "report",
        help="one self-contained page: the machine drawn, workers on it, findings",
        description="One HTML file that opens from disk, without network or script: the machine, "
        "where each worker would go and why, what stands in the way, and on the live machine what "
        "doctor and status find.",
    )
    report.add_argument(
        "-o", "--output", metavar="FILE", help="where to write (default: standard output)"
    )
    report.add_argument(
        "--workers", type=int, metavar="N", help="how many (default: one for each device)"
    )
    _table_flags(report, PLACING)
    _source_flags(report)
    _process_flags(report)
    report.add_argument("--bench", metavar="FILE", help="also draw what bench --json > FILE found")
    _measure_verbs(verbs)
    _fleet_verbs(verbs)
    snapshot = verbs.add_parser("snapshot", help="the machine as a file, for planning elsewhere")
    snapshot.add_argument(
        "-o", "--output", metavar="FILE", help="where to write (default: standard output)"
    )
    snapshot.add_argument(
        "--anonymize", action="store_true", help="leave out host name, boot id and UUIDs"
    )
    snapshot.add_argument("--root", metavar="DIR", help="read a captured tree instead of /")
    completion = verbs.add_parser(
        "completion",
        help="a script that completes numabind's words in bash, zsh or fish",
        description="Load it with source <(numabind completion bash), the same with zsh, or "
        "numabind completion fish | source. To have it in each shell, put that line into "
        "~/.bashrc, ~/.zshrc (after compinit) or ~/.config/fish/config.fish.",
    )
    completion.add_argument("shell", choices=SHELLS, metavar="SHELL", help=" or ".join(SHELLS))
    return parser


def _command_flags(parser: argparse.ArgumentParser, verb: str) -> None:
    _table_flags(parser, COMMANDS[verb])
    parser.add_argument("cmd", nargs="*", metavar="CMD", help=argparse.SUPPRESS)


def _json_flag(parser: argparse.ArgumentParser) -> None:
    # No default of its own: it would hide a --json that stands before the verb.
    text = "as JSON (docs/snapshot.md)"
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=text)


def _source_flags(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--root", metavar="DIR", help="a captured tree instead of /")
    source.add_argument("--snapshot", metavar="FILE", help="a file made by numabind snapshot")


def _table_flags(parser: argparse.ArgumentParser, table: dict[str, tuple[str, Any, str]]) -> None:
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


def _look_verbs(verbs: Any) -> None:
    """The verbs that look at what runs."""
    status = verbs.add_parser(
        "status",
        help="where processes' threads and pages are, against where their GPUs are",
        description="For each process that holds a GPU, or is named: its GPU, the CPUs of its "
        "threads, its memory policy, its pages by node and kind, and a verdict.",
        epilog="Exit codes: 0 done, 1 a process is below --min-local or can't be told, 2 wrong "
        "usage. Other users' processes need CAP_SYS_PTRACE.",
    )
    _process_flags(status)
    status.add_argument(
        "--min-local",
        type=_share,
        metavar="SHARE",
        help="exit 1 unless each process has at least this share (0.95) of its memory, and all of "
        "its threads, near its GPU",
    )
    status.add_argument(
        "--prometheus", action="store_true", help="metrics for a node exporter's text collector"
    )
    _json_flag(status)
    doctor = verbs.add_parser(
        "doctor",
        help="what on this machine works against locality, and what to do about it",
        epilog="Exit codes: 0 nothing serious, 1 something serious, 2 wrong usage.",
    )
    doctor.add_argument("--root", metavar="DIR", help="a captured tree instead of /")
    _json_flag(doctor)
    top = verbs.add_parser(
        "top",
        help="status, drawn again each second",
        description="On a terminal: q quits, p g m l t sort. Elsewhere lines are appended.",
    )
    _process_flags(top)
    top.add_argument(
        "-d", "--delay", type=_seconds, default=1.0, metavar="S", help="seconds (default 1)"
    )
    top.add_argument("-n", "--count", type=int, metavar="N", help="end after N times")
    top.add_argument(
        "--sort", choices=ORDERS, default="gpu", help="what is on top first (default gpu)"
    )


def _measure_verbs(verbs: Any) -> None:
    """The verbs that measure."""
    bench = verbs.add_parser(
        "bench",
        help="what binding is worth here: copies to GPUs and CPU memory, near and far",
        description="Measure bandwidth and latency of CPU memory from each node to each, and with "
        "GPUs (through torch, else cuda-bindings) their copies from local, remote and unbound "
        "memory, alone and all at once. Figures whose pages were not where they were meant to be "
        "are refused. The last line is the verdict. Run it on an idle machine.",
        epilog="Exit codes: 0 measured, 1 nothing could be measured, 2 wrong usage.",
    )
    bench.add_argument(
        "--seconds",
        type=_long,
        default=100.0,
        metavar="S",
        help="take about this long at most (default 100)",
    )
    bench.add_argument(
        "--no-gpus", dest="gpus", action="store_false", help="measure CPU memory only"
    )
    _json_flag(bench)
    calibrate = verbs.add_parser(
        "calibrate",
        help="find GPUs' nodes by measuring where the firmware does not tell, as a NUMABIND_MAP",
        description="Where the firmware says nothing of a GPU's node, or the same of all GPUs "
        "(usual in VMs), copy from each node's memory and write a NUMABIND_MAP file with the "
        "evidence. Says so where the differences are within the noise. Run it on an idle machine.",
        epilog="Exit codes: 0 told (or nothing to tell), 1 a GPU's node can't be told or there is "
        "no GPU, 2 wrong usage.",
    )
    calibrate.add_argument(
        "-o", "--output", metavar="FILE", help="the map to write (default: standard output)"
    )
    calibrate.add_argument("--force", action="store_true", help="write over a file that is there")
    calibrate.add_argument(
        "--all", action="store_true", help="measure every GPU, whatever the firmware says"
    )
    calibrate.add_argument(
        "--seconds",
        type=_long,
        default=60.0,
        metavar="S",
        help="take about this long at most (default 60)",
    )
    _json_flag(calibrate)


def _fleet_verbs(verbs: Any) -> None:
    """The verbs of a cluster."""
    fleet = verbs.add_parser(
        "fleet", help="the machines of a cluster: which are alike, and what differs in the others"
    )
    parts = fleet.add_subparsers(dest="part", metavar="PART", required=True)
    report = parts.add_parser(
        "report",
        help="compare snapshots in a directory",
        description="Read every *.json and *.json.gz below DIR that numabind snapshot made, show "
        "each kind of machine once, and the outliers with what differs.",
        epilog=_FLEET_CODES,
    )
    report.add_argument("directory", metavar="DIR", help="where the snapshots are, at any depth")
    report.add_argument("-o", "--output", metavar="FILE", help="write a page (HTML) instead")
    _json_flag(report)
    survey = parts.add_parser(
        "survey",
        help="ask every node of a cluster, and compare",
        usage="numabind fleet survey (--ray ADDRESS | --srun) [options] [-- SRUN-OPTION ...]",
        description="Run one task on each node, which reads that machine; then report as fleet "
        "report does. numabind must be installed on the nodes, for --srun at the same path as "
        "here. Nodes that don't answer in time are named.",
        epilog=_FLEET_CODES,
    )
    engine = survey.add_mutually_exclusive_group(required=True)
    engine.add_argument("--ray", metavar="ADDRESS", help="a Ray cluster: auto, or HOST:PORT")
    engine.add_argument(
        "--srun",
        action="store_true",
        help="Slurm: the nodes of this allocation; else those of srun's options after --; else all "
        "of the default partition that respond",
    )
    survey.add_argument("-o", "--output", metavar="DIR", help="keep the snapshots there")
    survey.add_argument(
        "--timeout", type=_long, default=60.0, metavar="S", help="seconds (default 60)"
    )
    _json_flag(survey)


_FLEET_CODES = (
    "Exit codes: 0 every machine is like the others of its kind, 1 some are not, can't be read or "
    "did not answer, 2 wrong usage."
)

# What `completion` can write; _completion.py says how.
SHELLS = ("bash", "zsh", "fish")
# What `top` can sort by; _top.py says how.
ORDERS = ("pid", "gpu", "memory", "local", "threads")


def _process_flags(parser: argparse.ArgumentParser) -> None:
    text = "these processes (default: who holds a GPU)"
    parser.add_argument("pids", nargs="*", type=int, metavar="PID", help=text)
    parser.add_argument("--tree", type=int, metavar="PID", help="a process and all below it")
    parser.add_argument(
        "--pages",
        dest="method",
        choices=METHODS,
        default="auto",
        help="count every page, or look up a sample (default: a sample above 4 GiB resident)",
    )


def _share(text: str) -> float:
    share = read_share(text)
    if share is None:
        raise argparse.ArgumentTypeError(f"{text} is not from 0 to 1")
    return share


def _seconds(text: str, least: float = 0.05) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not least <= seconds <= 86400:
        raise argparse.ArgumentTypeError(f"{text} is not from {least:g} to 86400 seconds")
    return seconds


def _long(text: str) -> float:
    return _seconds(text, 1)
