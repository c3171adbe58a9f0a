"""Changes this process and reads back what became of it. The only writes to the kernel's books."""

from __future__ import annotations

import _thread
import os

from numabind._cpulist import format_list
from numabind._errors import MachineError
from numabind._placement import Placement
from numabind._problems import Problem, problem
from numabind._record import record
from numabind._sysfs import Root, read_allowed, read_online

TYPE_CHECKING = False
if TYPE_CHECKING:
    from numabind._residency import Moved

_EPERM, _ENOENT, _ESRCH, _EACCES, _EINVAL = 1, 2, 3, 13, 22
# Above this, counting a process's pages takes longer than a start-up should.
_COUNT_BELOW = 4 << 30
# What the plan asks for, and the kernel's policies that give it, best first. PREFERRED_MANY spills
# from the allocating CPU's node, PREFERRED by distance and so into GPU or CXL memory.
_KERNEL_POLICIES = {
    "prefer": ("preferred-many", "preferred"),
    "bind": ("bind",),
    "local": ("local",),
    "interleave": ("interleave",),
    "weighted-interleave": ("weighted-interleave", "interleave"),
}


@record
class Undo:
    """How this process was before: masks by thread id, policy, and the changed environment.

    `tid` is the thread that was bound, `given` the mask that all of them got, `policy` the kernel's
    number with its flags, and nodes. `alone` says that no other thread got the mask.
    """

    pid: int = 0
    tid: int = 0
    masks: tuple[tuple[int, frozenset[int]], ...] = ()
    given: frozenset[int] = frozenset()
    policy: tuple[int, frozenset[int]] | None = None
    environ: tuple[tuple[str, str | None], ...] = ()
    alone: bool = False


@record
class Threads:
    """What became of the threads: bound, left with a narrower mask of their own (their names)."""

    bound: int = 0
    kept: tuple[str, ...] = ()
    before: tuple[tuple[int, frozenset[int]], ...] = ()
    problems: tuple[Problem, ...] = ()


def task_ids() -> list[int]:
    """The thread ids of this process, the main thread's first; only the caller's without /proc."""
    return _tasks()[0]


def _tasks() -> tuple[list[int], str]:
    """The thread ids of this process, and why the caller's is the only one, "" if all are seen."""
    try:
        if os.readlink("/proc/self") == str(os.getpid()):
            return sorted(int(name) for name in os.listdir("/proc/self/task")), ""
        # The thread ids of another PID namespace are strangers here.
        why = "/proc is of another PID namespace"
    except OSError as error:
        gone = error.errno == _ENOENT
        why = "/proc is not mounted" if gone else f"/proc/self/task: {error.strerror}"
    return [_thread.get_native_id()], why


def own_mask(tid: int = 0) -> frozenset[int]:
    """The mask of the calling thread, or of another of this process; from /proc if refused."""
    try:
        return frozenset(os.sched_getaffinity(tid))
    except OSError:
        here = Root("/")
        return read_allowed(here, read_online(here), ()).cpus


def bind_threads(cpus: frozenset[int], born: frozenset[int], ours: frozenset[int]) -> Threads:
    """Give every thread of this process the mask `cpus`, until two passes find none outside.

    A thread whose mask is narrower than `born` by its own choice is left; `ours` is the mask that
    an earlier bind gave, which is not its own choice.
    """
    caller = _thread.get_native_id()
    before: dict[int, frozenset[int]] = {}
    bound: set[int] = set()
    kept: list[int] = []
    first = True
    # Two: the kernel's listing can miss a thread while another ends.
    passes = 0
    while passes < 2:
        passes += 1
        for tid in task_ids():
            if tid in before or tid in bound:
                continue
            try:
                mask = frozenset(os.sched_getaffinity(tid))
                if mask == cpus and not first:
                    bound.add(tid)  # born of a bound thread since
                    continue
                before[tid] = mask
                if tid != caller and mask < born and mask not in (ours, cpus):
                    kept.append(tid)
                    continue
                os.sched_setaffinity(tid, cpus)
                bound.add(tid)
                passes = 0
            except OSError as error:
                before.setdefault(tid, frozenset())
                if error.errno == _ESRCH:
                    continue
                put_back(tuple(before.items()))
                return Threads(problems=(_refused(error, cpus),))
        first = False
    # The caller by its own name, 0: whatever /proc shows, this is who must be in its place.
    said = _not_kept([0, *sorted(bound)], cpus)
    unseen = _tasks()[1]
    if unseen:
        said = (*said, problem("threads-unseen", unseen))
    names = tuple(_thread_name(tid) for tid in kept)
    if kept:
        cause = f"{len(kept)} of {len(kept) + len(bound)} threads: {', '.join(names[:8])}"
        said = (*said, problem("threads-kept", cause))
    return Threads(len(bound), names, tuple(before.items()), said)


