"""What numabind raises, and nothing else.

    NumabindError
    ├── UsageError     (also ValueError) an argument, a flag or a variable is wrong
    ├── MachineError   (also OSError)    a file of the machine or a snapshot can't be understood
    └── BindError      (also OSError)    strict was asked for and the worker could not be bound

The text of each is the message for the person: what is wrong, where, and what to do. The command
prints it as one line and exits with 2 (UsageError, MachineError) or 1 (BindError).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from numabind._problems import Problem


class NumabindError(Exception):
    """The base of all that numabind raises on purpose."""


class UsageError(NumabindError, ValueError):
    """An argument, a flag or an environment variable has a value that can't be used."""


class MachineError(NumabindError, OSError):
    """A file below the root, or a snapshot, is missing, unreadable or not understood.

    `path` is the file, `cause` what is wrong with it.
    """

    def __init__(self, path: str, cause: str, remedy: str = "") -> None:
        self.path = path
        self.cause = cause
        self.remedy = remedy
        text = f"{path}: {cause}" + (f" ({remedy})" if remedy else "")
        OSError.__init__(self, text)

    def __reduce__(self) -> tuple[type[MachineError], tuple[str, str, str]]:
        return MachineError, (self.path, self.cause, self.remedy)


class BindError(NumabindError, OSError):
    """Raised under `strict` when a worker is not where it was meant to be; nothing stays changed.

    `problems` holds what was in the way.
    """

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        self.problems = problems
        OSError.__init__(self, "; ".join(problem.text for problem in problems))

    def __reduce__(self) -> tuple[type[BindError], tuple[tuple[Problem, ...]]]:
        # Workers of Ray and multiprocessing send their exceptions by pickle.
        return BindError, (self.problems,)
