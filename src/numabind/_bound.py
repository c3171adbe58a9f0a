"""`bound`: a callable that binds its process before it does its work."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, overload

from numabind._bind import bind
from numabind._errors import UsageError
from numabind._options import make_options
from numabind._resolve import check_named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing_extensions import Unpack

    from numabind._options import OptionWords

P = ParamSpec("P")
R = TypeVar("R")


@overload
def bound(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def bound(
    *,
    gpu: str | None = None,
    local_rank: int | None = None,
    rank_argument: int | None = None,
    **options: Unpack[OptionWords],
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def bound(
    function: Any = None,
    /,
    *,
    gpu: str | None = None,
    local_rank: int | None = None,
    rank_argument: int | None = None,
    **options: Unpack[OptionWords],
) -> Any:
    """Make a callable bind its process, all its threads, before it does its work.

        @numabind.bound
        def train(): ...                       # rank from the environment: elastic_launch

        @numabind.bound(rank_argument=0)
        def train(rank): ...                   # rank from the first argument: mp.spawn

    Scope: the process that calls it, for good, each call anew; so it is for the function that a
    worker process begins with, under any start method (spawn, fork, forkserver) and in process
    pools. What comes before the call, such as the child's imports, is not bound: `spawning` and
    `numabind launch` are earlier. It can be pickled as the function itself can.

    `gpu`, `local_rank` and `options` are as in `bind`. `rank_argument` is the number of the
    positional argument that is the local rank; without it no argument is looked at. Raises
    UsageError for a wrong setting, and, when called, for an argument that is no rank; and BindError
    as `bind` does.
    """
    make_options(options)
    check_named(gpu, local_rank)
    if rank_argument is not None and (type(rank_argument) is not int or rank_argument < 0):
        raise UsageError(f"rank_argument must be 0 or more, not {rank_argument!r:.40}")
    if rank_argument is not None and (local_rank is not None or gpu is not None):
        raise UsageError("bound takes rank_argument, or local_rank or gpu, not both")
    settings = {"gpu": gpu, "local_rank": local_rank, **options}
    if function is None:
        return functools.partial(_Bound, rank_argument=rank_argument, settings=settings)
    return _Bound(function, rank_argument, settings)


class _Bound:
    """The callable. As a name of its module it is pickled by name, else with its function."""

    def __init__(
        self, function: Callable[..., Any], rank_argument: int | None, settings: dict[str, Any]
    ) -> None:
        if isinstance(function, type):
            name = function.__name__
            raise UsageError(f"bound takes a function, not the class {name}: decorate a method")
        if not callable(function):
            raise UsageError(f"bound takes a callable, not {type(function).__name__}")
        functools.update_wrapper(self, function)
        self._function, self._rank_argument, self._settings = function, rank_argument, settings

    def __call__(self, *args: Any, **values: Any) -> Any:
        settings = self._settings
        if self._rank_argument is not None:
            settings = {**settings, "local_rank": self._rank(args)}
        bind(**settings)
        return self._function(*args, **values)

    def _rank(self, args: tuple[Any, ...]) -> int:
        number = self._rank_argument or 0
        name = getattr(self, "__qualname__", "the callable")
        if number >= len(args):
            raise UsageError(f"{name}: rank_argument is {number}, but it got {len(args)} arguments")
        rank = args[number]
        if not isinstance(rank, bool) and hasattr(rank, "__index__"):
            rank = rank.__index__()  # numpy's integers, too
        if not isinstance(rank, int) or isinstance(rank, bool) or rank < 0:
            raise UsageError(f"{name}: argument {number} is {rank!r:.60}, which is no local rank")
        return rank

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """A decorated method binds, too."""
        return self if instance is None else functools.partial(self, instance)

    def __reduce__(self) -> Any:
        name = getattr(self, "__qualname__", "")
        found: Any = sys.modules.get(getattr(self, "__module__", None) or "")
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is self:
            return name
        return _Bound, (self._function, self._rank_argument, self._settings)
