"""The command line as records, read from the argparse parser, for completion and the manual."""

from __future__ import annotations

import argparse

from numabind._options import MEMORY, MODES, SHARES, THREADS
from numabind._record import record

# Options whose values numabind checks itself, so that argparse knows no choices.
_VALUES = {"mode": MODES, "memory": MEMORY, "share": SHARES, "threads": THREADS}


@record
class Argument:
    """An option, or an operand where there are no flags.

    flags: as typed, the long one first. metavar: what its value is called ("FILE", "DIR", "PID",
    "DEVICE"…), None if it takes none. values: those that it knows, () where they are not a few
    words. many: it may be repeated. text: the help.
    """

    flags: tuple[str, ...]
    metavar: str | None
    values: tuple[str, ...]
    many: bool
    text: str


@record
class Verb:
    """A verb, or the command itself (name ""): its options and operands.

    command: what follows -- is a command of its own.
    """

    name: str
    text: str
    description: str
    epilog: str
    command: bool
    arguments: tuple[Argument, ...]

    @property
    def options(self) -> tuple[Argument, ...]:
        """The arguments that have flags."""
        return tuple(argument for argument in self.arguments if argument.flags)

    @property
    def operands(self) -> tuple[Argument, ...]:
        """The arguments that have none."""
        return tuple(argument for argument in self.arguments if not argument.flags)


def grammar(parser: argparse.ArgumentParser) -> tuple[Verb, tuple[Verb, ...]]:
    """The command itself and its verbs, in the order of the parser. Pure."""
    verbs = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            verbs = [_verb(name, helps[name], inner) for name, inner in action.choices.items()]
    return _verb("", "", parser), tuple(verbs)


def _verb(name: str, text: str, parser: argparse.ArgumentParser) -> Verb:
    taken = [
        action for action in parser._actions if not isinstance(action, argparse._SubParsersAction)
    ]
    command = any(action.metavar == "CMD" for action in taken)
    arguments = [_argument(action) for action in taken if action.metavar != "CMD"]
    if name:
        arguments += [known for known in _parts(parser) if known not in arguments]
    return Verb(
        name, text, parser.description or "", parser.epilog or "", command, tuple(arguments)
    )


def _parts(parser: argparse.ArgumentParser) -> list[Argument]:
    """What a verb of several parts takes (fleet report): the part, then all of their arguments."""
    found: list[Argument] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = "; ".join(f"{one.dest}: {one.help}" for one in action._choices_actions)
            found.append(Argument((), "PART", tuple(action.choices), False, helps))
            for name, part in action.choices.items():
                found += [known for known in _verb(name, "", part).arguments if known not in found]
    return found


def _argument(action: argparse.Action) -> Argument:
    flags = tuple(sorted(action.option_strings, key=len, reverse=True))
    values = tuple(action.choices or _VALUES.get(action.dest, ()))
    # As argparse itself calls the value of an option that has choices and no metavar.
    metavar = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    takes = None if action.nargs == 0 else metavar
    return Argument(flags, takes, values, action.nargs == "*", action.help or "")
