"""The manual page, written from the parser: python -m numabind._manual > man/numabind.1."""

from __future__ import annotations

import re
import textwrap

from numabind._grammar import grammar
from numabind._parser import make_parser

TYPE_CHECKING = False
if TYPE_CHECKING:
    from numabind._grammar import Argument, Verb

_PURPOSE = "put GPU workers next to their GPUs: CPU threads and host memory"
_EXAMPLES = (
    ("This machine, where each GPU's worker would go, what is in the way:", "numabind"),
    (
        "One worker, or each Python worker of a launcher, next to its GPU:",
        "numabind run -- python train.py",
        "numabind launch -- torchrun --nproc-per-node 8 train.py",
    ),
    (
        "Fail a job's prolog unless every process is near its GPU:",
        "numabind status --min-local 0.95",
    ),
    (
        "Plan a machine that you are not on:",
        "numabind snapshot -o there.json",
        "numabind plan --snapshot there.json --mode exclusive",
    ),
)
# Those that a person sets. numabind launch hands others to its workers.
ENVIRONMENT = {
    "NUMABIND": "0 turns everything off: commands run as if numabind were not there.",
    "NUMABIND_MODE": "The default of --mode.",
    "NUMABIND_MEMORY": "The default of --memory.",
    "NUMABIND_STRICT": "1: as if --strict were given.",
    "NUMABIND_MAP": "A file that corrects firmware: one device a line, as in "
    '"0000:17:00.0 nodes=0".',
    "NUMABIND_SNAPSHOT": "A file made by numabind snapshot on this machine, read instead of the "
    "machine.",
    "NUMABIND_EVENTS": "A file to which each bind appends one line of JSON.",
}


def manual() -> str:
    """The page in the man macros of roff."""
    from numabind import __version__

    top, verbs = grammar(make_parser())
    return "\n".join(
        [
            '.\\" Made by: python -m numabind._manual > man/numabind.1',
            # Without a date, so that the same source makes the same page.
            f'.TH NUMABIND 1 "" "numabind {__version__}" "User Commands"',
            ".SH NAME",
            f"numabind \\- {_text(_PURPOSE)}",
            ".SH SYNOPSIS",
            ".B numabind",
            "[\\fB\\-\\-json\\fR]",
            ".br",
            ".B numabind",
            "\\fIVERB\\fR [\\fIoptions\\fR]",
            *[line for verb in verbs if verb.command for line in (".br", *_usage(verb))],
            ".SH DESCRIPTION",
            _text(top.description),
            *_arguments(top),
            ".SH VERBS",
            *[line for verb in verbs for line in _verb(verb)],
            ".SH ENVIRONMENT",
            *[
                line
                for name, text in ENVIRONMENT.items()
                for line in _item(f"\\fB{name}\\fR", text)
            ],
            ".SH EXIT STATUS",
            _text(top.epilog),
            ".SH EXAMPLES",
            *[line for what, *typed in _EXAMPLES for line in _example(what, typed)][:-1],
            "",
        ]
    )


def _verb(verb: Verb) -> list[str]:
    lines = [f".SS {verb.name}", *_usage(verb), ".PP", _text(_sentence(verb.text))]
    if verb.description:
        lines += [".PP", _text(verb.description)]
    lines += _arguments(verb)
    return [*lines, ".PP", _text(verb.epilog)] if verb.epilog else lines


def _usage(verb: Verb) -> list[str]:
    words = [f".B numabind {verb.name}", "[\\fIoptions\\fR]"]
    words += [
        f"[\\fI{operand.metavar}\\fR ...]" if operand.many else f"\\fI{operand.metavar}\\fR"
        for operand in verb.operands
    ]
    return [*words, "\\-\\- \\fICMD\\fR [\\fIARG\\fR ...]"] if verb.command else words


def _arguments(verb: Verb) -> list[str]:
    return [line for argument in verb.arguments for line in _argument(argument)]


def _argument(argument: Argument) -> list[str]:
    value = f"\\fI{argument.metavar}\\fR"
    text = argument.text
    if any(value not in text for value in argument.values):
        text += f"; one of {', '.join(argument.values)}"
    if not argument.flags:
        return _item(value, text)
    # Short ones first, as manual pages have them.
    flags = ", ".join(f"\\fB{_escaped(flag)}\\fR" for flag in reversed(argument.flags))
    return _item(f"{flags} {value}" if argument.metavar else flags, text)


def _item(what: str, text: str) -> list[str]:
    return [".TP", what, _text(text)]


def _example(what: str, typed: list[str]) -> list[str]:
    return [_text(what), ".PP", ".RS", ".nf", *map(_escaped, typed), ".fi", ".RE", ".PP"]


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _text(text: str) -> str:
    """Running text: each sentence begins a line and lines are short, as roff wants it."""
    sentences = re.sub(r"(?<=[.:?]) (?=[A-Z])", "\n", text).split("\n")
    return "\n".join(_escaped(textwrap.fill(sentence, 72)) for sentence in sentences)


def _escaped(text: str) -> str:
    """Text that roff prints as it is."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    text = "".join(c if c.isascii() else f"\\[u{ord(c):04X}]" for c in text)
    return re.sub(r"^\.", "\\\\&.", text, flags=re.MULTILINE)


if __name__ == "__main__":
    print(manual(), end="")
