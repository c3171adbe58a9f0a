"""The command. Each verb asks the core and prints; one place turns errors into exit codes.

`run` is on the start-up path of every worker and `status` is asked often, so argparse (12 ms) is
loaded only for help, mistakes and other verbs.
"""

from __future__ import annotations

import os
import sys

from numabind._arguments import (
    COMMANDS,
    PLACING,
    WORKER,
    StatusArguments,
    given,
    lean,
    lean_status,
)
from numabind._errors import BindError, MachineError, NumabindError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping
    from typing import Any

    from numabind._bind import Request
    from numabind._handle import Visible
    from numabind._machine import Machine
    from numabind._placement import Placement, Plan


class Exit:
    """Exit codes. `run` ends with the command's own, or 126 and 127 as a shell does."""

    DONE = 0
    NO = 1
    USAGE = 2


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit code. One line on stderr for what a person did wrong."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        read = lean(words)
        if read is not None:
            verb, values, command = read
            return start(verb, values, command)
        wanted = lean_status(words)
        if wanted is not None:
            from numabind._verbs import status_verb

            _ready()
            return _written(status_verb(wanted))
        return _written(_other_verbs(words))
    except BindError as error:
        return _fail(str(error), Exit.NO)
    except NumabindError as error:
        return _fail(str(error), Exit.USAGE)
    except OSError as error:
        # The answer could not be written. If the reader (head, say) has gone, leave quietly, as cat
        # does; and keep the interpreter from trying once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if isinstance(error, BrokenPipeError):
            return Exit.NO
        return _fail(f"can't write the answer: {error.strerror}", Exit.NO)
    except KeyboardInterrupt:
        return 130


def _written(code: int) -> int:
    """The code, once what was printed has really been written; OSError if it can't be."""
    if sys.stdout is not None:
        sys.stdout.flush()
    return code


def _fail(text: str, code: int) -> int:
    from numabind._terminal import tell

    tell(f"numabind: {text}")
    return code


def start(verb: str, values: dict[str, Any], command: list[str]) -> int:
    """Do `run` or `launch`."""
    if verb == "run":
        return run(values, command)
    from numabind._launch import launch

    return launch(values, command)


def run(values: dict[str, Any], command: list[str]) -> int:
    """Bind this process and become the command: same pid, its signals, its exit code."""
    from numabind import _bind
    from numabind._binding import unbound
    from numabind._options import make_options, options_of
    from numabind._resolve import check_named
    from numabind._terminal import become, say, tell

    gpu, rank, quiet, as_json = (values.pop(name, None) for name in WORKER)
    environ = os.environ
    early = _bind.why_not(environ)
    if early is None:
        check_named(gpu, rank)
        options = make_options({**options_of(environ), **values})
        request = _bind.Request(options, environ, gpu, rank)
        try:
            planned = _bind.prepare(request)
        except MachineError as error:
            # No /sys in this container, say: no reason to keep the command from running.
            binding = unbound(_bind.as_problem(error))
            if options.strict:
                raise BindError(binding.problems) from error
        else:
            for said in planned[1].problems:
                if said.name in ("device-not-found", "near-not-found"):
                    flag = "--gpu" if said.name == "device-not-found" else "--near"
                    raise UsageError(f"{flag}: {said.cause}. {said.remedy}")
            binding = _bind.apply(_not_around(planned, request, command), request)
        binding = _bind.with_event(binding, environ)
        if as_json:
            import json

            tell(json.dumps(binding.as_dict()))
        else:
            say(binding.problems)
            if not quiet:
                tell(f"numabind: {binding.text}")
    else:
        make_options(values)
        _bind.with_event(unbound(early), environ)
        say((early,), quiet=bool(quiet))
    return become("run", command)