def bind_caller(cpus: frozenset[int]) -> Threads:
    """Give the calling thread, and no other, the mask `cpus`."""
    before = own_mask()
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        return Threads(problems=(_refused(error, cpus),))
    return Threads(1, (), ((_thread.get_native_id(), before),), _not_kept([0], cpus))


def _refused(error: OSError, cpus: frozenset[int]) -> Problem:
    if error.errno == _EINVAL:
        return problem(
            "cpus-not-allowed",
            f"the kernel takes none of the CPUs {format_list(cpus)}: they went offline or left the "
            "cpuset",
        )
    return problem("affinity-denied", f"sched_setaffinity: {error.strerror}")


def _not_kept(tids: list[int], cpus: frozenset[int]) -> tuple[Problem, ...]:
    for tid in tids:
        try:
            now = frozenset(os.sched_getaffinity(tid))
        except OSError:
            continue  # the thread ended
        if now != cpus:
            cause = (
                f"thread {_thread_name(tid)} was given CPUs {format_list(cpus)} and has "
                f"{format_list(now)}"
            )
            return (problem("affinity-not-kept", cause),)
    return ()


def _thread_name(tid: int) -> str:
    tid = tid or _thread.get_native_id()
    try:
        with open(f"/proc/self/task/{tid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return str(tid)


def put_back(masks: tuple[tuple[int, frozenset[int]], ...]) -> None:
    """Give each thread of this process its former mask; threads that ended are passed over."""
    own = set(task_ids())
    for tid, mask in masks:
        # The number of a thread that ended may be a stranger's by now.
        if mask and tid in own:
            _give(tid, mask)


def undo_masks(undo: Undo) -> None:
    """Put masks back; threads born since with the mask that was given get the bound thread's."""
    put_back(undo.masks)
    before = dict(undo.masks)
    back = before.get(undo.tid, frozenset())
    passes = 0
    while passes < 2 and not undo.alone and back not in (frozenset(), undo.given):
        passes += 1
        for tid in task_ids():
            if tid not in before and _mask_of(tid) == undo.given:
                _give(tid, back)
                # Where it can't be given (the CPUs are gone), trying again is no use.
                passes = 0 if _mask_of(tid) == back else passes


def _give(tid: int, mask: frozenset[int]) -> None:
    try:
        os.sched_setaffinity(tid, mask)
    except OSError:
        return  # it ended, or the CPUs are gone


def _mask_of(tid: int) -> frozenset[int] | None:
    try:
        return frozenset(os.sched_getaffinity(tid))
    except OSError:
        return None


@record
class Policy:
    """The calling thread's memory policy as read back; None where the kernel does not tell."""

    name: str | None = None
    nodes: frozenset[int] = frozenset()
    before: tuple[int, frozenset[int]] | None = None
    problems: tuple[Problem, ...] = ()


def apply_policy(placement: Placement, several_nodes: bool) -> Policy:
    """Set the calling thread's memory policy and read it back.

    Refusals are problems, unless the machine has one node and nothing is lost.
    """
    try:
        from numabind import _syscalls
    except ImportError as error:
        # A Python that was built without libffi: CPUs can be bound all the same.
        said = problem("memory-policy-unsupported", f"this Python can't call the kernel: {error}")
        return Policy(problems=(said,) if several_nodes else ())
    now, before = _ask_policy(), _ask_raw()
    wanted = placement.memory_policy
    if wanted == "none":
        return _policy(now, before)
    nodes = placement.memory_nodes
    problems: list[Problem] = []
    for name in _KERNEL_POLICIES[wanted]:
        # LOCAL takes no nodes, PREFERRED one.
        given = frozenset[int]() if name == "local" else nodes
        if name == "preferred":
            given = frozenset({min(nodes)})
        try:
            _syscalls.set_memory_policy(name, given)
        except OSError as error:
            said = _policy_refused(error, name, given)
            if error.errno == _EINVAL and name != _KERNEL_POLICIES[wanted][-1]:
                # A fallback that gives the same is no news; one that gives less is.
                problems += [said] if wanted == "weighted-interleave" else []
                continue
            problems.append(said)
            break
        after = _ask_policy()
        if after is not None and after != (name, given):
            cause = f"{name} on node {format_list(given)} was set, {after[0]} on node "
            cause += f"{format_list(after[1]) or 'none'} is there"
            problems.append(problem("memory-policy-not-kept", cause))
        return _policy(after or (name, given), before, problems)
    return _policy(now, before, problems if several_nodes else [])


def _policy(
    now: tuple[str, frozenset[int]] | None,
    before: tuple[int, frozenset[int]] | None,
    problems: list[Problem] | None = None,
) -> Policy:
    name, nodes = now or (None, frozenset[int]())
    return Policy(name, nodes, before, tuple(problems or ()))


def _ask_policy() -> tuple[str, frozenset[int]] | None:
    from numabind import _syscalls

    try:
        return _syscalls.get_memory_policy()
    except OSError:
        return None  # seccomp profiles refuse the question too


def _ask_raw() -> tuple[int, frozenset[int]] | None:
    from numabind import _syscalls

    try:
        return _syscalls.get_raw_policy()
    except OSError:
        return None


def _policy_refused(error: OSError, name: str, nodes: frozenset[int]) -> Problem:
    what = f"set_mempolicy({name}, node {format_list(nodes) or 'none'}): {error.strerror}"
    if error.errno in (_EPERM, _EACCES):
        return problem("memory-policy-denied", what)
    if error.errno == _EINVAL and name == "bind":
        return problem("memory-not-allowed", what)
    return problem("memory-policy-unsupported", what)


def undo_policy(undo: Undo) -> None:
    """Set the bound thread's former policy, if this is that thread; one that can't be set stays."""
    from numabind import _syscalls

    if undo.policy is None or undo.tid != _thread.get_native_id():
        return
    try:
        _syscalls.set_raw_policy(*undo.policy)
    except OSError:
        return


def move_touched(placement: Placement) -> tuple[Moved | None, tuple[Problem, ...]]:
    """Move the pages that were touched before, and count those that would not move."""
    nodes = placement.memory_nodes
    if not nodes:
        return None, ()
    own = placement.node
    target = own if own is not None and own in nodes else min(nodes)
    from numabind._residency import move_own_pages

    try:
        moved = move_own_pages(nodes, target)
    except MachineError as error:
        return None, (problem("page-move-denied", str(error)),)
    except OSError as error:
        return None, (problem("page-move-denied", f"move_pages: {error.strerror}"),)
    if not moved.left_private:
        return moved, ()
    cause = f"{moved.left_private} of {moved.moved + moved.left} pages of this process's own memory"
    return moved, (problem("pages-not-moved", f"{cause} are not on node {format_list(nodes)}"),)


def private_bytes_elsewhere(nodes: frozenset[int]) -> int | None:
    """Bytes of this process's own memory that are on none of `nodes`; None if not counted.

    Counting walks all page tables, so it is left out above 4 GiB resident.
    """
    from numabind._residency import bytes_by_node, read_numa_maps, resident_bytes

    resident = resident_bytes()
    if not nodes or resident is None or resident > _COUNT_BELOW:
        return None
    try:
        mappings = read_numa_maps(Root("/"))
    except MachineError:
        return None
    if mappings is None:
        return None
    return sum(n for node, n in bytes_by_node(mappings, private=True).items() if node not in nodes)
