"""How many threads a worker should use, and using them for the optimizer's step alone.

Launchers set OMP_NUM_THREADS=1 for every rank; a CPU optimizer then runs on one core of the many
that are the worker's.
"""

from __future__ import annotations

import functools
import os
import threading
import types
from typing import TYPE_CHECKING, TypeVar

from numabind._bind import Request, as_problem, log_problems, prepare, read_mark
from numabind._errors import MachineError, UsageError
from numabind._options import Options, make_options, options_of

if TYPE_CHECKING:
    from typing import Any

_Optimizer = TypeVar("_Optimizer")


def thread_budget() -> int:
    """Threads for this worker: physical cores of its place over the workers that share them.

    Within the cgroup's cpu.max, and no more than the CPUs that this thread may use now. A worker
    that numabind bound is counted by the options that it was bound with. At least 1.
    """
    environ = os.environ
    mask = os.sched_getaffinity(0)
    try:
        _, placement = prepare(Request(_options(), environ))
    except (MachineError, UsageError) as error:
        log_problems((as_problem(error),))
        return 1
    return max(1, min(placement.threads, len(mask)))


def _options() -> Options:
    """The options that this process, or its parent, was bound with; else the environment's."""
    mark = read_mark(os.environ)
    if mark is None:
        return make_options(options_of(os.environ))
    mode, memory, smt, reserve, share, near = mark.choices.split(",", 5)
    return Options(
        mode=mode,
        memory=memory,
        smt=smt == "1",
        reserve=int(reserve),
        share=None if share == "None" else share,
        near=None if near == "None" else near,
    ).checked()


class optimizer_threads:  # noqa: N801 (used as a function is)
    """Give torch this worker's threads for as long as a `with` block, or each step, lasts.

        with numabind.torch.optimizer_threads():
            optimizer.step()

        optimizer = numabind.torch.optimizer_threads().wrap(optimizer)

    Scope: torch's intra-op threads of the calling thread (torch.set_num_threads), put back at the
    end, also when the step fails; OMP_NUM_THREADS elsewhere stays. (A thread that uses torch for
    the first time meanwhile begins with the wider number, and keeps it.) `threads` is by default
    `thread_budget()`, asked once. It never narrows: a larger number that is set already stays. Can
    be used again, nested, and by several threads. Raises UsageError for `threads` below 1.
    """

    def __init__(self, threads: int | None = None) -> None:
        if threads is not None and not (type(threads) is int and threads >= 1):
            raise UsageError(f"threads must be 1 or more, not {threads!r:.40}")
        self.threads = thread_budget() if threads is None else threads
        self._own = _Own()

    def __enter__(self) -> int:
        """Widen; the block's value is the number of threads now."""
        import torch

        before = torch.get_num_threads()
        self._own.before.append(before)
        if before < self.threads:
            torch.set_num_threads(self.threads)
        return max(before, self.threads)

    def __exit__(self, *_: object) -> None:
        import torch

        before = self._own.before.pop()
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)

    def wrap(self, optimizer: _Optimizer) -> _Optimizer:
        """The same optimizer, each of whose steps has these threads. Twice is once.

        Anything with `step` and `param_groups` will do (accelerate's and DeepSpeed's optimizers).
        Copies and pickles of it are plain ones. Raises UsageError for anything else.
        """
        inner = getattr(optimizer, "step", None)
        if inner is None or not hasattr(optimizer, "param_groups"):
            raise UsageError(f"an optimizer is wanted, not {type(optimizer).__name__}")
        if getattr(inner, "numabind_threads", None) is not None:
            return optimizer
        threads = self

        # wraps() takes over what a learning-rate scheduler has marked `inner` with.
        @functools.wraps(inner)
        def step(_: object, *args: Any, **values: Any) -> Any:
            with threads:
                return inner(*args, **values)

        step.numabind_threads = threads  # type: ignore[attr-defined]
        # A method, since learning-rate schedulers wrap step.__func__.
        optimizer.step = types.MethodType(step, optimizer)  # type: ignore[attr-defined]
        return optimizer


class _Own(threading.local):
    """What each thread that is inside a block had before, the innermost last."""

    def __init__(self) -> None:
        self.before: list[int] = []
