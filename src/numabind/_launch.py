"""`numabind launch`: check every place, become the launcher, and let each worker bind itself.

The launcher and all below it get a directory in front of PYTHONPATH whose sitecustomize calls
`bind_worker` in every Python that starts. A worker is a process whose environment has a rank that
this one's had not, or that sees a single device by a variable that this one had not so.
"""

from __future__ import annotations

import os

from numabind._bind import Request, as_problem, attempt, machine_of, why_not
from numabind._errors import BindError, MachineError, UsageError
from numabind._inherited import place_all
from numabind._launched import (
    BEFORE,
    LAUNCH,
    before,
    is_sole_task,
    is_worker,
    ranked_already,
    ranks_in,
)
from numabind._machine import Machine
from numabind._options import Options, make_options, options_of
from numabind._placement import Placement
from numabind._problems import HARMLESS, NOTES, Problem, problem
from numabind._record import replace
from numabind._resolve import MOST_WORKERS
from numabind._terminal import become, say, tell
from numabind._visible import visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_PATH = "PYTHONPATH"


def launch(values: dict[str, Any], command: list[str]) -> int:
    """Check the places of all workers, say once what stands in their way, and become the command.

    Where this machine can't be read, that is said and the command runs as it is. Under strict
    nothing is started if any worker can't be in its place: BindError. UsageError for an argument or
    a variable that can't be understood.
    """
    environ = os.environ
    workers, quiet, as_json = (values.pop(name, None) for name in ("workers", "quiet", "json"))
    early = why_not(environ)
    if early is not None:
        make_options(values)
        say((early,), quiet=bool(quiet))
        return become("launch", command)
    if workers is not None and not 1 <= workers <= MOST_WORKERS:
        raise UsageError(f"workers must be 1 to {MOST_WORKERS}, not {workers}")
    options = make_options({**options_of(environ), **values})
    try:
        machine = machine_of(Request(options, environ))
        placements = place_all(machine, options, environ, workers)
    except MachineError as error:
        # What can't be read here can't be read by the workers, who are no reason to fail either.
        unread = as_problem(error)
        if options.strict:
            raise BindError((unread,)) from error
        say((unread,))
        return become("launch", command)
    said = _once(machine, placements)
    if ranked_already(environ):
        said = (*said, problem("rank-before-launch", ranks_in(environ)))
    misplacing = tuple(p for p in said if p.name not in NOTES | HARMLESS)
    if options.strict and misplacing:
        raise BindError(misplacing)
    say(said)
    if not quiet:
        placed = sum(placement.bound for placement in placements)
        what = f"{placed} of {len(placements)} places" if placed < len(placements) else "all places"
        tell(f"numabind: {what} can be had; each Python worker of {command[0]} binds itself")
    from numabind._watch import watch

    name = watch(command[0])
    environ.update(_for_workers(environ, name, said, options, (bool(quiet), bool(as_json))))
    return become("launch", command)


def _shows_several(environ: Mapping[str, str]) -> bool:
    """Whether this process sees more than one device, so that its rank does not say which."""
    try:
        machine = machine_of(Request(Options(), environ))
        return len(visible(machine, environ).handles) > 1
    except (MachineError, UsageError):
        return False  # the bind says what is wrong


def _once(machine: Machine, placements: tuple[Placement, ...]) -> tuple[Problem, ...]:
    """Each problem once, however many workers have it, and the ranks whose place suffers."""
    ranks: dict[Problem, list[str]] = {p: [] for p in machine.problems if p.name in HARMLESS}
    for placement in placements:
        for said in placement.problems:
            ranks.setdefault(said, []).append(str(placement.local_rank))
    found = []
    for said, whose in ranks.items():
        some = 0 < len(whose) < len(placements) and said.name not in NOTES
        cause = f"{said.cause} (rank {', '.join(whose)})" if some else said.cause
        found.append(replace(said, cause=cause))
    return tuple(found)


def _for_workers(
    environ: Mapping[str, str],
    name: str,
    said: tuple[Problem, ...],
    options: Options,
    how: tuple[bool, bool],
) -> dict[str, str]:
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_autobind")
    old = environ.get(_PATH, "")
    # All of them, so that what was chosen here beats the environment's NUMABIND_MODE and the like.
    chosen = {k: v for k, v in options.__dict__.items() if v is not None}
    words = [name, ",".join({p.name for p in said}) or "-", f"{how[0]:d}{how[1]:d}"]
    # True and False as 1 and 0; no value of an option holds a space.
    words += [f"{k}={v:d}" if isinstance(v, int) else f"{k}={v}" for k, v in chosen.items()]
    return {
        LAUNCH: " ".join(words),
        BEFORE: before(environ),
        _PATH: here + (os.pathsep + old if old else ""),
    }


def read_options(words: list[str]) -> dict[str, Any]:
    """The options in NUMABIND_LAUNCH. UsageError if they are not what `launch` writes."""
    values: dict[str, Any] = {}
    plain = Options().__dict__
    for word in words:
        name, _, value = word.partition("=")
        kind = type(plain.get(name))
        try:
            values[name] = kind(int(value)) if kind in (bool, int) else value
        except ValueError:
            raise UsageError(f"{LAUNCH}: {word!r:.60} is not an option") from None
    make_options(values)
    return values


def bind_worker(folder: str) -> None:
    """Bind this process, which has just started, if it is a worker that `launch` waits for.

    It then loses the variables by which `launch` reached it, so that its own children (DataLoader
    workers, say) inherit its place and are as if started without. `folder` is what was put on
    PYTHONPATH. Under strict the process ends with 1 if it is not in its place.
    """
    environ = os.environ
    if not is_worker(environ):
        return
    if is_sole_task(environ) and _shows_several(environ):
        # The only task of an outer launcher (srun, mpirun) is a launcher itself.
        environ[BEFORE] = before(environ)
        return
    name, said_before, how, *words = environ[LAUNCH].split()
    quiet, as_json = (flag == "1" for flag in how)
    for variable in (LAUNCH, BEFORE):
        environ.pop(variable, None)
    rest = [part for part in environ.get(_PATH, "").split(os.pathsep) if part != folder]
    if any(rest):
        environ[_PATH] = os.pathsep.join(rest)
    else:
        environ.pop(_PATH, None)
    options = read_options(words)
    try:
        binding = attempt(options, Request(make_options(options), environ))
    except BindError as error:
        tell(f"numabind: {error}")
        os._exit(1)
    if as_json:
        import json

        tell(json.dumps(binding.as_dict()))
    else:
        known = said_before.split(",")
        say(tuple(said for said in binding.problems if said.name not in known), quiet=True)
        if not quiet:
            tell(f"numabind: {binding.text}")
    from numabind._watch import report

    report(name)
