"""Frozen records at a fifteenth of the start-up price of `dataclasses`.

numabind runs inside everyone's start-up, and `dataclasses` costs about 10 ms to import (it pulls in
`inspect`) and a further millisecond for each frozen class. `record` gives the part of it that the
core uses: keyword or positional construction, defaults, equality, hash, repr, and refusal of
assignment. Type checkers see an ordinary frozen dataclass.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    from typing_extensions import dataclass_transform

    T = TypeVar("T")
else:

    def dataclass_transform(**_):
        return lambda decorator: decorator


@dataclass_transform(frozen_default=True)
def record(cls: type[T]) -> type[T]:  # noqa: C901 (seven small methods in one closure)
    """Turn a class with annotated fields into a frozen record (PEP 681).

    Fields are the annotations of the class itself, in order; a value given in the class body is the
    default and must be immutable. Inheritance between records is not supported.
    """
    # A class's own annotations, as strings (every module here imports them from the future).
    names = tuple(name for name in cls.__annotations__ if not name.startswith("__"))
    defaults = {name: cls.__dict__[name] for name in names if name in cls.__dict__}

    def __init__(self: Any, *args: Any, **values: Any) -> None:
        if len(args) == len(names) and not values:
            self.__dict__.update(zip(names, args, strict=True))
            return
        given = {**dict(zip(names, args, strict=False)), **values}
        wrong = [name for name in given if name not in names]
        wrong += [name for name in names if name not in given and name not in defaults]
        if wrong or len(given) != len(args) + len(values):
            detail = f"missing or unknown: {', '.join(wrong)}" if wrong else "a value given twice"
            raise TypeError(f"{cls.__name__}({', '.join(names)}): {detail}")
        # In the order of the fields: hash and JSON go by it.
        merged = {**defaults, **given}
        self.__dict__.update((name, merged[name]) for name in names)

    def __setattr__(_: Any, name: str, _value: Any) -> None:
        raise AttributeError(f"{cls.__name__} is frozen: cannot set {name}")

    def __delattr__(_: Any, name: str) -> None:
        raise AttributeError(f"{cls.__name__} is frozen: cannot delete {name}")

    def __eq__(self: Any, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return bool(self.__dict__ == other.__dict__)

    def __hash__(self: Any) -> int:
        return hash(tuple(self.__dict__.values()))

    def __repr__(self: Any) -> str:
        inside = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{cls.__name__}({inside})"

    methods = (__init__, __setattr__, __delattr__, __eq__, __hash__, __repr__)
    for method in methods:
        if method.__name__ not in cls.__dict__ or method is __hash__:
            setattr(cls, method.__name__, method)
    setattr(cls, "__match_args__", names)  # noqa: B010  (unknown to type[T])
    return cls


def replace(item: T, **changes: Any) -> T:
    """A copy of a record with some fields changed; TypeError for a name that it lacks."""
    return item.__class__(**{**item.__dict__, **changes})
