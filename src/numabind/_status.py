"""`status`: for each process, its GPU, and whether its threads and pages are near it."""

from __future__ import annotations

import os

from numabind import _pages, _proc
from numabind._cpulist import format_list, parse_list
from numabind._discover import Questions, discover_here
from numabind._errors import MachineError, UsageError
from numabind._holders import holders
from numabind._machine import Allowed, Machine
from numabind._options import METHODS, Options, make_options
from numabind._problems import Problem, problem
from numabind._process import Pages, Process, Stray, printable
from numabind._record import record, replace
from numabind._worker import DEVICES, LAUNCHERS, MARK, names_one_device

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

SCHEMA = 1
# Below this share of its pages a process is said to be elsewhere; the rest is what the C library
# and the interpreter touched before anyone could bind them.
ENOUGH = 0.9
_NAMED = 6  # threads that are named in a problem; --json has all


@record
class Report:
    """What `status` saw; who ended meanwhile, or can't be seen from here; what limited the look."""

    processes: tuple[Process, ...]
    ended: tuple[int, ...] = ()
    problems: tuple[Problem, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "schema": SCHEMA,
            "processes": [process.as_dict() for process in self.processes],
            "ended": list(self.ended),
            "problems": [said.as_dict() for said in self.problems],
        }


def status(
    pids: Iterable[int] | int | None = None, *, tree: int | None = None, method: str = "auto"
) -> Report:
    """Look where processes' threads and pages are, against where their GPUs are.

    `pids` names the processes (or one), `tree` one and all below it; without either, all that hold
    a GPU. What kept some from being found is in `Report.problems`.
    `method` is "numa_maps" (each page is counted), "sample" (some are looked up) or "auto": a
    sample above 4 GiB resident. Nothing is changed. A process that ends meanwhile is in
    `Report.ended`; one that may not be looked at is there with the problem `pages-unreadable`.
    UsageError for a process that does not exist when asked, MachineError for a machine that can't
    be read.
    """
    if method not in METHODS:
        raise UsageError(f"method {method!r:.40} is none of {', '.join(METHODS)}")
    named = _named(pids, tree)
    if named is None and (other := _proc.foreign()) is not None:
        return Report((), (), (problem("processes-unseen", other),))
    machine = discover_here(os.environ, Questions(caches=False, network=False, settings=False))
    look = Look(machine, method, named)
    held = look.holders
    wanted = sorted(held.found) if named is None else named
    seen: list[Process] = []
    ended = [] if named is not None else list(held.strangers)
    for pid in wanted:
        process = look.process(pid)
        if process is None:
            ended.append(pid)
        else:
            seen.append(process)
    problems: tuple[Problem, ...] = ()
    hidden = _proc.hidden()
    if hidden is not None and named is None:
        problems = (problem("processes-unseen", hidden),)
    elif held.unseen:
        cause = f"{held.unseen} processes are other users', and this one lacks CAP_SYS_PTRACE"
        problems = (problem("processes-unseen", cause),)
    return Report(tuple(seen), tuple(ended), problems)


def _named(pids: Iterable[int] | int | None, tree: int | None) -> list[int] | None:
    if pids is None and tree is None:
        return None
    if isinstance(pids, int):
        pids = (pids,)
    try:
        wanted = [] if pids is None else list(pids)
    except TypeError:
        raise UsageError(f"pids are numbers of processes, not {pids!r:.40}") from None
    # Calls like sched_getaffinity number processes as this namespace does.
    other = _proc.foreign()
    for pid in [*wanted, *([] if tree is None else [tree])]:
        fields = _proc.status(pid) if type(pid) is int and pid > 0 and other is None else {}
        if not fields:
            hidden = _proc.hidden()
            raise UsageError(f"no process {pid}" + (f": {hidden}" if hidden else ""))
        if fields.get("Tgid", str(pid)) != str(pid):
            raise UsageError(f"{pid} is a thread of process {fields['Tgid']}: name that")
    if tree is not None:
        wanted += _proc.descendants(tree)
    return list(dict.fromkeys(wanted))


@record
class _Place:
    """Where a process belongs: its GPUs, who says so, and the nodes and CPUs near them."""

    devices: tuple[str, ...] = ()
    source: str | None = None
    nodes: frozenset[int] | None = None
    near: frozenset[int] | None = None