def _not_around(
    planned: tuple[Machine, Placement], request: Request, command: list[str]
) -> tuple[Machine, Placement]:
    """The same, or no place where the command starts workers of several GPUs.

    They would all inherit one worker's place.
    """
    from numabind._commands import launcher_in

    launcher = launcher_in(command)
    named = request.gpu is not None or request.local_rank is not None
    if launcher is None or named or request.options.near is not None:
        return planned
    from numabind._problems import problem
    from numabind._record import replace
    from numabind._visible import visible

    machine, placement = planned
    count = len(visible(machine, request.environ).handles)
    if count < 2 or len(machine.nodes) < 2:
        return planned
    said = problem("run-around-launcher", f"{launcher} starts workers, and sees {count} devices")
    return machine, replace(
        placement,
        device=None,
        pci=None,
        uuid=None,
        node=None,
        cpus=machine.allowed.cpus,
        memory_nodes=frozenset(),
        memory_policy="none",
        bound=False,
        problems=(said,),
    )


def _ready() -> None:
    """UsageError where there is no standard output; and no error for what it can't encode."""
    import io

    if sys.stdout is None:
        raise UsageError("standard output is closed: there is nowhere to write the answer")
    # A name in the machine may hold what this terminal's encoding does not.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _other_verbs(words: list[str]) -> int:
    from numabind._parser import make_parser

    parser = make_parser()
    # argparse would take what follows -- for its own: the command is cut off before.
    command: list[str] = []
    if words and (words[0] in COMMANDS or words[:2] == ["fleet", "survey"]) and "--" in words:
        cut = words.index("--")
        words, command = words[:cut], words[cut + 1 :]
    parsed = parser.parse_args(words)
    _ready()
    verb = parsed.verb or "overview"
    return int(_VERBS[verb](parsed, command))


def _machine(
    parsed: argparse.Namespace, environ: Mapping[str, str] = os.environ
) -> tuple[Machine, Visible | None]:
    """The machine that was asked for; on the live one also the devices this environment sees."""
    from numabind._discover import Questions, discover, discover_here
    from numabind._machine import Machine
    from numabind._visible import visible

    if getattr(parsed, "snapshot", None):
        return Machine.load(parsed.snapshot), None
    if getattr(parsed, "root", None):
        if not os.path.isdir(parsed.root):
            raise UsageError(f"--root {parsed.root}: no such directory")
        return discover(parsed.root), None
    machine = discover_here(environ, Questions())
    return machine, visible(machine, environ)


def _show(parsed: argparse.Namespace, _: list[str]) -> int:
    machine, _seen = _machine(parsed)
    if parsed.json:
        return _print_json(machine.as_dict())
    from numabind._report.colour import show
    from numabind._report.text import machine_text
    from numabind._terminal import say

    show(machine_text(machine))
    say(machine.problems, quiet=True)
    return Exit.DONE


def _plan(parsed: argparse.Namespace, _: list[str]) -> int:
    from numabind._plan import plan
    from numabind._problems import NOTES

    machine, seen = _machine(parsed)
    environ = _bind_options() if seen is not None else {}
    made = plan(machine, parsed.workers, seen, **{**environ, **given(parsed, PLACING)})
    if parsed.json:
        _print_json(made.as_dict())
    else:
        _print_plan(made)
    missed = any(p.name not in NOTES for place in made.placements for p in place.problems)
    return Exit.NO if parsed.strict and missed else Exit.DONE


def _bind_options() -> dict[str, Any]:
    from numabind._options import options_of

    found = options_of(os.environ)
    found.pop("strict", None)
    return found


def _print_plan(made: Plan) -> None:
    from numabind._report.colour import show
    from numabind._report.text import plan_text, problems_text

    said = problems_text(made)
    show(plan_text(made) + (f"\n\n{said}" if said else ""))


def _overview(parsed: argparse.Namespace, _: list[str]) -> int:
    import argparse

    from numabind._plan import plan
    from numabind._report.colour import show
    from numabind._report.text import machine_text

    machine, seen = _machine(argparse.Namespace())
    made = plan(machine, None, seen, **_bind_options())
    if parsed.json:
        return _print_json({"machine": machine.as_dict(), "plan": made.as_dict()})
    show(machine_text(machine) + "\n")
    _print_plan(made)
    return Exit.DONE


