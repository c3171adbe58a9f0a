"""`bind`: this process is a worker; put it next to its GPU, read back, and be able to undo it."""

from __future__ import annotations

import _thread
import os
import sys

from numabind import _apply, _inherited
from numabind._apply import Undo
from numabind._assigned import Assigned, assigned_by_ray
from numabind._binding import Binding, unbound
from numabind._cpulist import format_list, parse_list
from numabind._discover import Questions, discover_here
from numabind._errors import BindError, UsageError
from numabind._machine import Machine
from numabind._options import Options, make_options, options_of
from numabind._placement import Placement
from numabind._problems import HARMLESS, NOTES, Problem, problem
from numabind._record import record, replace
from numabind._resolve import (
    Seat,
    check_named,
    find_gpu,
    needs_runtime,
    seat_assigned,
    seat_near,
    seat_of_rank,
)
from numabind._sysfs import is_linux
from numabind._visible import kinds_of, visible, visible_if_given, worker_devices
from numabind._worker import MARK, detect

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from typing_extensions import Unpack

    from numabind._options import OptionWords

OMP = "OMP_NUM_THREADS"
_EXHAUSTED = (23, 24)  # ENFILE, EMFILE


@record
class Request:
    """Who wants to be bound: a GPU or rank that was named, the options, and the environment.

    `late` says that the process already runs its program, so memory may have been touched;
    `assigned` is what Ray gave it. `alone` binds the calling thread only, for its children's sake.
    """

    options: Options
    environ: Mapping[str, str]
    gpu: str | None = None
    local_rank: int | None = None
    late: bool = False
    assigned: Assigned | None = None
    alone: bool = False


@record
class _Mark:
    """What MARK says: who was bound, its mask at birth and since, its device, and how it asked.

    `threads` is the OMP_NUM_THREADS that was set, or "-".
    """

    pid: int
    born: frozenset[int]
    given: frozenset[int]
    device: str
    threads: str
    choices: str


def bind(
    gpu: str | None = None, local_rank: int | None = None, **options: Unpack[OptionWords]
) -> Binding:
    """Bind this process, all its threads, to the CPUs and memory near its GPU.

    Scope: the CPU mask goes to every thread of the process, the memory policy to the calling thread
    and those it starts later, and both are inherited by children. It lasts until `restore()` (or
    the end of the `with` block) and can be called again: each call plans from the mask that the
    process was born with. Call it first thing, before CUDA and thread pools start.

    `gpu` is a UUID (or a unique beginning), a PCI address, a MIG UUID, or an ordinal among the
    visible devices ("1", or as PyTorch says "cuda:1", "xpu:0"); without it the worker has what Ray
    assigned to this task or actor, else its device follows from `local_rank`, else from the
    launcher's variables. `options` are the fields of `Options`; NUMABIND_MODE, NUMABIND_MEMORY
    and NUMABIND_STRICT give defaults.

    Returns the Binding, which says what is now so and what was in the way; each problem is logged
    as one WARNING (logger "numabind"), a success as one INFO line. Raises UsageError for a wrong
    argument, and BindError, with everything put back, only under strict=True.
    """
    environ = os.environ
    given = make_options(options)
    check_named(gpu, local_rank)
    ray = assigned_by_ray(sys.modules.get("ray"))
    request = Request(given, environ, gpu, local_rank, late=True, assigned=ray)
    try:
        binding = attempt(options, request)
    except BindError as error:
        log_problems(error.problems)
        raise
    log_problems(binding.problems)
    if binding.bound:
        logger().info("%s", binding.text)
    return binding


def attempt(given: Mapping[str, Any], request: Request) -> Binding:
    """Bind this process as `given` and the environment's settings ask, and record the event.

    The arguments were checked before, so what can't be understood is the environment's or the
    machine's fault: a problem, not an error. Raises BindError under strict.
    """
    environ = request.environ
    try:
        early = why_not(environ)
        if early is not None:
            binding = unbound(early)
        else:
            options = make_options({**options_of(environ), **given})
            request = replace(request, options=options)
            binding = apply(prepare(request), request)
    except BindError:
        raise
    except (OSError, UsageError) as error:
        binding = unbound(as_problem(error))
        if given.get("strict", environ.get("NUMABIND_STRICT", "").strip() == "1"):
            with_event(binding, environ)
            raise BindError(binding.problems) from error
    return with_event(binding, environ)


def as_problem(error: OSError | UsageError) -> Problem:
    """What the environment or the machine got wrong, for callers that must not fail.

    An OSError that is no MachineError comes of importing a module of numabind.
    """
    below: BaseException | None = error
    while below is not None:
        if isinstance(below, OSError) and below.errno in _EXHAUSTED:
            # With a remedy of its own, for the catalogue can't be opened either.
            remedy = "Bind first thing in the program, or raise the limit (ulimit -n)."
            return problem("out-of-descriptors", f"{below.filename}: {below.strerror}", remedy)
        below = below.__cause__
    if isinstance(error, UsageError):
        return problem("bad-setting", str(error))
    return problem("machine-unreadable", str(error))