class Look:
    """One look at a machine's processes; who holds which GPU is asked once."""

    def __init__(
        self, machine: Machine, method: str = "auto", pids: Iterable[int] | None = None
    ) -> None:
        everything = frozenset(cpu.id for cpu in machine.cpus)
        nodes = frozenset(node.id for node in machine.nodes if node.memory_bytes != 0)
        # Other processes may be allowed more than this one is.
        self.machine = replace(machine, allowed=Allowed(everything, nodes))
        self.method = method
        self.holders = holders(machine, pids)
        self.everything = everything

    def process(self, pid: int) -> Process | None:
        """One process; None if it is gone."""
        name = _proc.name(pid)
        witness = _proc.witness(pid)
        if name is None or witness is None:
            return None  # gone, or waiting for its parent to notice
        place = self.place(pid)
        count, strays = self.threads(pid, place.near)
        pages, policy, said = self.pages(witness)
        if not count:
            return None
        problems = [*said, *_narrowed(pid)]
        if place.devices and place.nodes is None:
            gpus = " and ".join(place.devices)
            problems.append(problem("no-numa-node", f"nobody knows the node of {gpus}"))
        if strays:
            problems.append(_strays(strays, count, place.near or frozenset()))
        if pages is not None and place.nodes is not None:
            pages = with_share(pages, place.nodes)
            problems += _elsewhere(pages, place.nodes, bool(place.devices))
        return Process(
            pid,
            name,
            place.devices,
            place.source,
            place.nodes,
            place.near,
            count,
            strays,
            policy,
            pages,
            tuple(problems),
        )

    def place(self, pid: int) -> _Place:
        """The GPUs of a process by the best evidence: NVML, numabind's mark, its files, its rank.

        A process without a GPU belongs to the CPUs that it is bound to, if those are a part of the
        machine.
        """
        environ = _proc.environment(_proc.witness(pid) or pid)
        held, source = self.holders.found.get(pid, (frozenset[str](), None))
        marked = self.marked(environ)
        if marked is not None and (not held or held >= set(marked.devices)):
            return marked
        by_rank = self.by_rank(environ)
        # CUDA opens the files of all visible GPUs; the rank says which of them is meant.
        if by_rank is not None and (len(held) != 1) and (not held or set(by_rank) <= held):
            return self.near(by_rank, "environment", Options())
        if held:
            return self.near(tuple(sorted(held)), source, Options())
        return self.bound_to(pid)

    def marked(self, environ: Mapping[str, str]) -> _Place | None:
        """What numabind left in the environment of a process that it started."""
        words = environ.get(MARK, "").split()
        try:
            _, _, given, device, _, choices = words
            mode, memory = choices.split(",")[:2]
            options = make_options({"mode": mode, "memory": memory})
            cpus = parse_list(given)
        except (ValueError, UsageError):
            return None
        known = {d.pci for d in self.machine.devices}
        devices = tuple(pci for pci in device.split(",") if pci in known)
        if not devices:
            return None
        place = self.near(devices, "numabind", options)
        return place if place.near is None else replace(place, near=cpus | place.near)

    def by_rank(self, environ: Mapping[str, str]) -> tuple[str, ...] | None:
        """The GPU that a worker with this environment has by its rank or its only visible one."""
        ranked = any(environ.get(variable, "").strip() for _, variable, _ in LAUNCHERS)
        if not ranked and not any(names_one_device(environ.get(name, "")) for name in DEVICES):
            return None
        from numabind._bind import Request, seat_of

        try:
            seat, _ = seat_of(self.machine, Request(Options(), environ))
        except UsageError:
            return None
        handles = [h for h in (seat.handle, *seat.others) if h is not None]
        return tuple(handle.device.pci for handle in handles) or None

    def near(self, devices: tuple[str, ...], source: str | None, options: Options) -> _Place:
        """The nodes and CPUs near GPUs, as a worker of theirs would get them."""
        from numabind._handle import Handle
        from numabind._plan import plan_seats
        from numabind._resolve import Seat

        by_address = {device.pci: device for device in self.machine.devices}
        first, *others = (Handle(by_address[pci]) for pci in devices if pci in by_address)
        whole = make_options({"mode": "socket" if options.mode == "socket" else "node"})
        seat = Seat(None, first, (), tuple(others))
        placement = plan_seats(self.machine, (seat,), whole).placements[0]
        if placement.bound:
            return _Place(devices, source, placement.memory_nodes, placement.cpus)
        if len(self.machine.nodes) <= 1:
            nodes = frozenset(node.id for node in self.machine.nodes) or frozenset({0})
            return _Place(devices, source, nodes, self.everything)
        return _Place(devices, source)

    def bound_to(self, pid: int) -> _Place:
        """The place of a process without a GPU."""
        try:
            mask = frozenset(os.sched_getaffinity(pid)) & self.everything
        except OSError:
            return _Place()
        nodes = frozenset(cpu.node for cpu in self.machine.cpus if cpu.id in mask)
        able = frozenset(node.id for node in self.machine.nodes if node.cpus) or frozenset({0})
        known = frozenset(node for node in nodes if node is not None) or frozenset({0})
        if known == able and len(able) > 1:
            return _Place()
        return _Place((), "affinity", known, mask)

    def threads(self, pid: int, near: frozenset[int] | None) -> tuple[int, tuple[Stray, ...]]:
        """How many threads there are, and those that may run elsewhere."""
        count, strays = 0, []
        for thread in sorted(_proc.threads(pid)):
            try:
                mask = frozenset(os.sched_getaffinity(thread))
            except OSError:
                continue  # it ended
            count += 1
            if near is not None and not mask & self.everything <= near:
                strays.append(Stray(thread, _proc.name(pid, thread) or "?", mask))
        return count, tuple(strays)

    def pages(self, pid: int) -> tuple[Pages | None, str | None, tuple[Problem, ...]]:
        """The pages, the memory policy, and what kept them from being seen."""
        resident = _proc.kibibytes(_proc.status(pid), "VmRSS")
        if not resident:
            return None, None, ()  # a kernel thread, or gone
        sampled = self.method == "sample" or (
            self.method == "auto" and resident > _pages.SAMPLE_ABOVE
        )
        try:
            if sampled:
                pages = _pages.count_sample(pid)
                if pages is not None:
                    return pages, _pages.first_policy(pid), ()
            counted = _pages.count_all(pid)
        except MachineError as error:
            return None, None, (_unreadable(pid, str(error)),)
        except OSError as error:
            return None, None, (_unreadable(pid, f"move_pages: {error.strerror}"),)
        if counted is not None:
            return *counted, ()
        if len(self.machine.nodes) <= 1:
            return Pages("status", {0: _by_kind(pid)}), None, ()
        cause = f"this kernel has no numa_maps for process {pid}"
        return None, None, (problem("pages-unreadable", cause),)


