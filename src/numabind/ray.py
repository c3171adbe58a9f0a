"""numabind under Ray: bind actors and tasks to what Ray assigned, and survey a cluster.

    @ray.remote(num_gpus=1)
    @numabind.ray.bound
    class Trainer: ...

`numabind.bind()` does the same as the first line of an actor's `__init__` or of a task. To turn it
off for one job: `runtime_env={"env_vars": {"NUMABIND": "0"}}`.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from numabind._assigned import runs_in_worker
from numabind._bind import bind, read_mark
from numabind._discover import Questions, discover_here
from numabind._errors import UsageError
from numabind._machine import Machine
from numabind._options import make_options
from numabind._problems import problem
from numabind._record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing_extensions import Unpack

    from numabind._options import BindWords

T = TypeVar("T", bound=Callable[..., Any])


@overload
def bound(target: T, /) -> T: ...
@overload
def bound(**options: Unpack[BindWords]) -> Callable[[T], T]: ...
def bound(target: Any = None, /, **options: Unpack[BindWords]) -> Any:
    """Bind the Ray worker that runs this actor class or task function.

    Scope: an actor's process is bound before the class's `__init__` and stays so; a task's for as
    long as the function runs, since Ray may reuse the process for another GPU. Anywhere but in a
    Ray worker the class or function is as it was. Stands below `@ray.remote`; `options` are those
    of `numabind.bind`: `@numabind.ray.bound(mode="exclusive")`.

    A class is changed in place and returned. Classes derived from it are bound when they call its
    `__init__`; decorate the derived class to bind before. Raises UsageError for an unknown option.
    """
    if target is None:
        return functools.partial(_wrap, options=_checked(options))
    if options:
        raise UsageError("bound takes a class or function, or options, not both")
    return _wrap(target, {})


def _checked(options: Mapping[str, Any]) -> dict[str, Any]:
    make_options({k: v for k, v in options.items() if k not in ("gpu", "local_rank")})
    return dict(options)


def _wrap(target: Any, options: dict[str, Any]) -> Any:
    if isinstance(target, type):
        target.__init__ = _bind_first(target.__init__, options)  # type: ignore[misc]
        return target
    if not callable(target):
        kind = type(target).__name__
        raise UsageError(f"bound takes a class or function, not {kind}: put it below @ray.remote")

    if inspect.isgeneratorfunction(target):

        @functools.wraps(target)
        def stream(*args: Any, **values: Any) -> Any:
            if not runs_in_worker(ray):
                yield from target(*args, **values)
                return
            with bind(**options):
                yield from target(*args, **values)

        return stream

    @functools.wraps(target)
    def task(*args: Any, **values: Any) -> Any:
        if not runs_in_worker(ray):
            return target(*args, **values)
        with bind(**options):
            return target(*args, **values)

    return task


def _bind_first(init: Callable[..., None], options: dict[str, Any]) -> Callable[..., None]:
    def bind_and_init(self: Any, *args: Any, **values: Any) -> None:
        if runs_in_worker(ray):
            bind(**options)
        init(self, *args, **values)

    # Ray writes to what a method wraps, and `object.__init__` can't be written to.
    return functools.wraps(init)(bind_and_init) if inspect.isfunction(init) else bind_and_init


def survey(timeout: float = 60.0) -> dict[str, Machine]:
    """Ask each alive node of the cluster for its Machine, by Ray's node id.

    Runs one task on each node, which takes none of its CPUs or GPUs, and waits `timeout` seconds
    for all of them. A node's NUMABIND_SNAPSHOT and NUMABIND_MAP count. numabind must be installed
    on the nodes. A node that does not answer is left out and named in a WARNING (`node-silent`).
    """
    found, silent = answers(timeout)
    for node, cause in silent.items():
        said = problem("node-silent", f"Ray node {node}: {cause}")
        logging.getLogger("numabind").warning("%s", said.text)
    return found


def answers(timeout: float = 60.0) -> tuple[dict[str, Machine], dict[str, str]]:
    """As `survey`, but what keeps a node from answering is returned, by Ray's node id."""
    look = ray.remote(num_cpus=0, max_retries=0)(_look)
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    asked = {}
    for node in nodes:
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        asked[look.options(scheduling_strategy=there).remote()] = node
    done, late = ray.wait(list(asked), num_returns=len(asked), timeout=timeout)
    found: dict[str, Machine] = {}
    silent: dict[str, str] = {}
    for answer in done:
        try:
            found[asked[answer]] = Machine.from_dict(ray.get(answer), f"Ray node {asked[answer]}")
        except ray.exceptions.RayError as error:
            silent[asked[answer]] = str(error).strip().rpartition("\n")[2]
    for answer in late:
        ray.cancel(answer, force=True)
        silent[asked[answer]] = f"no answer in {timeout:g} s"
    return {node: found[node] for node in nodes if node in found}, silent


def _look() -> dict[str, Any]:
    """The Machine of the node that runs this task, as if the worker had never been bound."""
    machine = discover_here(os.environ, Questions())
    mark = read_mark(os.environ)
    if mark is not None:
        cpus = mark.born & frozenset(cpu.id for cpu in machine.cpus)
        machine = replace(machine, allowed=replace(machine.allowed, cpus=cpus))
    return machine.as_dict()