def why_not(environ: Mapping[str, str]) -> Problem | None:
    """A reason to leave this process alone before looking at the machine at all."""
    if not is_linux():
        return problem("not-linux", f"this is {sys.platform}")
    if environ.get("NUMABIND", "").strip().lower() in ("0", "off", "false", "no"):
        return problem("turned-off", f"NUMABIND={environ['NUMABIND']} is in the environment")
    return None


def prepare(request: Request) -> tuple[Machine, Placement]:
    """Find this worker's device and plan its place; nothing is changed.

    Raises UsageError and MachineError for what can't be understood.
    """
    environ = request.environ
    machine = machine_of(request)
    mark = read_mark(environ)
    seat, local_size = seat_of(machine, request)
    placement = _inherited.place(machine, (seat,), request.options, environ, local_size)[0]
    about_me = tuple(p for p in machine.problems if _concerns(p, placement))
    placement = replace(placement, problems=about_me + placement.problems)
    same = mark is not None and (mark.device, mark.choices) == (
        placement.device or "-",
        _choices(request.options),
    )
    if mark is not None and same and mark.pid != os.getpid():
        now = _apply.own_mask()
        said = problem("inherited", f"process {mark.pid} was bound to {mark.device} before")
        placement = replace(
            placement, bound=False, cpus=now, memory_policy="none", problems=(said,)
        )
    return machine, placement


def machine_of(request: Request) -> Machine:
    """The machine as far as the request needs it; what is allowed is the mask at birth."""
    environ = request.environ
    caches = request.options.mode == "core-complex"
    network = request.options.near is not None
    questions = Questions(caches=caches, network=network, runtime=False, settings=False)
    machine = discover_here(environ, questions)
    given = request.assigned.ids if request.assigned else ()
    names = (request.gpu or "", environ.get("CUDA_VISIBLE_DEVICES", ""), *given)
    if not environ.get("NUMABIND_SNAPSHOT") and needs_runtime(machine, names):
        machine = discover_here(environ, replace(questions, runtime=True))
    mark = read_mark(environ)
    if mark is None:
        return machine
    online = frozenset(cpu.id for cpu in machine.cpus)
    return replace(machine, allowed=replace(machine.allowed, cpus=mark.born & online))


def _concerns(said: Problem, placement: Placement) -> bool:
    """Whether a problem of the machine is one of this worker's, too."""
    return said.name in HARMLESS or any(pci in said.cause for pci in addresses(placement.pci))


def addresses(pci: str | None) -> list[str]:
    """The PCI addresses of a worker's devices, which `pci` joins by commas."""
    return pci.split(",") if pci else []


def seat_of(machine: Machine, request: Request) -> tuple[Seat, int | None]:
    """The worker's device, and how many workers the machine has if a launcher says so."""
    seen = visible(machine, request.environ, kinds_of(request.gpu))
    worker = detect(request.environ)
    local_size, rank, said = worker.local_size, worker.local_rank, worker.problems
    if request.local_rank is not None:
        rank, said = request.local_rank, ()
    if request.options.near is not None:
        if request.gpu is not None:
            raise UsageError("a worker has a GPU or is near another device: name one of the two")
        seat = seat_near(machine, rank, request.options.near)
        return replace(seat, problems=said + seat.problems), local_size
    if request.gpu is not None:
        handle, why = find_gpu(machine, seen, request.gpu)
        return Seat(rank, handle, (*said, *([why] if why else []))), local_size
    given = request.assigned
    if given is not None:
        dealt = visible_if_given(machine, request.environ, given.ids)
        if local_size is None and given.amount:
            # As if all GPUs of the machine were dealt as this worker's.
            local_size = max(1, int(len(worker_devices(machine)) / given.amount))
        seat = seat_assigned(dealt, rank, request.local_rank is not None)
        return replace(seat, problems=said + seat.problems), local_size
    if request.local_rank is None and worker.own_devices == len(seen.handles):
        seat = seat_assigned(seen, rank, False)
    else:
        seat = seat_of_rank(machine, seen, rank, local_size, request.options.share)
    return replace(seat, problems=said + seat.problems), local_size


def read_mark(environ: Mapping[str, str]) -> _Mark | None:
    """What an earlier numabind (before exec, or the parent) left; None if it does not count."""
    words = environ.get(MARK, "").split()
    try:
        pid, born, given, device, threads, choices = words
        mark = _Mark(int(pid), parse_list(born), parse_list(given), device, threads, choices)
    except ValueError:
        return None
    return mark if mark.given == _apply.own_mask(os.getpid()) else None


def _choices(options: Options) -> str:
    """How a worker is to be placed, in one word."""
    chosen = (options.mode, options.memory, f"{options.smt:d}", options.reserve)
    return ",".join(map(str, (*chosen, options.share, options.near)))


