"""Completion scripts for bash, zsh and fish, written from the parser's grammar.

A script holds all that it offers, so that pressing Tab starts no Python. Only names of this machine
(processes, devices, files) are looked up, by the shell itself: _shells/ has the parts that are the
same whatever the grammar, and says what stands for the rest.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from numabind._grammar import Argument, Verb

# What the shell looks up, by metavar. The value of any other, as N, can't be offered.
LOOKED_UP = ("FILE", "DIR", "PID", "DEVICE")


def script(shell: str, top: Verb, verbs: tuple[Verb, ...]) -> str:
    """The completion script of "bash", "zsh" or "fish"."""
    name = os.path.join(os.path.dirname(__file__), "_shells", f"numabind.{shell}")
    with open(name, encoding="utf-8") as file:
        text = file.read()
    for mark, value in WRITERS[shell](top, verbs).items():
        text = text.replace(f"@{mark}@", value)
    return text


def _short(argument: Argument) -> str:
    """What stands beside a flag while one chooses: the help, without its list of values."""
    return argument.text.partition(";")[0]


def _flags(verb: Verb) -> list[str]:
    return [flag for option in verb.options for flag in option.flags]


def _takers(verbs: tuple[Verb, ...]) -> list[str]:
    """Each flag that takes a value."""
    found = {f for verb in verbs for o in verb.options if o.metavar for f in o.flags}
    return sorted(found)


def _commands(verbs: tuple[Verb, ...], between: str) -> str:
    return between.join(verb.name for verb in verbs if verb.command)


def _bash(top: Verb, verbs: tuple[Verb, ...]) -> dict[str, str]:
    return {
        "takers": " ".join(_takers((top, *verbs))),
        "commands": _commands(verbs, "|"),
        "verbs": "\n".join(_bash_case(verb, verbs) for verb in (top, *verbs)),
    }


def _bash_case(verb: Verb, verbs: tuple[Verb, ...]) -> str:
    """The branch of a verb: its options, operands, and what each option's value may be."""
    if verb.command:
        operands = "COMMAND"
    elif not verb.name:
        operands = " ".join(inner.name for inner in verbs)
    else:
        operands = " ".join(_bash_value(operand) for operand in verb.operands)
    lines = [
        f"    {verb.name or chr(39) * 2})",
        f"        options='{' '.join(_flags(verb))}' operands='{operands}'",
    ]
    takers = [option for option in verb.options if option.metavar]
    if takers:
        lines.append("        case $before in")
        for option in takers:
            lines.append(
                f"        {' | '.join(option.flags)}) what='{_bash_value(option) or 'NOTHING'}' ;;"
            )
        lines.append("        esac")
    return "\n".join([*lines, "        ;;"])


def _bash_value(argument: Argument) -> str:
    if argument.values:
        return " ".join(argument.values)
    return argument.metavar if argument.metavar in LOOKED_UP else ""


def _quoted(text: str) -> str:
    """A word in single quotes, as bash and zsh read it."""
    return "'" + text.replace("'", "'\\''") + "'"


def _zsh(top: Verb, verbs: tuple[Verb, ...]) -> dict[str, str]:
    named = [_quoted(f"{verb.name}:{verb.text}") for verb in verbs]
    return {
        "options": " \\\n        ".join(_zsh_option(option) for option in top.options),
        "names": "\n            ".join(named),
        "verbs": "\n".join(_zsh_case(verb) for verb in verbs),
    }


def _zsh_case(verb: Verb) -> str:
    specs = [_zsh_option(option) for option in verb.options]
    for operand in verb.operands:
        many = "*" if operand.many else ""
        specs.append(_quoted(f"{many}:{operand.metavar}:{_zsh_value(operand)}"))
    # After -- or the command's first word everything is the command's own.
    before = "-S -A '-*' " if verb.command else ""
    if verb.command:
        specs.append("'*::CMD:_numabind_own'")
    return f"        {verb.name}) _arguments {before}\\\n            " + (
        " \\\n            ".join(specs) + " ;;"
    )


def _zsh_option(option: Argument) -> str:
    text = _short(option)
    for special in "\\[]:":
        text = text.replace(special, "\\" + special)
    if option.metavar:
        # Long ones also as --flag=value.
        flags = [f"{flag}=" if flag.startswith("--") else flag for flag in option.flags]
        tail = f"[{text}]:{option.metavar}:{_zsh_value(option)}"
    else:
        flags, tail = list(option.flags), f"[{text}]"
    if len(flags) == 1:
        return _quoted(flags[0] + tail)
    return f"'({' '.join(option.flags)})'{{{','.join(flags)}}}{_quoted(tail)}"


def _zsh_value(argument: Argument) -> str:
    if argument.values:
        return f"({' '.join(argument.values)})"
    looked_up = {"FILE": "_files", "DIR": "_files -/", "PID": "_pids", "DEVICE": "_numabind_device"}
    return looked_up.get(argument.metavar or "", "")


def _fish(top: Verb, verbs: tuple[Verb, ...]) -> dict[str, str]:
    first = "complete -c numabind -n '__numabind_verb \"\"' -a"
    lines = [f"{first} {verb.name} -d {_fish_quoted(verb.text)}" for verb in verbs]
    for verb in (top, *verbs):
        when = f"complete -c numabind -n '__numabind_verb {verb.name or chr(34) * 2}'"
        for argument in verb.arguments:
            words = [f"-l {f[2:]}" if f.startswith("--") else f"-s {f[1:]}" for f in argument.flags]
            text = [f"-d {_fish_quoted(_short(argument))}"] if argument.flags else []
            lines.append(" ".join([when, *words, *_fish_value(argument), *text]))
        if verb.command:
            own = f"complete -c numabind -n '__numabind_command {verb.name}'"
            lines.append(f"{own} -x -a '(__numabind_own)'")
    return {"takers": " ".join(_takers((top, *verbs))), "completions": "\n".join(lines)}


def _fish_value(argument: Argument) -> list[str]:
    if argument.metavar is None:
        return []
    needs = "-x" if argument.flags else "-f"
    if argument.values:
        return [needs, f"-a '{' '.join(argument.values)}'"]
    looked_up = {
        "FILE": ["-r", "-F"],
        "DIR": [needs, "-a '(__fish_complete_directories)'"],
        "PID": [needs, "-a '(__fish_complete_pids)'"],
        "DEVICE": [needs, "-a '(__numabind_device)'"],
    }
    return looked_up.get(argument.metavar, [needs])


def _fish_quoted(text: str) -> str:
    """A word in single quotes, as fish reads it."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


WRITERS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