def _narrowed(pid: int) -> tuple[Problem, ...]:
    """`affinity-not-kept`, if numabind bound this process and its first thread has less now.

    OpenMP, a library that was imported, or taskset did that: all workers may sit on one core.
    """
    words = _proc.environment(pid).get(MARK, "").split()
    if len(words) != 6 or words[0] != str(pid):
        return ()  # a child of a worker may well have a part of its place
    try:
        given, now = parse_list(words[2]), frozenset(os.sched_getaffinity(pid))
    except (ValueError, OSError):
        return ()
    if not now < given:
        return ()
    cause = f"its first thread was given CPUs {format_list(given)} and has {format_list(now)}"
    return (problem("affinity-not-kept", cause),)


def with_share(pages: Pages, nodes: frozenset[int]) -> Pages:
    """The pages with their share on these nodes. Pure.

    Page cache is left out: it is where the first reader of the file was, whoever maps it.
    """
    counted = pages.memory
    total = sum(counted.values())
    if not total:
        return pages
    share = sum(number for node, number in counted.items() if node in nodes) / total
    if not pages.found or not any(pages.found):
        return replace(pages, local=share)
    interval = _pages.interval(share, _pages.worth(pages, nodes))
    return replace(pages, local=share, interval=interval)


def _by_kind(pid: int) -> dict[str, int]:
    """Resident bytes by kind, by /proc/PID/status: all that a kernel without NUMA tells."""
    fields = _proc.status(pid)
    names = {"anonymous": "RssAnon", "shared": "RssShmem", "file": "RssFile"}
    kinds = {kind: _proc.kibibytes(fields, field) for kind, field in names.items()}
    return {kind: number for kind, number in kinds.items() if number}


def _unreadable(pid: int, cause: str) -> Problem:
    try:
        owner = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return problem("pages-unreadable", cause)
    mine = os.geteuid()
    if _proc.may_trace():
        # Yama, SELinux, AppArmor, or a process that is not of this user namespace.
        why = "though this process has CAP_SYS_PTRACE: a security module or a user namespace"
        remedy = "See dmesg or the audit log for who denies it; or ask from the host."
        return problem("pages-unreadable", f"process {pid}: {cause}, {why}", remedy)
    whose = f"it belongs to user {owner}, this is user {mine}, " if owner != mine else ""
    cause = f"process {pid}: {cause} ({whose}without CAP_SYS_PTRACE)"
    if mine:
        return problem("pages-unreadable", cause)
    remedy = "Give this container CAP_SYS_PTRACE: docker run --cap-add SYS_PTRACE (Kubernetes: "
    return problem("pages-unreadable", cause, f"{remedy}securityContext.capabilities.add).")


def _strays(strays: tuple[Stray, ...], count: int, near: frozenset[int]) -> Problem:
    names = [f"{printable(s.name)} ({s.tid}: {format_list(s.cpus)})" for s in strays[:_NAMED]]
    more = len(strays) - len(names)
    text = ", ".join(names) + (f" and {more} more" if more else "")
    cause = f"{len(strays)} of {count} threads may run outside CPUs {format_list(near)}: {text}"
    return problem("threads-elsewhere", cause)


def _elsewhere(pages: Pages, nodes: frozenset[int], gpu: bool) -> list[Problem]:
    share = pages.local
    if share is None or share >= ENOUGH or not pages.enough:
        return []
    away = sorted((node, size) for node, size in pages.memory.items() if node not in nodes and size)
    where = ", ".join(f"{size >> 20} MiB on node {node}" for node, size in away)
    what = "its GPU is" if gpu else "its CPUs are"
    cause = f"{share:.0%} of its memory is on {_pages.describe(nodes)}, where {what}; {where}"
    return [problem("pages-elsewhere", cause)]