def apply(planned: tuple[Machine, Placement], request: Request) -> Binding:
    """Bind this process to a placement, read back, and say what is so.

    Under strict, everything is put back and BindError raised if the worker is not in its place.
    """
    machine, placement = planned
    options = request.options
    born = machine.allowed.cpus
    before = read_mark(request.environ)
    ours = before.given if before is not None and before.pid == os.getpid() else frozenset[int]()
    inherited = any(p.name == "inherited" for p in placement.problems)
    threads = _apply.Threads()
    if placement.bound:
        if request.alone:
            threads = _apply.bind_caller(placement.cpus)
        else:
            threads = _apply.bind_threads(placement.cpus, born, ours)
    late = 0 if request.alone else len(_apply.task_ids()) - 1
    several = len(machine.nodes) > 1
    policy = _apply.apply_policy(placement, several)
    problems = [*placement.problems, *threads.problems, *policy.problems]
    if late and several and placement.memory_policy != "none" and not policy.problems:
        problems.append(problem("threads-late", f"{late} threads beside the calling one"))
    moved = None
    if options.move_pages and not inherited and not request.alone:
        moved, said = _apply.move_touched(placement)
        problems += said
    elsewhere = None
    if request.late and several and moved is None and not inherited:
        elsewhere = _apply.private_bytes_elsewhere(placement.memory_nodes)
    wrong = ("cpus-not-allowed", "affinity-denied")
    bound = placement.bound and not any(p.name in wrong for p in threads.problems)
    now = _apply.own_mask()
    changed: dict[str, str] = {}
    if bound:
        ours_set = before.threads if before is not None else None
        changed = environment(placement, options, request.environ, ours_set)
        masks = f"{format_list(born)} {format_list(now)}"
        who = f"{placement.device or '-'} {changed.get(OMP, '-')} {_choices(options)}"
        changed[MARK] = f"{os.getpid()} {masks} {who}"
    undo = Undo(
        os.getpid(),
        _thread.get_native_id(),
        threads.before,
        now,
        policy.before if placement.memory_policy != "none" else None,
        tuple((name, os.environ.get(name)) for name in changed),
        request.alone,
    )
    binding = Binding(
        pid=os.getpid(),
        local_rank=placement.local_rank,
        device=placement.device,
        pci=placement.pci,
        node=placement.node,
        bound=bound or inherited,
        cpus=now,
        memory_policy=policy.name,
        memory_nodes=policy.nodes,
        threads=placement.threads,
        threads_bound=threads.bound,
        threads_kept=threads.kept,
        pages_moved=moved.moved if moved else None,
        pages_left=moved.left if moved else None,
        bytes_elsewhere=elsewhere,
        problems=tuple(problems),
        placement=placement,
        undo=undo,
    )
    if options.strict and binding.misplacing:
        binding.restore()
        with_event(replace(binding, bound=False), request.environ)
        raise BindError(binding.misplacing)
    os.environ.update(changed)
    return binding


def environment(
    placement: Placement, options: Options, environ: Mapping[str, str], ours: str | None = None
) -> dict[str, str]:
    """The thread budget for OpenMP where the user did not choose.

    `ours` is what an earlier bind set. torchrun sets OMP_NUM_THREADS=1 for everyone; that counts as
    no choice under threads="auto".
    """
    chosen = environ.get(OMP, "")
    if chosen and chosen != ours and not (options.threads == "auto" and chosen.strip() == "1"):
        return {}
    return {OMP: str(placement.threads)}


def with_event(binding: Binding, environ: Mapping[str, str]) -> Binding:
    """Append the Binding to NUMABIND_EVENTS as one line; failing to is a problem."""
    path = environ.get("NUMABIND_EVENTS")
    if not path:
        return binding
    try:
        import json
        import time

        event = {"time": time.time(), "host": os.uname().nodename, **binding.as_dict()}
        # O_NONBLOCK: a pipe without a reader is an error, not a wait.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        handle = os.open(path, flags, 0o644)
        try:
            os.write(handle, (json.dumps(event) + "\n").encode())
        finally:
            os.close(handle)
    except OSError as error:
        said = problem("bad-setting", f"NUMABIND_EVENTS={path}: {error.strerror}")
        return replace(binding, problems=(*binding.problems, said))
    return binding


def logger() -> Any:
    """The logger that says what became of a bind."""
    import logging

    return logging.getLogger("numabind")


def log_problems(problems: tuple[Problem, ...]) -> None:
    """Each as one WARNING, notes as INFO."""
    try:
        log = logger()
    except OSError:
        # No file can be opened, and logging was not imported before; still nothing is silent.
        warnings = [said.text for said in problems if said.name not in NOTES]
        if sys.stderr is not None:
            sys.stderr.write("".join(f"numabind: WARNING {text}\n" for text in warnings))
        return
    for said in problems:
        (log.info if said.name in NOTES else log.warning)("%s", said.text)
