"""Cores for the workers of a DataLoader."""

from __future__ import annotations

import os
from collections.abc import Callable

from numabind._apply import bind_threads
from numabind._bind import as_problem, log_problems, why_not
from numabind._discover import Questions, discover_here
from numabind._errors import UsageError
from numabind._machine import Machine
from numabind._problems import problem


def worker_init_fn(
    reserve: int = 1, then: Callable[[int], None] | None = None
) -> Callable[[int], None]:
    """A `worker_init_fn` for a DataLoader that gives each of its workers cores of its own.

    Scope: each worker process of the loader, for good. The cores that the training process is bound
    to are dealt in contiguous blocks over the workers, without the lowest `reserve` ones: those are
    left to the training process, whose main thread is not pinned but finds nobody else there.
    With fewer cores than workers, some share one. Memory policy and GPU are inherited as before.

    Use it with mode exclusive (a GPU's cores are then its worker's alone); under mode node the
    loaders of all ranks of a node are dealt over the same cores. `then` is called with the worker's
    number afterwards. Can be pickled if `then` can. Raises UsageError for a negative `reserve`.
    """
    if type(reserve) is not int or reserve < 0:
        raise UsageError(f"reserve must be 0 or more cores, not {reserve!r:.40}")
    return _Deal(reserve, then)


class _Deal:
    def __init__(self, reserve: int, then: Callable[[int], None] | None) -> None:
        self.reserve, self.then = reserve, then

    def __call__(self, worker: int) -> None:
        if why_not(os.environ) is None:
            self.deal(worker)
        if self.then is not None:
            self.then(worker)

    def deal(self, worker: int) -> None:
        from torch.utils.data import get_worker_info

        info = get_worker_info()
        workers = max(1, info.num_workers if info is not None else worker + 1)
        mine = frozenset(os.sched_getaffinity(0))
        try:
            questions = Questions(caches=False, network=False, runtime=False, settings=False)
            machine = discover_here(os.environ, questions)
        except (OSError, UsageError) as error:
            log_problems((as_problem(error),))
            return
        share, left = dealt(cores(machine, mine), self.reserve, workers, worker)
        if not left and worker == 0:
            cause = f"{self.reserve} cores reserved of the loader's {len(cores(machine, mine))}"
            log_problems((problem("reserve-too-large", cause),))
        log_problems(bind_threads(share, mine, mine).problems)


def cores(machine: Machine, cpus: frozenset[int]) -> list[list[int]]:
    """These CPUs by physical core, lowest first."""
    of = {cpu.id: cpu.id if cpu.core is None else cpu.core for cpu in machine.cpus}
    found: dict[int, list[int]] = {}
    for cpu in sorted(cpus):
        found.setdefault(of.get(cpu, cpu), []).append(cpu)
    return list(found.values())


def dealt(
    cores: list[list[int]], reserve: int, workers: int, worker: int
) -> tuple[frozenset[int], bool]:
    """One worker's CPUs, and whether the reserve could be left out. Pure."""
    kept = cores[reserve:]
    left = kept or cores
    count = len(left)
    if count >= workers:
        first, end = worker * count // workers, (worker + 1) * count // workers
    else:
        first, end = worker % count, worker % count + 1
    return frozenset(cpu for core in left[first:end] for cpu in core), bool(kept)
