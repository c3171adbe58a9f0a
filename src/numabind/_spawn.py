"""`spawning`: what is started inside is born in a worker's place.

Affinity and memory policy belong to a thread, and a child is a copy of the thread that starts it:
so the thread takes the worker's place for as long as the `with` block lasts.
"""

from __future__ import annotations

import _thread
import os
import sys

from numabind import _bind
from numabind._binding import Binding
from numabind._errors import BindError, UsageError
from numabind._inherited import place_all
from numabind._options import make_options, options_of
from numabind._problems import HARMLESS, NOTES, problem
from numabind._resolve import check_named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing_extensions import Unpack

    from numabind._options import OptionWords

# Held by whoever is inside a `spawning`: os.environ is the whole process's. `_inside` is its
# thread.
_turn = _thread.allocate_lock()
_inside = 0


def _renew() -> None:
    """In a forked child: whoever held the lock is not in it."""
    global _turn, _inside
    _turn, _inside = _thread.allocate_lock(), 0


class spawning:  # noqa: N801 (used as a function is)
    """Start processes inside this `with` block, and they are born in a worker's place.

        for rank in range(8):
            with numabind.spawning(local_rank=rank, workers=8):
                processes[rank].start()

    Scope: the calling thread's CPUs and memory policy are the worker's inside the block, and put
    back at its end, also when the start fails. Other threads of this process are not touched; they
    may spawn too, and wait for their turn. OMP_NUM_THREADS and NUMABIND_BOUND are in this process's
    environment for as long: a child that another thread starts at that moment without `spawning`
    would see them. What the block starts later, or has started for it by another process (the start
    method forkserver), is not reached: `spawned-elsewhere`.

    `gpu`, `local_rank` and `options` are as in `bind`; `workers` says how many there will be, which
    the thread budget needs, and under strict the places of all of them are checked each time. The
    block's value is a Binding: what the children get. Raises UsageError for a wrong argument, and
    BindError, with nothing started, only under strict=True.
    """

    def __init__(
        self,
        local_rank: int | None = None,
        gpu: str | None = None,
        workers: int | None = None,
        **options: Unpack[OptionWords],
    ) -> None:
        make_options(options)
        check_named(gpu, local_rank)
        if workers is not None and not (type(workers) is int and workers >= 1):
            raise UsageError(f"workers must be 1 or more, not {workers}")
        self._local_rank, self._gpu, self._workers = local_rank, gpu, workers
        self._options = options
        self._binding: Binding | None = None
        self._before: set[int] = set()

    def __enter__(self) -> Binding:
        """Take the place; the Binding says what children get."""
        self._enter()
        try:
            environ: dict[str, str] = dict(os.environ)
            if self._workers is not None and self._local_rank is not None:
                environ["LOCAL_RANK"] = str(self._local_rank)
                environ["LOCAL_WORLD_SIZE"] = str(self._workers)
            request = _bind.Request(
                make_options(self._options), environ, self._gpu, self._local_rank, alone=True
            )
            self._check_all(environ)
            self._before = {id(child) for child in _multiprocessing_children()}
            self._binding = binding = _bind.attempt(self._options, request)
        except BaseException as error:
            _leave()
            if isinstance(error, BindError):
                _bind.log_problems(error.problems)
            raise
        _bind.log_problems(binding.problems)
        return binding

    def __exit__(self, kind: object, *_: object) -> None:
        """Put back what the thread had; under strict BindError if a child was born elsewhere."""
        binding = self._binding
        if binding is None or binding.pid != os.getpid():
            return  # a forked child leaves the block: it keeps its place
        self._binding = None
        try:
            binding.restore()
        finally:
            _leave()
        elsewhere = [
            child for child in _multiprocessing_children()
            if id(child) not in self._before
            and getattr(getattr(child, "_popen", None), "method", None) == "forkserver"
        ]  # fmt: skip
        if not elsewhere:
            return
        names = ", ".join(str(getattr(child, "name", "?")) for child in elsewhere)
        said = (problem("spawned-elsewhere", f"{names}: started by the forkserver"),)
        _bind.log_problems(said)
        if kind is None and self._options.get("strict"):
            raise BindError(said)

    def _enter(self) -> None:
        """Wait for the turn. A thread that has it would wait for itself."""
        global _inside  # noqa: PLW0603
        thread = _thread.get_ident()
        if _inside == thread:
            raise UsageError(
                "spawning inside spawning: a thread has one place at a time. Leave the block "
                "before the next begins (with asyncio: no await inside it)"
            )
        _turn.acquire()
        _inside = thread

    def _check_all(self, environ: dict[str, str]) -> None:
        if self._workers is None or _bind.why_not(environ) is not None:
            return
        options = make_options({**options_of(environ), **self._options})
        if not options.strict:
            return
        machine = _bind.machine_of(_bind.Request(options, environ))
        said = [
            p for one in place_all(machine, options, environ, self._workers) for p in one.problems
        ]
        misplacing = tuple(dict.fromkeys(p for p in said if p.name not in NOTES | HARMLESS))
        if misplacing:
            raise BindError(misplacing)


def _leave() -> None:
    global _inside  # noqa: PLW0603
    _inside = 0
    _turn.release()


def _multiprocessing_children() -> list[object]:
    """The multiprocessing children of this process; without reaping any."""
    module = sys.modules.get("multiprocessing.process")
    return list(getattr(module, "_children", ()))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