def _snapshot(parsed: argparse.Namespace, _: list[str]) -> int:
    from numabind._discover import anonymous
    from numabind._problems import HARMLESS
    from numabind._record import replace

    # What was wrong with an earlier snapshot or a map is not of the machine.
    environ = {name: value for name, value in os.environ.items() if name != "NUMABIND_SNAPSHOT"}
    machine = _machine(parsed, environ)[0]
    kept = tuple(said for said in machine.problems if said.name not in HARMLESS)
    machine = replace(machine, problems=kept)
    if parsed.anonymize:
        machine = anonymous(machine)
    if parsed.output is None:
        return _print_json(machine.as_dict())
    try:
        machine.save(parsed.output)
    except OSError as error:
        raise UsageError(f"-o {parsed.output}: {error.strerror}") from error
    return Exit.DONE


def _status(parsed: argparse.Namespace, _: list[str]) -> int:
    from numabind._verbs import status_verb

    names = ("pids", "tree", "method", "min_local", "prometheus")
    values = {name: getattr(parsed, name) for name in names}
    return status_verb(StatusArguments(**values, json=getattr(parsed, "json", False)))


def _report(parsed: argparse.Namespace, _: list[str]) -> int:
    from numabind._plan import plan
    from numabind._verbs import report_verb

    machine, seen = _machine(parsed)
    environ = _bind_options() if seen is not None else {}
    made = plan(machine, parsed.workers, seen, **{**environ, **given(parsed, PLACING)})
    return report_verb(parsed, machine, made)


def _doctor(parsed: argparse.Namespace, _: list[str]) -> int:
    from numabind._verbs import doctor_verb

    return doctor_verb(parsed)


def _top(parsed: argparse.Namespace, _: list[str]) -> int:
    from numabind._verbs import top_verb

    return top_verb(parsed)


def _completion(parsed: argparse.Namespace, _: list[str]) -> int:
    from numabind._completion import script
    from numabind._grammar import grammar
    from numabind._parser import make_parser

    print(script(parsed.shell, *grammar(make_parser())), end="")
    return Exit.DONE


def _bench(parsed: argparse.Namespace, _: list[str]) -> int:
    from numabind._measuring import bench_verb

    return bench_verb(parsed, _machine(parsed)[0])


def _calibrate(parsed: argparse.Namespace, _: list[str]) -> int:
    from numabind._measuring import calibrate_verb

    # What an earlier map or snapshot says is not the firmware's word.
    ours = ("NUMABIND_MAP", "NUMABIND_SNAPSHOT")
    environ = {name: value for name, value in os.environ.items() if name not in ours}
    return calibrate_verb(parsed, _machine(parsed, environ)[0])


def _fleet(parsed: argparse.Namespace, command: list[str]) -> int:
    from numabind._clustered import report_verb, survey_verb

    return report_verb(parsed) if parsed.part == "report" else survey_verb(parsed, command)


def _start(parsed: argparse.Namespace, command: list[str]) -> int:
    verb, command = parsed.verb, [*parsed.cmd, *command]
    if not command:
        raise UsageError(
            f"{verb}: no command was given: numabind {verb} [options] -- CMD [ARG ...]"
        )
    return start(verb, given(parsed, COMMANDS[verb]), command)


def _print_json(data: object) -> int:
    import json

    print(json.dumps(data, indent=1))
    return Exit.DONE


_VERBS = {
    "overview": _overview,
    "show": _show,
    "plan": _plan,
    "run": _start,
    "launch": _start,
    "snapshot": _snapshot,
    "status": _status,
    "doctor": _doctor,
    "report": _report,
    "top": _top,
    "completion": _completion,
    "bench": _bench,
    "calibrate": _calibrate,
    "fleet": _fleet,
}
